// Checks of the values of flags that apply to any flag.
#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <string>
#include <vector>

namespace warpwright::cli {

// A whole number from `least` on.
CLI::Validator at_least(std::int64_t least);

// Accepts one of these words; the message suggests the nearest.
CLI::Validator one_of(std::vector<std::string> choices);
// The words that one_of() accepts for this option; empty if it has no such check.
std::vector<std::string> choices_of(const CLI::Option& option);

// True if the value is the path of a file or folder.
bool takes_path(const CLI::Option& option);

// Adds to every option of the program and its commands: a number is written in decimal digits, lies within
// its type's range and is finite; a text is not empty (which is usually an unset variable of the shell),
// except for a few options. The folder of a run given as --model or --from means the model in it.
void check_values(CLI::App& app);

}  // namespace warpwright::cli
