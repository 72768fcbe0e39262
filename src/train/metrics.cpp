#include "train/metrics.hpp"

#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <string_view>
#include <utility>

#include "core/error.hpp"
#include "runtime/file.hpp"
#include "runtime/mapped_file.hpp"

namespace warpwright {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kLongestLine = 1 << 16;

bool is_of_a_step_up_to(std::int64_t steps, std::string_view line) {
  if (line.size() > kLongestLine) return false;
  const nlohmann::json json = nlohmann::json::parse(line, nullptr, false);
  const auto step = json.is_object() ? json.find("step") : json.end();
  return step != json.end() && step->is_number_integer() && *step <= steps;
}

// The size of the file up to the end of the last line of a step up to `steps`.
std::uint64_t known_bytes(const fs::path& path, std::int64_t steps) {
  const MappedFile file(path, Mapping::always);
  const auto bytes = file.bytes();
  const std::string_view text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  std::size_t end = text.rfind('\n') + 1;  // 0 if there is no whole line
  while (end > 0) {
    const std::size_t begin = end == 1 ? 0 : text.rfind('\n', end - 2) + 1;
    if (is_of_a_step_up_to(steps, text.substr(begin, end - 1 - begin))) return end;
    end = begin;
  }
  return 0;
}

// True if the file can be a run's: it begins with a JSON object, or with what a crash leaves of one.
bool may_be_of_a_run(const fs::path& path) {
  char first = '{';
  FileReader(path, FileReader::Kind::regular).read({&first, 1});
  return first == '{' || first == '\n' || first == '\0';
}

fs::path cut(const fs::path& path, std::int64_t steps) {
  if (!path_exists(path)) return path;
  const std::uint64_t known = known_bytes(path, steps);
  std::error_code error;
  fs::resize_file(path, known, error);
  if (error) {
    throw Error(fmt::format("cannot be cut to {} bytes: {}", known, error.message()), path.string(),
                "check its permissions and the health of the disk");
  }
  return path;
}

}  // namespace

Metrics::Metrics(fs::path path, std::int64_t steps) : path_(std::move(path)), steps_(steps) {
  if (path_exists(path_) && !may_be_of_a_run(path_)) {
    throw Error("is not the metrics of a run", path_.string(), "move the file away");
  }
}

void Metrics::write(const nlohmann::json& line) {
  if (!file_) file_.emplace(OutputFile::continued(cut(path_, steps_)));
  file_->write(line.dump() + "\n");
  file_->flush();
}

}  // namespace warpwright
