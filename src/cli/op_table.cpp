#include "cli/op_table.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <vector>

namespace warpwright::cli {

void OpTable::add(const Context::CallRecord& call) {
  Row& row = rows_[{std::string(call.operation), std::string(call.variant)}];
  ++row.calls;
  row.seconds += call.seconds;
  row.flops += call.flops;
  row.bytes += call.bytes;
  if (ceiling_) row.ceiling_seconds += ceiling_(call);
}

void OpTable::print() const {
  using Pair = std::pair<std::pair<std::string, std::string>, Row>;
  std::vector<Pair> sorted(rows_.begin(), rows_.end());
  std::sort(sorted.begin(), sorted.end(),
            [](const Pair& a, const Pair& b) { return a.second.seconds > b.second.seconds; });
  fmt::print("{:<32}{:<24}{:>6}{:>10}{:>10}{:>10}{}\n", "operation", "variant", "calls", "ms", "GFLOP/s",
             "GB/s", ceiling_ ? "  ceiling" : "");
  for (const auto& [key, row] : sorted) {
    fmt::print("{:<32}{:<24}{:>6}{:>10.3f}{:>10.1f}{:>10.1f}", key.first, key.second, row.calls,
               row.seconds * 1e3, row.flops / row.seconds * 1e-9, row.bytes / row.seconds * 1e-9);
    if (ceiling_) fmt::print("{:>8.0f}%", 100 * row.ceiling_seconds / row.seconds);
    fmt::print("\n");
  }
}

nlohmann::json OpTable::to_json() const {
  nlohmann::json list = nlohmann::json::array();
  for (const auto& [key, row] : rows_) {
    nlohmann::json entry = {{"op", key.first},         {"variant", key.second}, {"calls", row.calls},
                            {"ms", row.seconds * 1e3}, {"flops", row.flops},    {"bytes", row.bytes}};
    if (ceiling_) entry["share_of_ceiling"] = row.ceiling_seconds / row.seconds;
    list.push_back(std::move(entry));
  }
  return list;
}

}  // namespace warpwright::cli
