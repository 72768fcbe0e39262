// Softmax cross entropy on a GPU, with one block per row and 16 bytes per access. It takes rows of any
// alignment and length, and runs without a gradient, too. A row is read from device memory once. If it is
// needed again, for the gradient or the probabilities, the second read hits L2, which holds the rows of all
// running blocks: 100 KB each in bf16 with GPT-2's vocabulary.
#include "ops/classifier/classifier.hpp"
#include "ops/classifier/cuda/row.cuh"
#include "runtime/cuda/check.hpp"

namespace warpwright::ops::classifier_kernels {
namespace {

constexpr int kThreads = 512;
constexpr int kAhead = 4;  // packs that a thread requests before it uses them

// Divides a row into whole packs at multiples of 16 bytes and the elements before and after them. These are
// fewer than two packs, one element per thread.
template <class T>
struct Pieces {
  static constexpr int kLanes = gpu::kPackedLanes<T>;
  std::int64_t head, packs, edge;  // edge: this thread's column, or one ≥ V

  __device__ Pieces(const T* row, std::int64_t V) {
    const auto over = static_cast<std::int64_t>(reinterpret_cast<std::uintptr_t>(row) / sizeof(T) % kLanes);
    const std::int64_t until_aligned = over == 0 ? 0 : kLanes - over, thread = threadIdx.x;
    head = until_aligned < V ? until_aligned : V;
    packs = (V - head) / kLanes;
    edge = thread < head ? thread : thread + packs * kLanes;
  }
  __device__ std::int64_t column(std::int64_t pack) const { return head + pack * kLanes; }
};

template <class T>
__device__ Normalizer normalizer(const T* row, const Pieces<T>& pieces, std::int64_t V) {
  using Pack = gpu::Packed<T>;
  constexpr int kLanes = Pack::kLanes;
  const std::int64_t threads = blockDim.x;
  Normalizer n;
  if (pieces.edge < V) n.add({gpu::to_float(row[pieces.edge])});
  std::int64_t i = threadIdx.x;
  float x[kLanes];
  for (; i + (kAhead - 1) * threads < pieces.packs; i += kAhead * threads) {
    Pack ahead[kAhead];
#pragma unroll
    for (int k = 0; k < kAhead; ++k) ahead[k] = Pack::load(row + pieces.column(i + k * threads));
#pragma unroll
    for (int k = 0; k < kAhead; ++k) {
      ahead[k].to_floats(x);
      n.add(x);
    }
  }
  for (; i < pieces.packs; i += threads) {
    Pack::load(row + pieces.column(i)).to_floats(x);
    n.add(x);
  }
  return n;
}

// Writes `lanes` columns from v on, all of them real.
template <class T, int lanes>
__device__ void write_columns(const Rows<T>& rows, const RowState& state, T* row, T* probabilities,
                              std::int64_t v) {
  float x[lanes];
  gpu::Packed<T, lanes>::load(row + v).to_floats(x);
  if (probabilities) {
#pragma unroll
    for (int j = 0; j < lanes; ++j) {
      probabilities[v + j] = gpu::from_float<T>(exponential(x[j] - state.largest) * state.inverse);
    }
  }
  if (rows.gradient) {
    state.to_gradient(x, v, rows.V);
    gpu::Packed<T, lanes>::from_floats(x).store(row + v);
  }
}

template <class T>
__global__ void __launch_bounds__(kThreads) streamed_rows(const Rows<T> rows) {
  __shared__ ReductionSpace shared;
  const std::int64_t n = blockIdx.x;
  T* row = rows.row(n);
  RowState state = rows.state(n);
  const Pieces<T> pieces(row, rows.V);
  const Normalizer all = of_block(normalizer(row, pieces, rows.V), shared);
  state.normalize(all);
  if (threadIdx.x == 0) rows.losses[n] = state.loss(all);
  if (!rows.gradient && !rows.probabilities) return;
  T* probabilities = rows.probabilities ? rows.probabilities + n * rows.V : nullptr;
  for (std::int64_t i = threadIdx.x; i < pieces.packs; i += blockDim.x) {
    write_columns<T, Pieces<T>::kLanes>(rows, state, row, probabilities, pieces.column(i));
  }
  if (pieces.edge < rows.V) write_columns<T, 1>(rows, state, row, probabilities, pieces.edge);
  if (!rows.gradient) return;
  for (std::int64_t v = rows.V + threadIdx.x; v < rows.Vp; v += blockDim.x) row[v] = gpu::from_float<T>(0);
}

void streamed_row(const Context& context, const Classifier& args) {
  if (args.logits.shape[0] == 0) return;
  gpu::visit_gpu_dtype(args.logits.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    const auto rows = rows_of<T>(args);
    const int threads = threads_for(rows.V / gpu::kPackedLanes<T>, kThreads);
    streamed_rows<<<static_cast<unsigned>(rows.N), threads, 0, context.stream().get()>>>(rows);
  });
  warpwright::cuda::check_launch("classifier cuda.streamed_row");
}

}  // namespace
}  // namespace warpwright::ops::classifier_kernels

namespace warpwright::ops {

WARPWRIGHT_KERNEL(Classifier, "cuda.streamed_row"_kernel) = {
    .needs = Needs::gpu, .dtypes = kGpuDTypes, .run = classifier_kernels::streamed_row};

}  // namespace warpwright::ops
