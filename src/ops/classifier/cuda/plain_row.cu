// Softmax cross entropy on a GPU in its simplest form: one block per row, one element at a time per thread.
// It reads the logits twice. It is there to be read, and as a baseline for timings.
#include "ops/classifier/classifier.hpp"
#include "ops/classifier/cuda/row.cuh"
#include "runtime/cuda/check.hpp"

namespace warpwright::ops::classifier_kernels {
namespace {

constexpr int kThreads = 1024;

template <class T>
__global__ void __launch_bounds__(kThreads) plain_rows(const Rows<T> rows) {
  __shared__ ReductionSpace shared;
  const std::int64_t n = blockIdx.x, thread = threadIdx.x;
  T* row = rows.row(n);
  RowState state = rows.state(n);

  Normalizer mine;
  for (std::int64_t v = thread; v < rows.V; v += kThreads) mine.add({gpu::to_float(row[v])});
  const Normalizer all = of_block(mine, shared);
  state.normalize(all);
  if (thread == 0) rows.losses[n] = state.loss(all);

  if (rows.probabilities) {
    for (std::int64_t v = thread; v < rows.V; v += kThreads) {
      const float p = exponential(gpu::to_float(row[v]) - state.largest) * state.inverse;
      rows.probabilities[n * rows.V + v] = gpu::from_float<T>(p);
    }
  }
  if (rows.gradient) {
    for (std::int64_t v = thread; v < rows.Vp; v += kThreads) {
      float x[1] = {v < rows.V ? gpu::to_float(row[v]) : 0.0f};
      state.to_gradient(x, v, rows.V);
      row[v] = gpu::from_float<T>(x[0]);
    }
  }
}

void plain_row(const Context& context, const Classifier& args) {
  if (args.logits.shape[0] == 0) return;
  gpu::visit_gpu_dtype(args.logits.dtype, [&](auto tag) {
    const auto rows = rows_of<typename decltype(tag)::type>(args);
    plain_rows<<<static_cast<unsigned>(rows.N), kThreads, 0, context.stream().get()>>>(rows);
  });
  warpwright::cuda::check_launch("classifier cuda.plain_row");
}

}  // namespace
}  // namespace warpwright::ops::classifier_kernels

namespace warpwright::ops {

WARPWRIGHT_KERNEL(Classifier, "cuda.plain_row"_kernel) = {
    .needs = Needs::gpu, .dtypes = kGpuDTypes, .run = classifier_kernels::plain_row};

}  // namespace warpwright::ops
