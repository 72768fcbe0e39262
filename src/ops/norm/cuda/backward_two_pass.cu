// The backward of a normalization for rows of any length, alignment and dtypes.
//   1. A warp, or a block for long rows, computes the two means of its row.
//   2. Each thread walks down a column over a chunk of the rows. It computes dx and the column's sums of
//      dweight and dbias. No other thread touches these, so no atomics are needed; column_sums.cuh adds up
//      the chunks.
// Traffic: it reads dout and x (or out) twice and writes dx once; 4·C floats per chunk and 2·N more.
#include <algorithm>

#include "ops/cuda/reduce.cuh"
#include "ops/norm/cuda/column_sums.cuh"
#include "ops/norm/cuda/element.cuh"
#include "ops/norm/cuda/lost_columns.cuh"

namespace warpwright::ops {
namespace norm::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kColumns = gpu::kWarp, kRows = kThreads / kColumns;

template <class X, class P, class O>
struct Arguments {
  using A = Arithmetic<X>;
  const O *dout, *out;  // out: replaces x
  const X *x, *addend;  // addend: added to dx, or null; may be dx
  const P *weight, *bias;
  const A *mean, *rstd;
  X* dx;
  A *parts, *means;  // (chunks, 2, C); (N, 2): of g and of g·x̂
  KeptColumns<X> kept;
  LostRule<A> lost;
  std::int64_t N, C, chunk;  // rows per chunk
  bool centered;

  __device__ A row_mean(std::int64_t row) const { return centered && mean ? mean[row] : A(0); }
};

// Rounds the product before it is added to anything, so that a gradient that is 0 by its formula (C = 1) is
// 0.
__device__ inline float product(float a, float b) {
  return __fmul_rn(a, b);
}
__device__ inline double product(double a, double b) {
  return __dmul_rn(a, b);
}

template <class X, class P, class O, bool long_row>
__global__ void __launch_bounds__(kThreads) row_means(const __grid_constant__ Arguments<X, P, O> a) {
  using A = Arithmetic<X>;
  constexpr int kGroup = long_row ? kThreads : gpu::kWarp;
  __shared__ A sums[2][kThreads / gpu::kWarp];
  const std::int64_t row = static_cast<std::int64_t>(blockIdx.x) * (kThreads / kGroup) + threadIdx.x / kGroup;
  const int thread = static_cast<int>(threadIdx.x) % kGroup;
  if (row >= a.N) return;
  const A m = a.row_mean(row), r = a.rstd[row];
  A sum_g = 0, sum_gx = 0;
  for (std::int64_t c = thread; c < a.C; c += kGroup) {
    const std::int64_t i = row * a.C + c;
    const A d = to_arithmetic<A>(a.dout[i]), g = product(d, element_or<A>(a.weight, c, 1));
    sum_g += g;
    if (a.out) {
      sum_gx += d * (to_arithmetic<A>(a.out[i]) - element_or<A>(a.bias, c, 0));
    } else {
      sum_gx += g * ((to_arithmetic<A>(a.x[i]) - m) * r);
    }
  }
  // Replaces the contribution of out by the kept values of lost columns.
  for (int place = thread; a.out && place < a.kept.places(); place += kGroup) {
    const std::int64_t c = a.kept.columns[1 + place], i = row * a.C + c;
    const A x_hat = (to_arithmetic<A>(a.kept.values[row * a.kept.capacity + place]) - m) * r;
    const A told = to_arithmetic<A>(a.out[i]) - element_or<A>(a.bias, c, 0);
    sum_gx += to_arithmetic<A>(a.dout[i]) * (element_or<A>(a.weight, c, 1) * x_hat - told);
  }
  if constexpr (long_row) {
    sum_g = gpu::block_sum(sum_g, sums[0]);
    sum_gx = gpu::block_sum(sum_gx, sums[1]);
  } else {
    sum_g = gpu::warp_sum(sum_g);
    sum_gx = gpu::warp_sum(sum_gx);
  }
  if (thread > 0) return;
  a.means[2 * row] = a.centered ? sum_g / static_cast<A>(a.C) : A(0);
  a.means[2 * row + 1] = sum_gx / static_cast<A>(a.C);
}

template <class X, class P, class O>
__global__ void __launch_bounds__(kThreads) columns(const __grid_constant__ Arguments<X, P, O> a) {
  using A = Arithmetic<X>;
  __shared__ A sums[2][kRows][kColumns];
  const int lane = static_cast<int>(threadIdx.x) % kColumns, first = static_cast<int>(threadIdx.x) / kColumns;
  const std::int64_t c = static_cast<std::int64_t>(blockIdx.y) * kColumns + lane;
  const std::int64_t chunk = blockIdx.x, end = (chunk + 1) * a.chunk < a.N ? (chunk + 1) * a.chunk : a.N;
  A dweight = 0, dbias = 0;
  if (c < a.C) {
    const A w = element_or<A>(a.weight, c, 1), b = element_or<A>(a.bias, c, 0);
    const bool is_lost = a.out && a.lost(w, b);
    const int place = is_lost ? a.kept.place(static_cast<int>(c), a.kept.places()) : -1;
    const A inverse = is_lost ? static_cast<A>(__int_as_float(0x7fffffff)) : 1 / w;
    for (std::int64_t row = chunk * a.chunk + first; row < end; row += kRows) {
      const std::int64_t i = row * a.C + c;
      const A d = to_arithmetic<A>(a.dout[i]), m = a.row_mean(row), r = a.rstd[row];
      A x_hat;
      if (!a.out) {
        x_hat = (to_arithmetic<A>(a.x[i]) - m) * r;
      } else if (place >= 0) {
        x_hat = (to_arithmetic<A>(a.kept.values[row * a.kept.capacity + place]) - m) * r;
      } else {
        x_hat = (to_arithmetic<A>(a.out[i]) - b) * inverse;
      }
      dweight = fma(d, x_hat, dweight);
      dbias += d;
      A gradient = r * (product(d, w) - a.means[2 * row] - x_hat * a.means[2 * row + 1]);
      if (a.addend) gradient += to_arithmetic<A>(a.addend[i]);
      a.dx[i] = from_arithmetic<X>(gradient);
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
  const Arguments<X, P, O> a{
      data_of<const O>(args.dout),
      data_of<const O>(args.out),
      data_of<const X>(args.x),
      args.dx_store == Store::add ? data_of<const X>(args.dx) : data_of<const X>(args.dsum),
      data_of<const P>(args.weight),
      data_of<const P>(args.bias),
      data_of<const A>(args.mean),
      data_of<const A>(args.rstd),
      data_of<X>(args.dx),
      parts,
      parts + chunks * 2 * C,
      kept_columns_of<X>(args.lost),
      LostRule<A>::of(args.dout.dtype),
      N,
      C,
      chunks > 0 ? (N + chunks - 1) / chunks : 0,
      args.centered};
  const cudaStream_t stream = context.stream().get();
  if (N > 0) {
    if (is_long_row(C)) {
      row_means<X, P, O, true><<<static_cast<unsigned>(N), kThreads, 0, stream>>>(a);
    } else {
      constexpr int kOfBlock = kThreads / gpu::kWarp;
      row_means<X, P, O, false>
          <<<static_cast<unsigned>((N + kOfBlock - 1) / kOfBlock), kThreads, 0, stream>>>(a);
    }
    warpwright::cuda::check_launch("norm backward cuda.two_pass, rows");
    const dim3 grid(static_cast<unsigned>(chunks), static_cast<unsigned>((C + kColumns - 1) / kColumns));
    columns<X, P, O><<<grid, kThreads, 0, stream>>>(a);
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
