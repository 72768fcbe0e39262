// Man pages, generated from the program's definitions.
#pragma once

#include <CLI/CLI.hpp>
#include <string>

namespace warpwright::cli {

// `warpwright man [COMMAND]` prints one page, `warpwright man --out FOLDER` writes them all.
void add_manual(CLI::App& app);

// The page of the program or a command, in man(7)'s macros.
std::string manual_of(const CLI::App& command);

}  // namespace warpwright::cli
