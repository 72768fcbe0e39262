// Calls a function for a command of the program and for every command below it.
#pragma once

#include <functional>

#include "cli/arguments.hpp"

namespace warpwright {

inline void visit_commands(const CLI::App& command, const std::function<void(const CLI::App&)>& visit) {
  visit(command);
  for (const CLI::App* sub : cli::shown_commands(command)) visit_commands(*sub, visit);
}

}  // namespace warpwright
