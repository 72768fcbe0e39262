// Kernels that begin while the one before them on the stream still runs, and wait for it by themselves
// (ops/cuda/overlap.cuh).
#pragma once

#include "runtime/context.hpp"

namespace warpwright {

// While there is one, kernels on the Context's stream may begin early. What they read before they wait are
// weights, a batch's integers other than its tokens (bounds, lengths, block tables), and the keys and values
// that a cache had before: no kernel that is launched meanwhile may write those. A copy before the first
// kernel may, because that kernel waits for it in the ordinary way. On GPUs other than Hopper's none begins
// early: only code for compute capability 9 has the instructions that wait.
class Overlap {
 public:
  explicit Overlap(const Context& context);
  Overlap(const Overlap&) = delete;
  Overlap& operator=(const Overlap&) = delete;
  ~Overlap();

  static bool allowed(const Context& context);

 private:
  const Context& context_;
};

}  // namespace warpwright
