// The backward of a normalization for rows of any length, alignment and dtypes.
//   1. A warp, or a block for long rows, computes the two means of its row.
//   2. Each thread walks down a column over a chunk of the rows. It computes dx and the column's sums of
//      dweight and dbias. No other thread touches these, so no atomics are needed; column_sums.cuh adds up
//      the chunks.
// Traffic: it reads dout and x (or out) twice and writes dx once; 4·C floats per chunk and 2·N more.
#include <algorithm>

#include "ops/norm/cuda/backward_element.cuh"
#include "ops/norm/cuda/column_sums.cuh"

namespace warpwright::ops {
namespace norm::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kColumns = gpu::kWarp, kRows = kThreads / kColumns;

template <class X, class P, class O, bool long_row>
__global__ void __launch_bounds__(kThreads)
    row_means(const __grid_constant__ BackwardElements<X, P, O> a, Arithmetic<X>* means) {
  constexpr int kGroup = long_row ? kThreads : gpu::kWarp;
  __shared__ Arithmetic<X> sums[2 * kThreads / gpu::kWarp];
  const std::int64_t row = static_cast<std::int64_t>(blockIdx.x) * (kThreads / kGroup) + threadIdx.x / kGroup;
  if (row >= a.N) return;
  Arithmetic<X> mean_g, mean_gx;
  row_means_of<kGroup>(a, row, sums, mean_g, mean_gx);
  if (threadIdx.x % kGroup > 0) return;
  means[2 * row] = mean_g;
  means[2 * row + 1] = mean_gx;
}

template <class X, class P, class O>
__global__ void __launch_bounds__(kThreads)
    columns(const __grid_constant__ BackwardElements<X, P, O> a, const Arithmetic<X>* means) {
  using A = Arithmetic<X>;
  __shared__ A sums[2][kRows][kColumns];
  const int lane = static_cast<int>(threadIdx.x) % kColumns, first = static_cast<int>(threadIdx.x) / kColumns;
  const std::int64_t c = static_cast<std::int64_t>(blockIdx.y) * kColumns + lane;
  const std::int64_t chunk = blockIdx.x, begin = chunk * a.rows_per_part;
  const std::int64_t end = begin + a.rows_per_part < a.N ? begin + a.rows_per_part : a.N;
  A dweight = 0, dbias = 0;
  if (c < a.C) {
    const BackwardColumn<X, P, O> column{a, c};
    for (std::int64_t row = begin + first; row < end; row += kRows) {
      const std::int64_t i = row * a.C + c;
      const A d = to_arithmetic<A>(a.dout[i]), r = a.rstd[row];
      const A x_hat = column.x_hat(row, a.row_mean(row), r);
      dweight = fma(d, x_hat, dweight);
      dbias += d;
      a.dx[i] = column.gradient(row, d, x_hat, r, means[2 * row], means[2 * row + 1]);
    }
  }
  sums[0][first][lane] = dweight;
  sums[1][first][lane] = dbias;
  __syncthreads();
  if (first > 1 || c >= a.C) return;  // the first warp adds dweight, the second dbias
  A sum = 0;
  for (int other = 0; other < kRows; ++other) sum += sums[first][other][lane];
  a.parts[(chunk * 2 + first) * a.C + c] = sum;
}

// The number of chunks of rows, each of which has a part of dweight and dbias. It depends only on problem and
// device, so that the sums always have the same bits.
int chunks_of(std::int64_t N, std::int64_t C, const DeviceInfo& device) {
  constexpr std::int64_t kLeastRows = 32, kBlocksOfMultiprocessor = 16;
  const std::int64_t columns = (C + gpu::kWarp - 1) / gpu::kWarp;
  const std::int64_t most =
      std::max<std::int64_t>(kBlocksOfMultiprocessor * device.gpu.multiprocessors / columns, 1);
  return static_cast<int>(std::min((N + kLeastRows - 1) / kLeastRows, most));
}

template <class X, class P, class O>
void backward_as(const Context& context, const NormBackward& args, NormTypes<X, P, O>) {
  using A = Arithmetic<X>;
  const std::int64_t N = args.dx.shape[0], C = args.dx.shape[1];
  const int chunks = chunks_of(N, C, context.device());
  auto* parts = static_cast<A*>(context.scratch());
  A* means = parts + chunks * 2 * C;  // (N, 2): of g and of g·x̂
  const auto a = backward_elements<X, P, O>(args, parts, chunks > 0 ? (N + chunks - 1) / chunks : 0);
  const cudaStream_t stream = context.stream().get();
  if (N > 0) {
    if (is_long_row(C)) {
      row_means<X, P, O, true><<<static_cast<unsigned>(N), kThreads, 0, stream>>>(a, means);
    } else {
      constexpr int kOfBlock = kThreads / gpu::kWarp;
      row_means<X, P, O, false>
          <<<static_cast<unsigned>((N + kOfBlock - 1) / kOfBlock), kThreads, 0, stream>>>(a, means);
    }
    warpwright::cuda::check_launch("norm backward cuda.two_pass, rows");
    const dim3 grid(static_cast<unsigned>(chunks), static_cast<unsigned>((C + kColumns - 1) / kColumns));
    columns<X, P, O><<<grid, kThreads, 0, stream>>>(a, means);
    warpwright::cuda::check_launch("norm backward cuda.two_pass, columns");
  }
  add_column_sums(context, args, parts, chunks);
}

void backward(const Context& context, const NormBackward& args) {
  visit_norm_types(args.dx.dtype, args.weight, args.dout.dtype,
                   [&](auto types) { backward_as(context, args, types); });
}

std::size_t workspace(const NormBackwardProblem& p, const DeviceInfo& device) {
  const std::int64_t elements = chunks_of(p.N, p.C, device) * 2 * p.C + 2 * p.N;
  return static_cast<std::size_t>(elements) * size_of(accumulation_dtype(p.dtype));
}

std::string configuration(const NormBackwardProblem& p, const DeviceInfo& device) {
  return std::string(owner_of_row(p.C)) + " a row, " + std::to_string(chunks_of(p.N, p.C, device)) +
         " chunks";
}

}  // namespace
}  // namespace norm::cuda

WARPWRIGHT_KERNEL(NormBackward, "cuda.two_pass"_kernel) = {.needs = Needs::gpu,
                                                           .dtypes = kFloatingDTypes,
                                                           .run = norm::cuda::backward,
                                                           .workspace = norm::cuda::workspace,
                                                           .configuration = norm::cuda::configuration};

}  // namespace warpwright::ops
