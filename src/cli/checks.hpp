// Checks of the values of flags that apply to any flag.
#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <string>
#include <vector>

namespace warpwright::cli {

// Accepts whole numbers of at least `least`.
CLI::Validator at_least(std::int64_t least);

// Accepts numbers from `least` to `most`.
CLI::Validator number_from(double least, double most);

// Accepts numbers of at least `least` that are finite as a float.
CLI::Validator float_at_least(float least);

// Accepts one of these words; the message suggests the nearest.
CLI::Validator one_of(std::vector<std::string> choices);
// The words that one_of() accepts for this option; empty if it has no such check.
std::vector<std::string> choices_of(const CLI::Option& option);

// True if the value is the path of a file or folder.
bool takes_path(const CLI::Option& option);

// Adds checks to every option of the program and its commands. A number must be written in decimal digits,
// lie within its type's range and be finite. A text must not be empty, except for a few options: an empty
// text is usually an unset shell variable. If --model or --from names the folder of a run, the model in it is
// taken.
void check_values(CLI::App& app);

}  // namespace warpwright::cli
