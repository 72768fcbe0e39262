// The backward of a normalization with the gradients of weight and bias in two stages, for rows of any
// length, alignment and dtypes. The block shapes of both stages are a configuration; the first is the
// default.
//   1. A block of 32 × Y threads takes 32 columns and one part of the rows, Y² rows at a time. A thread has Y
//      neighbouring columns of one of these rows, so Y loads are under way at once. The block's sums meet in
//      shared memory, whose rows are padded to 33 columns against bank conflicts.
//   2. column_sums.cuh adds up the parts.
//   3. A warp, or a block for long rows, computes the means of its row and dx. It comes last, since dx may
//      overwrite out.
// Traffic: it reads dout and x (or out) three times and writes dx once; the third reading hits the caches.
// 4·C floats per part.
#include <algorithm>
#include <array>

#include "ops/norm/cuda/backward_element.cuh"
#include "ops/norm/cuda/column_sums.cuh"

namespace warpwright::ops {
namespace norm::cuda {
namespace {

constexpr std::string_view kName = "cuda.two_stage";
constexpr int kThreads = 256;  // of the blocks that compute dx

struct Stages {
  int y;      // threads of the first stage's block, by 32
  int parts;  // at most
  int warps;  // of the second stage's block

  std::string text() const {
    return "32x" + std::to_string(y) + ", " + std::to_string(parts) + " parts, 32x" + std::to_string(warps);
  }
};
constexpr std::array<Stages, 6> kStages{
    {{4, 16, 8}, {8, 16, 8}, {4, 64, 8}, {8, 64, 8}, {4, 256, 32}, {8, 256, 32}}};

Stages stages_of(const NormBackwardProblem& p, const DeviceInfo& device) {
  const auto tuned = tuned_configuration("norm.backward", kName, p, device);
  for (const Stages& stages : kStages) {
    if (tuned && stages.text() == *tuned) return stages;
  }
  return kStages[0];
}

// Parts have whole groups of Y² rows, so the last ones may be empty and are left out.
std::int64_t rows_per_part(const Stages& stages, std::int64_t N) {
  const std::int64_t group = stages.y * stages.y, groups = (N + group - 1) / group;
  return (groups + stages.parts - 1) / stages.parts * group;
}
int parts_with_rows(const Stages& stages, std::int64_t N) {
  const std::int64_t rows = rows_per_part(stages, N);
  return rows > 0 ? static_cast<int>((N + rows - 1) / rows) : 0;
}

template <class X, class P, class O, int Y>
__global__ void __launch_bounds__(gpu::kWarp* Y)
    part_sums(const __grid_constant__ BackwardElements<X, P, O> a) {
  using A = Arithmetic<X>;
  constexpr int kGroup = Y * Y, kPadded = gpu::kWarp + 1;
  __shared__ A sums[2][kGroup][kPadded];
  const int lane = static_cast<int>(threadIdx.x), y = static_cast<int>(threadIdx.y);
  const int in_columns = lane * Y % gpu::kWarp, in_rows = lane * Y / gpu::kWarp + y * Y;
  const std::int64_t first_column = static_cast<std::int64_t>(blockIdx.x) * gpu::kWarp;
  const std::int64_t begin = static_cast<std::int64_t>(blockIdx.y) * a.rows_per_part;
  const std::int64_t end = begin + a.rows_per_part < a.N ? begin + a.rows_per_part : a.N;
  A dweight[Y] = {}, dbias[Y] = {};
  for (std::int64_t row = begin + in_rows; row < end; row += kGroup) {
    const A m = a.row_mean(row), r = a.rstd[row];
#pragma unroll
    for (int k = 0; k < Y; ++k) {
      const std::int64_t c = first_column + in_columns + k;
      if (c >= a.C) break;
      const A d = to_arithmetic<A>(a.dout[row * a.C + c]);
      dweight[k] = fma(d, BackwardColumn<X, P, O>{a, c}.x_hat(row, m, r), dweight[k]);
      dbias[k] += d;
    }
  }
#pragma unroll
  for (int k = 0; k < Y; ++k) {
    sums[0][in_rows][in_columns + k] = dweight[k];
    sums[1][in_rows][in_columns + k] = dbias[k];
  }
  __syncthreads();
  // Warp 0 adds dweight by column, and warp 1 dbias.
  const std::int64_t c = first_column + lane;
  if (y > 1 || c >= a.C) return;
  A sum = 0;
  for (int row = 0; row < kGroup; ++row) sum += sums[y][row][lane];
  a.parts[(static_cast<std::int64_t>(blockIdx.y) * 2 + y) * a.C + c] = sum;
}

template <class X, class P, class O, bool long_row>
__global__ void __launch_bounds__(kThreads)
    row_gradients(const __grid_constant__ BackwardElements<X, P, O> a) {
  using A = Arithmetic<X>;
  constexpr int kGroup = long_row ? kThreads : gpu::kWarp;
  __shared__ A sums[2 * kThreads / gpu::kWarp];
  const std::int64_t row = static_cast<std::int64_t>(blockIdx.x) * (kThreads / kGroup) + threadIdx.x / kGroup;
  if (row >= a.N) return;  // no barrier follows: a block with a row of its own has all its threads
  A mean_g, mean_gx;
  row_means_of<kGroup>(a, row, sums, mean_g, mean_gx);
  const A m = a.row_mean(row), r = a.rstd[row];
  for (std::int64_t c = static_cast<int>(threadIdx.x) % kGroup; c < a.C; c += kGroup) {
    const BackwardColumn<X, P, O> column{a, c};
    const std::int64_t i = row * a.C + c;
    a.dx[i] = column.gradient(row, to_arithmetic<A>(a.dout[i]), column.x_hat(row, m, r), r, mean_g, mean_gx);
  }
}

template <class X, class P, class O>
void backward_as(const Context& context, const NormBackward& args, NormTypes<X, P, O>) {
  const std::int64_t N = args.dx.shape[0], C = args.dx.shape[1];
  const Stages stages = stages_of(args.problem(), context.device());
  const int parts = parts_with_rows(stages, N);
  const auto a = backward_elements<X, P, O>(args, context.scratch(), rows_per_part(stages, N));
  const cudaStream_t stream = context.stream().get();
  if (parts > 0 && (args.dweight || args.dbias)) {
    const dim3 grid(static_cast<unsigned>((C + gpu::kWarp - 1) / gpu::kWarp), static_cast<unsigned>(parts));
    const dim3 block(gpu::kWarp, static_cast<unsigned>(stages.y));
    const auto kernel = stages.y == 4 ? part_sums<X, P, O, 4> : part_sums<X, P, O, 8>;
    kernel<<<grid, block, 0, stream>>>(a);
    warpwright::cuda::check_launch("norm backward cuda.two_stage, parts");
  }
  add_column_sums(context, args, context.scratch(), parts, stages.warps);
  if (N == 0) return;
  if (is_long_row(C)) {
    row_gradients<X, P, O, true><<<static_cast<unsigned>(N), kThreads, 0, stream>>>(a);
  } else {
    constexpr int kOfBlock = kThreads / gpu::kWarp;
    row_gradients<X, P, O, false>
        <<<static_cast<unsigned>((N + kOfBlock - 1) / kOfBlock), kThreads, 0, stream>>>(a);
  }
  warpwright::cuda::check_launch("norm backward cuda.two_stage, rows");
}

void backward(const Context& context, const NormBackward& args) {
  visit_norm_types(args.dx.dtype, args.weight, args.dout.dtype,
                   [&](auto types) { backward_as(context, args, types); });
}

std::size_t workspace(const NormBackwardProblem& p, const DeviceInfo& device) {
  const std::int64_t elements = parts_with_rows(stages_of(p, device), p.N) * 2 * p.C;
  return static_cast<std::size_t>(elements) * size_of(accumulation_dtype(p.dtype));
}

std::string configuration(const NormBackwardProblem& p, const DeviceInfo& device) {
  return stages_of(p, device).text();
}

std::vector<Configuration> configurations(const NormBackwardProblem&, const DeviceInfo&) {
  std::vector<Configuration> all;
  for (const Stages& stages : kStages) all.push_back({stages.text()});
  return all;
}

}  // namespace
}  // namespace norm::cuda

WARPWRIGHT_KERNEL(NormBackward, "cuda.two_stage"_kernel) = {.needs = Needs::gpu,
                                                            .dtypes = kFloatingDTypes,
                                                            .run = norm::cuda::backward,
                                                            .workspace = norm::cuda::workspace,
                                                            .configuration = norm::cuda::configuration,
                                                            .configurations = norm::cuda::configurations};

}  // namespace warpwright::ops
