#include "cli/records.hpp"

#include <fmt/format.h>

#include <charconv>
#include <cmath>
#include <nlohmann/json.hpp>

#include "core/error.hpp"
#include "roofline/gemm.hpp"
#include "runtime/file.hpp"
#include "runtime/json.hpp"

namespace warpwright::cli {
namespace {

using nlohmann::json;

constexpr std::uint64_t kMaxBytes = 256 << 20;
constexpr int kMaxDepth = 32;

// The number after "M=" in a problem's description; 0 if absent.
std::int64_t dimension(std::string_view problem, std::string_view name) {
  const std::string key = fmt::format("{}=", name);
  for (std::size_t at = problem.find(key); at != std::string_view::npos; at = problem.find(key, at + 1)) {
    if (at > 0 && problem[at - 1] != ' ') continue;
    std::int64_t value = 0;
    std::from_chars(problem.data() + at + key.size(), problem.data() + problem.size(), value);
    return value;
  }
  return 0;
}

class RecordReader {
 public:
  std::vector<Record> records;

  void read(const json& document) {
    if (const auto rows = document.find("rows"); rows != document.end()) bench_rows(*rows);
    if (const auto ops = document.find("ops"); ops != document.end()) {
      ops->is_array() ? step(document) : machine(*ops);
    }
    if (const auto steps = document.find("steps"); steps != document.end()) {
      for (const json& one : *steps) step(one);
    }
    if (const auto results = document.find("results"); results != document.end()) peers(*results);
  }

 private:
  void keep(Record record) {
    const auto usable = [](double x) { return std::isfinite(x) && x > 0; };
    if (usable(record.seconds) && usable(record.flops) && usable(record.bytes))
      records.push_back(std::move(record));
  }

  void bench_rows(const json& rows) {
    for (const json& row : rows) {
      Record r{.op = row.at("op"),
               .variant = row.at("variant"),
               .problem = row.at("problem"),
               .dtype = row.at("dtype"),
               .seconds = row.at("median_seconds"),
               .flops = row.at("flops"),
               .bytes = row.at("bytes")};
      if (r.op.substr(0, 7) == "matmul.") {
        r.M = dimension(r.problem, "M"), r.N = dimension(r.problem, "N"), r.K = dimension(r.problem, "K");
      }
      keep(std::move(r));
    }
  }

  void machine(const json& ops) {
    for (const json& op : ops) {
      if (const auto rows = op.find("bench"); rows != op.end()) bench_rows(*rows);
    }
  }

  void step(const json& s) {
    const std::string dtype = s.at("dtype");
    const std::string problem =
        fmt::format("{} {} B={} T={}", s.at("model").get<std::string>(), dtype,
                    s.at("batch").get<std::int64_t>(), s.at("seq").get<std::int64_t>());
    for (const json& row : s.at("ops")) {
      const double calls = row.at("calls");
      keep({.op = row.at("op"),
            .variant = row.at("variant"),
            .problem = problem,
            .dtype = dtype,
            .seconds = row.at("ms").get<double>() * 1e-3 / calls,
            .flops = row.at("flops").get<double>() / calls,
            .bytes = row.at("bytes").get<double>() / calls});
    }
  }

  void peers(const json& results) {
    for (const json& row : results) {
      const std::string direction = row.at("direction"), dtype = row.at("dtype");
      const std::int64_t M = row.at("M"), N = row.at("N"), K = row.at("K");
      const auto product =
          roofline::product_of(roofline::direction_named(direction), M, N, K, roofline::math_named(dtype));
      for (const auto& [variant, seconds] : row.at("seconds").items()) {
        keep({.op = "matmul." + direction,
              .variant = variant,
              .problem = fmt::format("M={} N={} K={} {}", M, N, K, dtype),
              .dtype = dtype,
              .seconds = seconds,
              .flops = product.flops(),
              .bytes = product.compulsory_bytes(),
              .M = M,
              .N = N,
              .K = K});
      }
    }
  }
};

}  // namespace

std::vector<Record> read_records(const std::filesystem::path& path) {
  const std::string where = path.string(),
                    remedy = "give what `warpwright bench ops --json` or scripts/gpu-check wrote";
  const json document = parse_json(read_file(path, kMaxBytes), where, kMaxDepth, remedy);
  RecordReader reader;
  try {
    if (!document.is_object()) throw Error("is not a JSON object", where, remedy);
    reader.read(document);
  } catch (const json::exception& error) {
    throw Error(fmt::format("is not a record of measurements ({})", reason_of(error)), where, remedy);
  } catch (const UsageError& error) {
    throw Error(fmt::format("is not a record of measurements ({})", error.problem()), where, remedy);
  }
  if (reader.records.empty()) throw Error("holds no measurements", where, remedy);
  return reader.records;
}

}  // namespace warpwright::cli
