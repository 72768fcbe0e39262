// LayerNorm's backward with partial sums in shared memory and atomics, after llm.c: a warp for each row. Each
// block sums dweight and dbias of its rows in shared memory and adds them to the gradients at its end.
// Memory-bound: dout and x are read twice (the second time from the caches) and dx is written once; each
// block adds 2·C numbers in the second-level cache.
//
// Both additions are atomic. Their order changes from run to run, so the bits do, too. The other kernels add
// in a fixed order.
//
// Warps after the last row take part in everything that the block does together: they clear their share of
// the shared memory, reach both barriers and add their share of the columns.
#include "ops/cuda/launch.cuh"
#include "ops/cuda/reduce.cuh"
#include "ops/norm/cuda/element.cuh"
#include "ops/norm/kernels.hpp"
#include "ops/options.hpp"
#include "runtime/cuda/check.hpp"

namespace warpwright::ops {
namespace norm::cuda {
namespace {

constexpr std::string_view kOperation = "norm.backward", kKernel = "cuda.ladder_atomics";
constexpr const char* kName = "norm.backward cuda.ladder_atomics";

struct Option {
  int threads;

  std::string text() const { return "block " + std::to_string(threads); }
};
constexpr std::array kOptions{Option{512}, Option{128}, Option{256}, Option{1024}};

struct Rows {
  const float *dout, *x, *weight, *mean, *rstd;  // weight may be null
  const float* addend;                           // added to dx, or null; may be dx
  float *dx, *dweight, *dbias;                   // dweight and dbias may be null
  std::int64_t N, C;
};

// Computes dx of one row, and adds its part of the columns' sums to those of the block.
__device__ void differentiate(const Rows& a, std::int64_t row, float* dbias, float* dweight) {
  const int lane = static_cast<int>(threadIdx.x) % gpu::kWarp;
  const float *dout = a.dout + row * a.C, *x = a.x + row * a.C;
  const float mean = a.mean[row], rstd = a.rstd[row];
  // g = dout·weight, rounded before it is added to anything: a gradient that is 0 by its formula (C = 1) is
  // 0.
  const auto g_of = [&](std::int64_t c) { return __fmul_rn(dout[c], a.weight ? a.weight[c] : 1.0f); };
  float sum_g = 0, sum_gx = 0;
  for (std::int64_t c = lane; c < a.C; c += gpu::kWarp) {
    const float g = g_of(c);
    sum_g += g;
    sum_gx += g * ((x[c] - mean) * rstd);
  }
  const float mean_g = gpu::warp_sum(sum_g) / static_cast<float>(a.C);
  const float mean_gx = gpu::warp_sum(sum_gx) / static_cast<float>(a.C);
  for (std::int64_t c = lane; c < a.C; c += gpu::kWarp) {
    const std::int64_t i = row * a.C + c;
    const float x_hat = (x[c] - mean) * rstd;
    atomicAdd(dbias + c, dout[c]);
    atomicAdd(dweight + c, x_hat * dout[c]);
    float gradient = rstd * (g_of(c) - mean_g - x_hat * mean_gx);
    if (a.addend) gradient += a.addend[i];
    a.dx[i] = gradient;
  }
}

__global__ void __launch_bounds__(1024) rows_of_block(const __grid_constant__ Rows a) {
  extern __shared__ float sums[];  // dbias (C), dweight (C)
  for (std::int64_t i = threadIdx.x; i < 2 * a.C; i += blockDim.x) sums[i] = 0;
  __syncthreads();
  const std::int64_t row =
      static_cast<std::int64_t>(blockIdx.x) * (blockDim.x / gpu::kWarp) + threadIdx.x / gpu::kWarp;
  if (row < a.N) differentiate(a, row, sums, sums + a.C);
  __syncthreads();
  for (std::int64_t c = threadIdx.x; c < a.C; c += blockDim.x) {
    if (a.dbias) atomicAdd(a.dbias + c, sums[c]);
    if (a.dweight) atomicAdd(a.dweight + c, sums[a.C + c]);
  }
}

std::size_t shared_bytes(std::int64_t C) {
  return 2 * sizeof(float) * static_cast<std::size_t>(C);
}

const Option& option_for(const NormBackwardProblem& p, const DeviceInfo& device) {
  return option_of(kOptions, kOperation, kKernel, p, device);
}

void zero(const Tensor& gradient, cudaStream_t stream) {
  if (!gradient) return;
  const auto bytes = static_cast<std::size_t>(gradient.elements()) * sizeof(float);
  warpwright::cuda::check(cudaMemsetAsync(gradient.data, 0, bytes, stream), kName);
}

void atomics_backward(const Context& context, const NormBackward& args) {
  const std::int64_t N = args.dx.shape[0], C = args.dx.shape[1];
  const cudaStream_t stream = context.stream().get();
  if (args.dparameters_store == Store::assign) {
    zero(args.dweight, stream);
    zero(args.dbias, stream);
  }
  if (N == 0) return;
  const Rows rows{data_of<const float>(args.dout),
                  data_of<const float>(args.x),
                  data_of<const float>(args.weight),
                  data_of<const float>(args.mean),
                  data_of<const float>(args.rstd),
                  data_of<const float>(args.dx_store == Store::add ? args.dx : args.dsum),
                  data_of<float>(args.dx),
                  data_of<float>(args.dweight),
                  data_of<float>(args.dbias),
                  N,
                  C};
  const int threads = option_for(args.problem(), context.device()).threads;
  const std::int64_t of_block = threads / gpu::kWarp;
  gpu::allow_shared(rows_of_block, shared_bytes(C));
  rows_of_block<<<static_cast<unsigned>((N + of_block - 1) / of_block), static_cast<unsigned>(threads),
                  shared_bytes(C), stream>>>(rows);
  warpwright::cuda::check_launch(kName);
}

Refusal refuse_atomics(const NormBackwardProblem& p, const DeviceInfo& device) {
  if (!p.centered) return "computes no RMS normalization";
  if (p.from_out) return "reads x, not the output";
  if (shared_bytes(p.C) <= device.gpu.shared_bytes_per_block) return {};
  return "the sums of a row take " + std::to_string(shared_bytes(p.C)) +
         " bytes of shared memory, a block has " + std::to_string(device.gpu.shared_bytes_per_block);
}

std::string atomics_configuration(const NormBackwardProblem& p, const DeviceInfo& device) {
  return option_for(p, device).text();
}
std::vector<Configuration> atomics_configurations(const NormBackwardProblem&, const DeviceInfo&) {
  return configurations_of(kOptions);
}

}  // namespace
}  // namespace norm::cuda

WARPWRIGHT_KERNEL(NormBackward, "cuda.ladder_atomics"_kernel) = {
    .needs = Needs::gpu,
    .dtypes = {DType::f32},
    .run = norm::cuda::atomics_backward,
    .refuse = norm::cuda::refuse_atomics,
    .configuration = norm::cuda::atomics_configuration,
    .configurations = norm::cuda::atomics_configurations,
    .only_forced = true,
    .repeats = false};

}  // namespace warpwright::ops
