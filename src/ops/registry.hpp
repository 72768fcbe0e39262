// All operations by name, for `warpwright info` and for the check of the names that a user forces.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "ops/op.hpp"

namespace warpwright::ops {

struct VariantInfo {
  std::string_view name;
  std::string refusal;  // why this variant runs nothing on this device; "" if it runs
};

struct OpInfo {
  std::string_view name;
  std::vector<VariantInfo> variants;  // in the operation's order
};

// The entry of one operation in all_ops().
template <class Args>
OpInfo info_of(const Op<Args>& op, const DeviceInfo& device) {
  OpInfo info{op.name, {}};
  for (const Variant<Args>& variant : op.variants) {
    info.variants.push_back({variant.name, refuse_device(variant.needs(), device)});
  }
  return info;
}

// Every operation, sorted by name.
std::vector<OpInfo> all_ops(const DeviceInfo& device);

// Throws UsageError if options.force names an operation that does not exist, or a variant that one of the
// operations it is forced for does not have. A forced variant may still refuse a problem later.
void check_forced_names(const ContextOptions& options);

}  // namespace warpwright::ops
