// Work that a GPU replays as a graph. It runs once operation by operation, is captured the second time, and
// is then replayed until the Context's scratch moves.
#pragma once

#include <functional>

#include "runtime/context.hpp"
#include "runtime/stream.hpp"

namespace warpwright {

class Captured {
 public:
  // Captures on the Context's stream.
  Captured() = default;
  // Captures on `own`, which must outlive this: other threads may use the Context's stream meanwhile, and
  // CUDA's default stream captures nothing. The graph's kernels may begin early, so none of them may write
  // what others read early (runtime/overlap.hpp).
  explicit Captured(const Stream& own) : own_(&own) {}

  // True if the Context's work can be a graph. A CPU has no graphs, and a replay hides individual operations
  // from the log, a timer or an inspector.
  static bool possible(const Context& context);

  // Puts the work on the Context's stream. Every call must be given the same work.
  void run(Context& context, const std::function<void()>& work);

 private:
  Graph capture(Context& context, const std::function<void()>& work) const;

  const Stream* own_ = nullptr;
  Graph graph_;
  const void* scratch_ = nullptr;  // its address in the graph
  bool warm_ = false;              // the work has run once, and has loaded and chosen all that it needs
};

}  // namespace warpwright
