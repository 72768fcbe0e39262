// Kernels that exist to compare choices, such as the number of threads in a block, offer every choice as a
// configuration. WARPWRIGHT_FORCE names one of them, and `warpwright bench ops --configurations` times all.
#pragma once

#include <array>
#include <string_view>
#include <vector>

#include "ops/op.hpp"

namespace warpwright::ops {

// The option that the user forced for this kernel, or else the first. An Option has text(), its name.
template <class Option, std::size_t count, class Problem>
const Option& option_of(const std::array<Option, count>& options, std::string_view operation,
                        std::string_view kernel, const Problem& problem, const DeviceInfo& device) {
  if (const auto text = tuned_configuration(operation, kernel, problem, device)) {
    for (const Option& option : options) {
      if (option.text() == *text) return option;
    }
  }
  return options.front();
}

template <class Option, std::size_t count>
std::vector<Configuration> configurations_of(const std::array<Option, count>& options) {
  std::vector<Configuration> list;
  for (const Option& option : options) list.push_back({option.text()});
  return list;
}

}  // namespace warpwright::ops
