#include "ops/registry.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <set>

namespace warpwright::ops {

#define WARPWRIGHT_OPERATION(name) std::vector<OpInfo> name##_ops(const DeviceInfo& device);
#include "operations.inc"
#undef WARPWRIGHT_OPERATION

namespace {

std::string_view folder_of(std::string_view operation) {
  return operation.substr(0, operation.find('.'));
}

void check_variant_name(const OpInfo& op, std::string_view variant) {
  std::vector<std::string_view> names;
  for (const VariantInfo& known : op.variants) names.push_back(known.name);
  if (std::find(names.begin(), names.end(), variant) != names.end()) return;
  throw UsageError(fmt::format("{} has no variant '{}'", op.name, variant), "WARPWRIGHT_FORCE",
                   fmt::format("use one of: {}", fmt::join(names, ", ")));
}

}  // namespace

std::vector<OpInfo> all_ops(const DeviceInfo& device) {
  std::vector<OpInfo> all;
#define WARPWRIGHT_OPERATION(name) \
  for (OpInfo & op : name##_ops(device)) all.push_back(std::move(op));
#include "operations.inc"
#undef WARPWRIGHT_OPERATION
  std::sort(all.begin(), all.end(), [](const OpInfo& a, const OpInfo& b) { return a.name < b.name; });
  return all;
}

void check_forced_names(const ContextOptions& options) {
  const std::vector<OpInfo> ops = all_ops(cpu_device_info());
  std::set<std::string_view> names;
  for (const OpInfo& op : ops) names.insert({folder_of(op.name), op.name});
  for (const auto& [name, variant] : options.force) {
    if (names.count(name)) continue;
    throw UsageError(fmt::format("there is no operation '{}'", name), "WARPWRIGHT_FORCE",
                     fmt::format("use one of: {}", fmt::join(names, ", ")));
  }
  for (const OpInfo& op : ops) {
    const std::string_view forced = forced_choice(options.force, op.name);
    const bool names_none = forced.ends_with("[]");  // brackets without a configuration
    if (!forced.empty()) check_variant_name(op, names_none ? forced : parts_of(forced).kernel);
  }
}

}  // namespace warpwright::ops
