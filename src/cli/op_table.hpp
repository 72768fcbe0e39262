// The calls of each operation and variant, summed up for the tables of bench step and bench encoder.
#pragma once

#include <functional>
#include <map>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <utility>

#include "runtime/context.hpp"

namespace warpwright::cli {

class OpTable {
 public:
  // The least seconds that the machine needs for a call. Without it, the table has no shares of the ceiling.
  using Ceiling = std::function<double(const Context::CallRecord&)>;
  explicit OpTable(Ceiling ceiling = nullptr) : ceiling_(std::move(ceiling)) {}

  void add(const Context::CallRecord& call);
  bool empty() const { return rows_.empty(); }
  void print() const;  // most seconds first
  nlohmann::json to_json() const;

 private:
  struct Row {
    std::int64_t calls = 0;
    double seconds = 0, flops = 0, bytes = 0, ceiling_seconds = 0;
  };
  Ceiling ceiling_;
  std::map<std::pair<std::string, std::string>, Row> rows_;
};

}  // namespace warpwright::cli
