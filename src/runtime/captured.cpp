#include "runtime/captured.hpp"

#include "runtime/overlap.hpp"
#include "runtime/side_stream.hpp"

namespace warpwright {

bool Captured::possible(const Context& context) {
  const bool watched = context.timer() || context.inspector() || context.options().verbose;
  return !watched && context.device().device.kind == DeviceKind::cuda;
}

void Captured::run(Context& context, const std::function<void()>& work) {
  if (!warm_ || !possible(context)) {
    work();
    warm_ = true;
    return;
  }
  if (!graph_ || scratch_ != context.scratch()) {
    graph_ = capture(context, work);
    scratch_ = context.scratch();
  }
  graph_.launch(context.stream());
}

Graph Captured::capture(Context& context, const std::function<void()>& work) const {
  if (!own_) {
    context.synchronize();
    return Graph(context.stream(), work);
  }
  const Overlap overlap(context);
  const OnStream on_own(context, *own_);
  return Graph(context.stream(), work);
}

}  // namespace warpwright
