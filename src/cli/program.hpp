// The program's commands and options: one definition for parsing, help, completion and man pages.
#pragma once

#include <CLI/CLI.hpp>
#include <memory>
#include <string>

namespace warpwright::cli {

std::unique_ptr<CLI::App> make_program();

// The text that --help prints for a command.
std::string help_of(const CLI::App& command);

}  // namespace warpwright::cli
