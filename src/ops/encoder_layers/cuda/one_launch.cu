// The kernel of one_launch.cuh as a variant, of bf16 and fp16, on GPUs that hold enough clusters of its
// blocks at once. Memory-bound: the weights once; beside that, five barriers of the grid a layer.
#include <algorithm>
#include <any>
#include <cmath>
#include <map>
#include <memory>
#include <mutex>

#include "ops/cuda/refuse.hpp"
#include "ops/encoder_layers/cuda/one_launch.cuh"
#include "ops/encoder_layers/kernels.hpp"
#include "runtime/cuda/check.hpp"

namespace warpwright::ops::encoder_layers::cuda {
namespace {

constexpr std::string_view kWhat = "encoder_layers.forward cuda.one_launch";

template <class T, int kRowTiles, int kHeadSize, int kQueryTiles>
__global__ void __launch_bounds__(kThreads, 1) forward_kernel(const __grid_constant__ Parameters p) {
#if __CUDA_ARCH__ >= 900
  extern __shared__ uint4 shared[];
  Worker<T, kRowTiles, kHeadSize, kQueryTiles> worker(p, reinterpret_cast<std::byte*>(shared));
  worker.run();
#endif
}

using Kernel = void (*)(Parameters);

struct Plan {
  Kernel kernel = nullptr;
  int clusters = 0, warp_tiles = 0, shared_bytes = 0;
  int weight_bytes = 0, state_bytes = 0, sums_bytes = 0;
};

int aligned(std::int64_t bytes) {
  return static_cast<int>((bytes + 127) / 128 * 128);
}

// Of a grid that is there at once, as the barriers need it: as many as a GPU says it holds of them, with all
// of its shared memory; one that is only imagined has them on every multiprocessor.
int clusters_of(const DeviceInfo& device) {
  static std::mutex mutex;
  static std::map<int, int> known;
  const std::lock_guard lock(mutex);
  const auto [entry, is_new] = known.try_emplace(device.device.index, 0);
  if (!is_new) return entry->second;
  constexpr auto kKernel = forward_kernel<__half, 2, 64, 1>;
  cudaLaunchAttribute cluster{};
  cluster.id = cudaLaunchAttributeClusterDimension;
  cluster.val.clusterDim.x = kCluster;
  cluster.val.clusterDim.y = cluster.val.clusterDim.z = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(kMostClusters * kCluster);
  config.blockDim = dim3(kThreads);
  config.dynamicSmemBytes = device.gpu.shared_bytes_per_block;
  config.attrs = &cluster;
  config.numAttrs = 1;
  cudaError_t status = cudaFuncSetAttribute(kKernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                            static_cast<int>(config.dynamicSmemBytes));
  int most = device.gpu.multiprocessors / kCluster;
  if (status == cudaSuccess) status = cudaOccupancyMaxActiveClusters(&most, kKernel, &config);
  if (status == cudaErrorInsufficientDriver || status == cudaErrorNoDevice) {
    cudaGetLastError();
    status = cudaSuccess;
  }
  warpwright::cuda::check(status, kWhat);
  return entry->second = std::min(most, kMostClusters);
}

template <int kRowTiles, int kQueryTiles>
Plan plan_with(const EncoderLayersProblem& p, const DeviceInfo& device) {
  constexpr std::int64_t kElement = 2, kRows = 16 * kRowTiles, kQueries = 16 * kQueryTiles;
  Plan plan;
  plan.clusters = clusters_of(device);
  plan.warp_tiles = warp_tiles(kRowTiles);
  const std::int64_t HS = p.H / p.heads, depth = p.H / kCluster + kGap, wide_depth = p.I / kCluster + kGap;
  const auto share = [&](std::int64_t cols) {
    return std::int64_t{share_of(static_cast<int>(cols), plan.clusters)};
  };
  const std::int64_t qkv = share(3 * p.H), fc = share(p.I), narrow = share(p.H);
  // An odd last tile of eight columns is read with its neighbour.
  const auto tiles = [](std::int64_t cols) { return (cols + 15) / 16 * 16; };
  const auto slots = [&](int parts, std::int64_t cols) {
    return parts * kRows * sums_stride(static_cast<int>(cols)) * std::int64_t{4};
  };
  const std::int64_t keys = (p.N + 15) / 16 * 16;
  plan.weight_bytes = aligned(kElement * std::max({(tiles(qkv) + 8) * depth, (tiles(fc) + 8) * depth,
                                                   (tiles(narrow) + 8) * wide_depth}));
  // Two groups of rows beside the sums, but in the last product, whose sums take the states' place.
  const std::int64_t two = 2 * kElement * kRows * depth;
  plan.state_bytes = aligned(std::max(
      {two + slots(parts_of(kQkv), qkv), two + slots(parts_of(kQkv), fc),
       two + slots(parts_of(kProj), narrow), kElement * kRows * wide_depth, slots(parts_of(kProj), narrow),
       kElement * (kQueries + 2 * keys) * (HS + kGap), kWarps * kQueries * (HS + kGap) * 4}));
  plan.sums_bytes = aligned(std::max(2 * kRows * std::max({qkv, fc, narrow}) * 4, kWarps * kQueries * 8));
  const std::int64_t norms = 2 * kMostRows * sizeof(float2) + 2 * kMostDepth * kElement +
                             6 * kMostShare * kElement + 2 * sizeof(Barrier);
  plan.shared_bytes = aligned(plan.weight_bytes + plan.state_bytes + plan.sums_bytes + norms);
  const auto choose = [&](auto element, auto head_size) -> Kernel {
    return forward_kernel<decltype(element), kRowTiles, decltype(head_size)::value, kQueryTiles>;
  };
  const auto for_head = [&](auto head_size) {
    return p.dtype == DType::bf16 ? choose(__nv_bfloat16(), head_size) : choose(__half(), head_size);
  };
  if (HS == 32) plan.kernel = for_head(std::integral_constant<int, 32>());
  if (HS == 64) plan.kernel = for_head(std::integral_constant<int, 64>());
  return plan;
}

bool fits(const Plan& plan, const DeviceInfo& device) {
  return static_cast<std::size_t>(plan.shared_bytes) <= device.gpu.shared_bytes_per_block;
}

Plan plan_of(const EncoderLayersProblem& p, const DeviceInfo& device) {
  const Plan plan = p.N > 32 ? plan_with<4, 2>(p, device) : plan_with<2, 1>(p, device);
  return p.N > 32 && !fits(plan, device) ? plan_with<2, 2>(p, device) : plan;
}

struct Workspace {
  std::size_t bytes = 0;
  std::size_t take(std::int64_t count, std::size_t size) {
    const std::size_t at = bytes;
    bytes += (static_cast<std::size_t>(count) * size + kAlignment - 1) / kAlignment * kAlignment;
    return at;
  }
};

struct Places {
  std::size_t qkv, att, fc, sum[2], parts[2], bytes;

  explicit Places(const EncoderLayersProblem& p) {
    Workspace w;
    qkv = w.take(p.N * 3 * p.H, 2), att = w.take(p.N * p.H, 2), fc = w.take(p.N * p.I, 2);
    for (std::size_t& at : sum) at = w.take(p.N * p.H, 2);
    for (std::size_t& at : parts) at = w.take(p.N * kMostClusters, sizeof(float2));
    bytes = w.bytes;
  }
};

// Zeros that a Context keeps, to which every launch returns them.
unsigned* arrivals_of(const Context& context) {
  static constexpr char kOwner = 0;
  std::any& slot = context.kept(&kOwner);
  if (!slot.has_value()) {
    slot = std::make_shared<Buffer>(2 * sizeof(unsigned), context.device().device, "arrivals at a barrier");
  }
  return reinterpret_cast<unsigned*>((*std::any_cast<std::shared_ptr<Buffer>>(&slot))->data());
}

}  // namespace

std::string refuse_one_launch(const EncoderLayersProblem& p, const DeviceInfo& device) {
  if (std::string reason = refuse_without_gpu(p.dtype, device); !reason.empty()) return reason;
  if (p.dtype == DType::f32) return "multiplies bf16 and fp16, not fp32";
  if (device.gpu.major != 9) return "needs a GPU of compute capability 9.0";
  const std::int64_t HS = p.H / p.heads;
  if (HS != 32 && HS != 64) return "head size is neither 32 nor 64";
  if (p.N > kMostRows) return "takes 256 rows at most";
  if (p.layers > kMostLayers) return "takes 24 layers at most";
  if (p.H % 64 != 0 || p.I % 64 != 0 || p.H > kCluster * kMostDepth || p.I > (1 << 16)) {
    return "a hidden or intermediate size that it does not divide";
  }
  const bool offered = is_gelu(p.activation) || p.activation == Activation::relu;
  if (!offered) return "knows GELU and relu only";
  const int clusters = clusters_of(device);
  if (clusters < 1) return "the GPU is too small";
  const Plan plan = plan_of(p, device);
  const auto warps_tiles = [&](std::int64_t cols, int parts) {
    const int tiles = share_of(static_cast<int>(cols), clusters) / 8;
    return (tiles + kWarps / parts - 1) / (kWarps / parts);
  };
  const int most = std::max({warps_tiles(3 * p.H, parts_of(kQkv)), warps_tiles(p.I, parts_of(kQkv)),
                             warps_tiles(p.H, parts_of(kProj))});
  if (most > plan.warp_tiles || share_of(static_cast<int>(p.H), clusters) > 128) {
    return "too many columns for the GPU's multiprocessors";
  }
  return fits(plan, device) ? "" : "needs more shared memory than a block may ask for";
}

std::size_t one_launch_workspace(const EncoderLayersProblem& p, const DeviceInfo&) {
  return Places(p).bytes;
}

void one_launch_forward(const Context& context, const EncoderLayersForward& args) {
  const EncoderLayersProblem problem = encoder_layers_forward_op().problem(args);
  if (problem.N == 0) return;
  const Plan plan = plan_of(problem, context.device());
  const Places places(problem);
  auto* const scratch = static_cast<std::byte*>(context.scratch());
  Parameters p{};
  p.in = args.hidden.data, p.out = args.out.data;
  p.qkv = scratch + places.qkv, p.att = scratch + places.att, p.fc = scratch + places.fc;
  for (int i = 0; i < 2; ++i) {
    p.sum[i] = scratch + places.sum[i];
    p.parts[i] = reinterpret_cast<float2*>(scratch + places.parts[i]);
  }
  const int cols[kProducts] = {3 * static_cast<int>(problem.H), static_cast<int>(problem.H),
                               static_cast<int>(problem.I), static_cast<int>(problem.H)};
  for (int i = 0; i < kProducts; ++i) p.share[i] = share_of(cols[i], plan.clusters);
  p.cu_seqlens = args.cu_seqlens.as<std::int32_t>();
  p.arrivals = arrivals_of(context);
  p.N = static_cast<int>(problem.N), p.S = static_cast<int>(problem.S);
  p.H = static_cast<int>(problem.H), p.I = static_cast<int>(problem.I);
  p.heads = static_cast<int>(problem.heads), p.layers = static_cast<int>(problem.layers);
  p.eps = args.eps, p.scale = 1 / std::sqrt(static_cast<float>(problem.H / problem.heads));
  p.inverse_H = 1 / static_cast<float>(problem.H);
  p.activation = args.activation;
  p.weight_bytes = plan.weight_bytes, p.state_bytes = plan.state_bytes, p.sums_bytes = plan.sums_bytes;
  for (std::size_t i = 0; i < args.layers.size(); ++i) {
    const EncoderLayer& l = args.layers[i];
    p.layer[i] = {{l.qkv_weight.data, l.proj_weight.data, l.fc_weight.data, l.fcproj_weight.data},
                  {l.qkv_bias.data, l.proj_bias.data, l.fc_bias.data, l.fcproj_bias.data},
                  {l.attnorm_weight.data, l.outnorm_weight.data},
                  {l.attnorm_bias.data, l.outnorm_bias.data}};
  }
  warpwright::cuda::check(
      cudaFuncSetAttribute(plan.kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, plan.shared_bytes),
      kWhat);
  cudaLaunchAttribute attributes[2]{};
  attributes[0].id = cudaLaunchAttributeCooperative;
  attributes[0].val.cooperative = 1;
  attributes[1].id = cudaLaunchAttributeClusterDimension;
  attributes[1].val.clusterDim.x = kCluster;
  attributes[1].val.clusterDim.y = attributes[1].val.clusterDim.z = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(static_cast<unsigned>(plan.clusters * kCluster));
  config.blockDim = dim3(kThreads);
  config.dynamicSmemBytes = static_cast<std::size_t>(plan.shared_bytes);
  config.stream = context.stream().get();
  config.attrs = attributes;
  config.numAttrs = 2;
  warpwright::cuda::check(cudaLaunchKernelEx(&config, plan.kernel, p), kWhat);
}

}  // namespace warpwright::ops::encoder_layers::cuda
