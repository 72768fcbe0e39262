#include "cli/checks.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <filesystem>
#include <sstream>
#include <string>
#include <string_view>
#include <system_error>

#include "cli/nearest.hpp"
#include "model/decoder_files.hpp"
#include "runtime/json.hpp"

namespace warpwright::cli {
namespace {

constexpr std::array<std::string_view, 3> kMayBeEmpty = {"--prompt", "--query", "--filter"};
constexpr std::array<std::string_view, 15> kPaths = {
    "--input",    "--out",      "--data",        "--model",          "--tokenizer",
    "--from",     "--to",       "--choices",     "--weights-cache",  "--table",
    "--timeline", "--measured", "--tuned-table", "--attention-bias", "--record"};

template <std::size_t N>
bool contains(const std::array<std::string_view, N>& names, std::string_view name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

// Parses the whole text as a number of this type.
template <class Number>
std::errc parse(const std::string& text, Number& number) {
  const char* end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, number);
  return error == std::errc() && stop != end ? std::errc::invalid_argument : error;
}

template <class Number>
std::string check_number(const std::string& text, const char* kind) {
  Number number{};
  const std::errc error = parse(text, number);
  if (error == std::errc::result_out_of_range) return fmt::format("{} is out of range", quote(text));
  if (error != std::errc()) return fmt::format("{} is not {}", quote(text), kind);
  bool plain = true;
  if constexpr (std::is_floating_point_v<Number>) {
    plain = std::isfinite(number);
  } else {
    plain = text == std::to_string(number);  // 010 would be read as 8
  }
  if (!plain) return fmt::format("{} is not {}", quote(text), kind);
  return {};
}

std::string check_integer(const std::string& text) {
  return check_number<std::int64_t>(text, "a whole number in decimal digits");
}
std::string check_count(const std::string& text) {
  return check_number<std::uint64_t>(text, "a whole number in decimal digits, 0 or more");
}
std::string check_real(const std::string& text) {
  return check_number<double>(text, "a finite number");
}
std::string check_text(const std::string& text) {
  return text.empty() ? "is empty, give a value" : "";
}

// Other programs write to standard output for "-"; here it would become a file of that name.
std::string check_output(const std::string& text) {
  return text == "-" ? "is \"-\": write /dev/stdout for standard output, or ./- for a file of that name" : "";
}

}  // namespace

CLI::Validator at_least(std::int64_t least) {
  return CLI::Validator(
      [least](std::string& text) {
        std::int64_t number = 0;
        const bool small = parse(text, number) == std::errc() && number < least;
        return small ? fmt::format("is {}, give {} or more", number, least) : std::string();
      },
      "");
}

CLI::Validator number_from(double least, double most) {
  return CLI::Validator(
      [least, most](std::string& text) {
        double number = 0;
        if (parse(text, number) != std::errc()) return std::string();  // check_values() says why
        return number >= least && number <= most
                   ? std::string()
                   : fmt::format("is {}, give a number from {} to {}", text, least, most);
      },
      "");
}

CLI::Validator float_at_least(float least) {
  return CLI::Validator(
      [least](std::string& text) {
        double number = 0;
        if (parse(text, number) != std::errc()) return std::string();  // check_values() says why
        const auto stored = static_cast<float>(number);
        return stored >= least && std::isfinite(stored)
                   ? std::string()
                   : fmt::format("is {}, give a number of {} or more that fp32 can hold", text, least);
      },
      "");
}

CLI::Validator one_of(std::vector<std::string> choices) {
  const std::string description = fmt::format("{{{}}}", fmt::join(choices, ","));
  return CLI::Validator(
      [choices = std::move(choices)](std::string& text) {
        if (std::find(choices.begin(), choices.end(), text) != choices.end()) return std::string();
        const auto near = nearest(text, choices);
        return fmt::format("{} is not one of {}{}", quote(text), fmt::join(choices, ", "),
                           near ? fmt::format("; the nearest is {}", *near) : "");
      },
      description);
}

std::vector<std::string> choices_of(const CLI::Option& option) {
  const std::string type = option.get_type_name();
  const std::size_t begin = type.find('{'), end = type.find('}');
  std::vector<std::string> choices;
  if (begin == std::string::npos || end == std::string::npos) return choices;
  std::istringstream list(type.substr(begin + 1, end - begin - 1));
  for (std::string choice; std::getline(list, choice, ',');) choices.push_back(choice);
  return choices;
}

bool takes_path(const CLI::Option& option) {
  return option.get_type_name().starts_with("PATH");
}

void check_values(CLI::App& app) {
  for (CLI::Option* option : app.get_options()) {
    const std::string type = option->get_type_name(), name = option->get_name();
    if (type.starts_with("INT")) {
      option->check(check_integer);
    } else if (type.starts_with("UINT")) {
      option->check(check_count);
    } else if (type.starts_with("FLOAT")) {
      option->check(check_real);
    } else if (type.starts_with("TEXT")) {
      if (contains(kPaths, name)) option->type_name("PATH");
      if (!contains(kMayBeEmpty, name)) option->check(check_text);
    }
    if (name == "--out" || name == "--to") option->check(check_output);
    if (name == "--model" || name == "--from") {
      option->transform([](const std::string& text) { return model_folder(text).string(); });
    }
  }
  for (CLI::App* command : app.get_subcommands(nullptr)) check_values(*command);
}

}  // namespace warpwright::cli
