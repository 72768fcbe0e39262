// Checks the words of a command line against the known commands and options, before any value is parsed.
#pragma once

#include <CLI/CLI.hpp>
#include <string>
#include <vector>

namespace warpwright::cli {

enum class Asked { run, help, version };

struct Arguments {
  Asked asked = Asked::run;
  const CLI::App* command = nullptr;  // the innermost command named
  std::vector<std::string> words;     // for CLI11, which takes "--flag=" for a flag without a value
};

// Throws UsageError for the first word that is not a known command, option or value, and suggests the nearest
// valid one. Throws UsageError for an option without its value, too. A word that looks like an option is
// never a value: such a value is written --option=--value. Reading stops at --help or --version.
Arguments read_arguments(const CLI::App& program, const std::vector<std::string>& words);

// "warpwright data build"
std::string full_name(const CLI::App& command);

// The command that these words name ({"data", "build"}). Throws UsageError if there is none.
const CLI::App& command_named(const CLI::App& program, const std::vector<std::string>& words);

// The commands and options that help shows, in its order. name_of() gives the long name if there is one.
std::vector<const CLI::App*> shown_commands(const CLI::App& command);
std::vector<const CLI::Option*> shown_options(const CLI::App& command);
std::string name_of(const CLI::Option& option);
// False for a flag.
bool takes_value(const CLI::Option& option);

}  // namespace warpwright::cli
