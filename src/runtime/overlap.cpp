#include "runtime/overlap.hpp"

namespace warpwright {
namespace {

constexpr char kOwner = 0;

}  // namespace

Overlap::Overlap(const Context& context) : context_(context) {
  const DeviceInfo& on = context.device();
  if (on.device.kind != DeviceKind::cuda || on.gpu.runs_hopper_code()) context_.kept(&kOwner) = true;
}
Overlap::~Overlap() {
  context_.kept(&kOwner).reset();
}
bool Overlap::allowed(const Context& context) {
  return context.kept(&kOwner).has_value();
}

}  // namespace warpwright
