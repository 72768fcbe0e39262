// LayerNorm's forward with a warp for each row, one number per lane at a time, after llm.c: a row is read
// three times, for its mean, for its variance and for the output. Memory-bound: x and out move once if the
// caches keep a row for the second and third reading.
//
// The loads of the last reading and all stores may be marked as streaming, so that their lines are the first
// to leave the caches. This and the number of threads in a block are the kernel's configurations.
#include "ops/cuda/reduce.cuh"
#include "ops/cuda/streaming.cuh"
#include "ops/norm/cuda/element.cuh"
#include "ops/norm/kernels.hpp"
#include "ops/options.hpp"
#include "runtime/cuda/check.hpp"

namespace warpwright::ops {
namespace norm::cuda {
namespace {

constexpr std::string_view kOperation = "norm.forward", kKernel = "cuda.ladder_streaming";

struct Option {
  int threads;
  bool loads, stores;  // that stream

  std::string text() const {
    const char* streaming = loads && stores ? "streaming"
                            : loads         ? "streaming loads"
                            : stores        ? "streaming stores"
                                            : "cached";
    return "block " + std::to_string(threads) + ", " + streaming;
  }
};

constexpr auto kOptions = [] {
  constexpr int kThreads[] = {512, 64, 128, 256, 1024};
  std::array<Option, 4 * std::size(kThreads)> options{};
  std::size_t next = 0;
  for (const int threads : kThreads) {
    for (const bool loads : {true, false}) {
      for (const bool stores : {true, false}) options[next++] = {threads, loads, stores};
    }
  }
  return options;
}();

struct Rows {
  const float *x, *weight, *bias;  // weight and bias may be null
  float *out, *mean, *rstd;        // mean and rstd may be null
  std::int64_t N, C;
  float eps;
};

template <bool loads, bool stores>
__global__ void __launch_bounds__(1024) normalize(const __grid_constant__ Rows a) {
  const int lane = static_cast<int>(threadIdx.x) % gpu::kWarp;
  const std::int64_t row =
      static_cast<std::int64_t>(blockIdx.x) * (blockDim.x / gpu::kWarp) + threadIdx.x / gpu::kWarp;
  if (row >= a.N) return;
  const float* x = a.x + row * a.C;
  const auto columns = static_cast<float>(a.C);

  float sum = 0;
  for (std::int64_t c = lane; c < a.C; c += gpu::kWarp) sum += x[c];
  float mean = gpu::warp_sum(sum) / columns;

  float rest = 0, squares = 0;  // rest: what rounding the mean left of Σ(x − mean)
  for (std::int64_t c = lane; c < a.C; c += gpu::kWarp) {
    const float centered = x[c] - mean;
    rest += centered;
    squares = fmaf(centered, centered, squares);
  }
  rest = gpu::warp_sum(rest) / columns;
  const float variance = gpu::warp_sum(squares) / columns - rest * rest;
  mean += rest;
  const float rstd = 1 / sqrtf((variance < 0 ? 0 : variance) + a.eps);  // NaN stays NaN

  float* out = a.out + row * a.C;
  for (std::int64_t c = lane; c < a.C; c += gpu::kWarp) {
    const float normalized = (gpu::load_number<loads>(x + c) - mean) * rstd;
    gpu::store_number<stores>(out + c,
                              fmaf(normalized, a.weight ? a.weight[c] : 1.0f, a.bias ? a.bias[c] : 0.0f));
  }
  if (lane == 0 && a.mean) gpu::store_number<stores>(a.mean + row, mean);
  if (lane == 0 && a.rstd) gpu::store_number<stores>(a.rstd + row, rstd);
}

const Option& option_for(const NormForwardProblem& p, const DeviceInfo& device) {
  return option_of(kOptions, kOperation, kKernel, p, device);
}

void streaming_forward(const Context& context, const NormForward& args) {
  const std::int64_t N = args.x.shape[0], C = args.x.shape[1];
  if (N == 0) return;
  const Option& option = option_for(args.problem(), context.device());
  const Rows rows{data_of<const float>(args.x),
                  data_of<const float>(args.weight),
                  data_of<const float>(args.bias),
                  data_of<float>(args.out),
                  data_of<float>(args.mean),
                  data_of<float>(args.rstd),
                  N,
                  C,
                  static_cast<float>(args.eps)};
  const auto kernel = option.loads    ? option.stores ? normalize<true, true> : normalize<true, false>
                         : option.stores ? normalize<false, true>
                                      : normalize<false, false>;
  const std::int64_t of_block = option.threads / gpu::kWarp;
  kernel<<<static_cast<unsigned>((N + of_block - 1) / of_block), static_cast<unsigned>(option.threads), 0,
           context.stream().get()>>>(rows);
  warpwright::cuda::check_launch("norm.forward cuda.ladder_streaming");
}

Refusal refuse_streaming(const NormForwardProblem& p, const DeviceInfo&) {
  if (!p.centered) return "computes no RMS normalization";
  if (p.residual) return "adds no residual";
  if (p.kept >= 0) return "keeps no lost columns";
  return {};
}

std::string streaming_configuration(const NormForwardProblem& p, const DeviceInfo& device) {
  return option_for(p, device).text();
}
std::vector<Configuration> streaming_configurations(const NormForwardProblem&, const DeviceInfo&) {
  return configurations_of(kOptions);
}

}  // namespace
}  // namespace norm::cuda

WARPWRIGHT_KERNEL(NormForward, "cuda.ladder_streaming"_kernel) = {
    .needs = Needs::gpu,
    .dtypes = {DType::f32},
    .run = norm::cuda::streaming_forward,
    .refuse = norm::cuda::refuse_streaming,
    .configuration = norm::cuda::streaming_configuration,
    .configurations = norm::cuda::streaming_configurations,
    .only_forced = true};

}  // namespace warpwright::ops
