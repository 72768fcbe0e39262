// Planned tensors: the memory for them is laid out by recording the work that uses them, and taken in one go.
//
// The same allocation function runs twice: once to record the work over tensors without memory, and once to
// give each tensor its place in the arenas.
#pragma once

#include <algorithm>
#include <functional>
#include <optional>
#include <utility>

#include "runtime/context.hpp"
#include "runtime/memory.hpp"

namespace warpwright {

// While it lives, the Context's operations are noted by a Recorder and do nothing else. It also ends when an
// exception passes, so that the Context stays usable.
class Recording {
 public:
  Recording(Context& context, Recorder& recorder);
  Recording(const Recording&) = delete;
  Recording& operator=(const Recording&) = delete;
  ~Recording();

 private:
  Context& context_;
  Recorder* before_;
};

template <class Tensors>
class Planned {
 public:
  using Allocate = std::function<Tensors(Allocator&)>;
  using Work = std::function<void(const Tensors&)>;

  // Plans the memory that `work` needs, without allocating any.
  Planned(Context& context, Allocate allocate, const Work& work)
      : allocate_(std::move(allocate)), plan_(record(context, work)) {}
  // Plans tensors that exist all together for as long as any is used, such as weights.
  explicit Planned(Allocate allocate) : allocate_(std::move(allocate)) {
    Recorder recorder;
    allocate_(recorder);
    plan_ = recorder.plan();
  }

  // Makes room for the scratch of other work over the same tensors. Lifetimes stay those of the first work.
  void reserve_scratch_for(Context& context, const Work& other) {
    plan_.workspace_bytes = std::max(plan_.workspace_bytes, record(context, other).workspace_bytes);
  }

  // The same for work on fewer than `most` rows. A GPU's products of few rows are other kernels, with scratch
  // of their own. A CPU's are cut into other blocks, by the sizes of its caches. Both change most at
  // multiples of 64 rows.
  template <class WorkOnRows>
  void reserve_scratch_for_fewer(Context& context, std::int64_t most, const WorkOnRows& work) {
    constexpr std::int64_t kStep = 64, kFew = 2048;
    for (std::int64_t rows = 1; rows < most && rows <= kFew; rows += std::min(rows, kStep)) {
      reserve_scratch_for(context, [&](const Tensors& t) { work(t, rows); });
    }
  }

  const MemoryPlan& plan() const { return plan_; }

  // Takes the planned memory, the Context's scratch included.
  void take(Context& context) {
    take(context.device().device);
    context.reserve_scratch(plan_.workspace_bytes);
  }
  void take(Device device) {
    arenas_.emplace(plan_, device);
    tensors_ = allocate_(*arenas_);
  }

  // Without data until the memory is taken.
  const Tensors& tensors() const { return tensors_; }
  // The memory that was taken.
  const Arenas& arenas() const { return *arenas_; }

 private:
  MemoryPlan record(Context& context, const Work& work) const {
    Recorder recorder;
    const Tensors tensors = allocate_(recorder);
    const Recording recording(context, recorder);
    work(tensors);
    return recorder.plan();
  }

  Allocate allocate_;
  MemoryPlan plan_;
  std::optional<Arenas> arenas_;
  Tensors tensors_;
};

}  // namespace warpwright
