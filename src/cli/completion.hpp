// Shell completion scripts, generated from the program's definitions.
#pragma once

#include <CLI/CLI.hpp>
#include <string>

namespace warpwright::cli {

// `warpwright completion bash|zsh|fish` prints the script.
void add_completion(CLI::App& app);

std::string bash_completion(const CLI::App& program);
std::string zsh_completion(const CLI::App& program);
std::string fish_completion(const CLI::App& program);

}  // namespace warpwright::cli
