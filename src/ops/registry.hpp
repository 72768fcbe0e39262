// All operations by name: for `warpwright info`, and to check the names that a user forces.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "ops/op.hpp"

namespace warpwright::ops {

struct VariantInfo {
  std::string_view name;
  std::string refusal;  // why it runs nothing on this device; "" where it does
};

struct OpInfo {
  std::string_view name;
  std::vector<VariantInfo> variants;  // in the operation's order
};

// What all_ops() says of one.
template <class Args>
OpInfo info_of(const Op<Args>& op, const DeviceInfo& device) {
  OpInfo info{op.name, {}};
  for (const Variant<Args>& variant : op.variants) {
    info.variants.push_back({variant.name, refuse_device(variant.needs(), device)});
  }
  return info;
}

// Every operation, in the order of names.
std::vector<OpInfo> all_ops(const DeviceInfo& device);

// Throws UsageError where options.force names an operation that does not exist, or a variant that one of the
// operations it is forced for does not have. Whether the variant also runs is known with the first problem.
void check_forced_names(const ContextOptions& options);

}  // namespace warpwright::ops
