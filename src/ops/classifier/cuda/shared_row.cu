// Softmax cross entropy and its gradient on a GPU. Each row stays in shared memory from its first use to its
// last, so the logits cross the bus to device memory once in each direction.
//
// Blocks are persistent and process many rows. With GPT-2's vocabulary in bf16 (100 KB per row), a
// multiprocessor of an H200 holds two blocks; one computes while the row of the other arrives. Each thread
// copies, reads and replaces its own packs of 16 bytes. Only a row's two sums therefore need barriers, and a
// thread requests the next row's pack as soon as it has used this row's.
//
// Traffic: 2 · N · Vp elements. Arithmetic: 2⅛ exponentials per element; in bf16 on an H200 they take 0.6 of
// the time that memory needs. docs/kernels.md lists the speed that the kernel reaches.
#include <algorithm>

#include "ops/classifier/classifier.hpp"
#include "ops/classifier/cuda/row.cuh"
#include "ops/cuda/cp_async.cuh"
#include "ops/cuda/launch.cuh"
#include "runtime/cuda/check.hpp"

namespace warpwright::ops::classifier_kernels {
namespace {

constexpr int kThreads = 512, kBlocks = 2;  // the registers of a multiprocessor suffice for this many
constexpr std::size_t kBesideRow = 2048;    // shared memory of a block: ReductionSpace and CUDA's own 1 KB

// A row in shared memory. Each pack belongs to one thread.
template <class T>
struct SharedRow {
  using Pack = gpu::Packed<T>;
  static constexpr int kLanes = Pack::kLanes;

  T* space;
  int V, packs;  // packs: those that contain a real column

  __device__ SharedRow(void* memory, std::int64_t columns)
      : space(static_cast<T*>(memory)), V(static_cast<int>(columns)), packs((V + kLanes - 1) / kLanes) {}

  // Calls f with the first column of each of this thread's packs.
  template <class F>
  __device__ void for_each_pack(const F& f) const {
    for (int i = static_cast<int>(threadIdx.x); i < packs; i += static_cast<int>(blockDim.x)) f(i * kLanes);
  }

  __device__ Normalizer normalizer() const {
    Normalizer n;
    for_each_pack([&](int v) {
      float x[kLanes];
      Pack::load(space + v).to_floats(x);
      if (v + kLanes > V) {
#pragma unroll
        for (int j = 0; j < kLanes; ++j) x[j] = v + j < V ? x[j] : -INFINITY;
      }
      n.add(x);
    });
    return n;
  }

  // Writes the gradient to `row`. If there is a `next` row, its packs are requested into the same shared
  // memory.
  __device__ void write(const RowState& state, T* row, const T* next) const {
    for_each_pack([&](int v) {
      float x[kLanes];
      Pack::load(space + v).to_floats(x);
      state.to_gradient(x, v, V);
      Pack::from_floats(x).store_streaming(row + v);
      if (next) gpu::cp_async_16(space + v, next + v);
    });
  }
};

template <class T>
__global__ void __launch_bounds__(kThreads, kBlocks) shared_rows(const Rows<T> rows) {
  extern __shared__ uint4 memory[];
  __shared__ ReductionSpace shared;
  const SharedRow<T> r(memory, rows.V);
  constexpr int kLanes = SharedRow<T>::kLanes;
  std::int64_t n = blockIdx.x;  // at most one block per row is launched
  r.for_each_pack([&](int v) { gpu::cp_async_16(r.space + v, rows.row(n) + v); });
  while (n < rows.N) {
    T* row = rows.row(n);
    RowState state = rows.state(n);
    gpu::cp_async_wait_all();
    const Normalizer all = of_block(r.normalizer(), shared);
    state.normalize(all);
    if (threadIdx.x == 0) rows.losses[n] = state.loss(all);
    n += gridDim.x;
    r.write(state, row, n < rows.N ? rows.row(n) : nullptr);
    for (std::int64_t v = (r.packs + threadIdx.x) * kLanes; v < rows.Vp; v += blockDim.x * kLanes) {
      gpu::Packed<T>::zero().store_streaming(row + v);
    }
  }
}

template <class T>
void run(const Context& context, const Rows<T>& rows) {
  const GpuFeatures& gpu = context.device().gpu;
  const std::size_t bytes = static_cast<std::size_t>(rows.Vp) * sizeof(T);
  const int threads = threads_for(rows.Vp / gpu::kPackedLanes<T>, kThreads);
  const std::size_t by_memory = gpu.shared_bytes_per_multiprocessor / (bytes + kBesideRow);
  const std::size_t resident =
      std::clamp(by_memory, std::size_t{1}, static_cast<std::size_t>(kBlocks * kThreads / threads));
  const auto blocks =
      std::min(static_cast<std::size_t>(rows.N), resident * static_cast<std::size_t>(gpu.multiprocessors));
  gpu::allow_shared(shared_rows<T>, bytes);
  shared_rows<<<static_cast<unsigned>(blocks), threads, bytes, context.stream().get()>>>(rows);
  warpwright::cuda::check_launch("classifier cuda.shared_row");
}

Refusal refuse_shared_row(const ClassifierProblem& p, const DeviceInfo& device) {
  if (!p.gradient) return "without a gradient nothing is read twice";
  if (p.probabilities) return "writes no probabilities";
  const std::size_t bytes = static_cast<std::size_t>(p.Vp) * size_of(p.dtype);
  if (bytes % 16 != 0) return "the size of a row is not a multiple of 16 bytes";
  if (!p.aligned) return "a tensor does not begin at a multiple of 16 bytes";
  if (bytes + kBesideRow > device.gpu.shared_bytes_per_block) {
    return "a row does not fit in " + std::to_string(device.gpu.shared_bytes_per_block) +
           " bytes of shared memory";
  }
  return {};
}

void shared_row(const Context& context, const Classifier& args) {
  if (args.logits.shape[0] == 0) return;
  gpu::visit_gpu_dtype(args.logits.dtype,
                       [&](auto tag) { run(context, rows_of<typename decltype(tag)::type>(args)); });
}

}  // namespace
}  // namespace warpwright::ops::classifier_kernels

namespace warpwright::ops {

WARPWRIGHT_KERNEL(Classifier, "cuda.shared_row"_kernel) = {.needs = Needs::gpu,
                                                           .dtypes = kGpuDTypes,
                                                           .run = classifier_kernels::shared_row,
                                                           .refuse = classifier_kernels::refuse_shared_row};

}  // namespace warpwright::ops
