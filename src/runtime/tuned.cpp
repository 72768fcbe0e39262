#include "runtime/tuned.hpp"

#include <fmt/format.h>

#include <filesystem>
#include <nlohmann/json.hpp>
#include <span>
#include <utility>

#include "core/error.hpp"
#include "runtime/file.hpp"
#include "runtime/json.hpp"

namespace warpwright {
namespace {

constexpr int kVersion = 1, kDepth = 4;
constexpr std::uint64_t kMostBytes = std::uint64_t{16} << 20;
constexpr const char* kRemedy = "write it anew with `warpwright tune`";

std::string key_of(std::string_view operation, std::string_view problem) {
  return fmt::format("{} {}", operation, problem);
}

nlohmann::json to_json(const TunedFor& machine,
                       const std::map<std::string, std::string, std::less<>>& choices) {
  return {{"tuned", kVersion},          {"gpu", machine.gpu},         {"driver", machine.driver},
          {"library", machine.library}, {"program", machine.program}, {"choices", choices}};
}

}  // namespace

ChoiceParts parts_of(std::string_view choice) {
  const std::size_t bracket = choice.find('[');
  if (bracket == std::string_view::npos || choice.back() != ']') return {choice, {}};
  return {choice.substr(0, bracket), choice.substr(bracket + 1, choice.size() - bracket - 2)};
}

TunedTable TunedTable::read(const std::string& where) {
  nlohmann::json json = parse_json(read_file(where, kMostBytes), where, kDepth, kRemedy);
  try {
    if (json.at("tuned") != kVersion) throw Error("is of another version", where, kRemedy);
    TunedTable table({json.at("gpu").get<std::string>(), json.at("driver").get<std::string>(),
                      json.at("library").get<std::string>(), json.at("program").get<std::string>()});
    for (const auto& [problem, choice] : json.at("choices").get_ref<const nlohmann::json::object_t&>()) {
      table.choices_.emplace(problem, choice.get<std::string>());
    }
    if (json.at("checksum") != table.checksum()) {
      throw Error("is damaged: its checksum does not match", where, kRemedy);
    }
    return table;
  } catch (const nlohmann::json::exception&) {
    throw Error("is not a table of tuned kernels", where, kRemedy);
  }
}

void TunedTable::write(const std::string& path) const {
  nlohmann::json json = to_json(machine_, choices_);
  json["checksum"] = checksum();
  const std::filesystem::path folder = std::filesystem::path(path).parent_path();
  if (!folder.empty()) create_folders(folder);
  write_file_atomically(path, json.dump(2) + "\n");
}

std::string TunedTable::difference(const TunedFor& here) const {
  const auto differs = [](std::string_view what, const std::string& of_table, const std::string& of_machine) {
    return of_table == of_machine ? ""
                                  : fmt::format("{} {}, here {}", what, quote(of_table), quote(of_machine));
  };
  for (const std::string& text :
       {differs("the GPU", machine_.gpu, here.gpu), differs("the driver", machine_.driver, here.driver),
        differs("cuBLASLt", machine_.library, here.library),
        differs("warpwright", machine_.program, here.program)}) {
    if (!text.empty()) return text;
  }
  return "";
}

void TunedTable::set(std::string_view operation, std::string_view problem, std::string choice) {
  choices_[key_of(operation, problem)] = std::move(choice);
}

const std::string* TunedTable::choice(std::string_view operation, std::string_view problem) const {
  const auto found = choices_.find(key_of(operation, problem));
  return found == choices_.end() ? nullptr : &found->second;
}

std::optional<std::string_view> TunedTable::configuration(std::string_view operation,
                                                          std::string_view problem,
                                                          std::string_view kernel) const {
  const std::string* text = choice(operation, problem);
  if (!text) return std::nullopt;
  const auto [name, configuration] = parts_of(*text);
  return name == kernel ? std::optional(configuration) : std::nullopt;
}

std::string TunedTable::checksum() const {
  const std::string text = to_json(machine_, choices_).dump();
  return checksum_of(std::as_bytes(std::span(text)));
}

}  // namespace warpwright
