#include "ops/norm/cuda/column_sums.cuh"

#include "ops/cuda/column_sum.cuh"
#include "ops/cuda/overlap.cuh"
#include "ops/norm/cuda/element.cuh"

namespace warpwright::ops::norm::cuda {
namespace {

template <class A, class T, int kWarps>
__global__ void __launch_bounds__(kWarps* gpu::kWarp)
    column_sums(const A* parts, int count, std::int64_t C, T* dweight, T* dbias, bool add) {
  const int lane = static_cast<int>(threadIdx.x) % gpu::kWarp;
  const int warp = static_cast<int>(threadIdx.x) / gpu::kWarp;
  const std::int64_t column = static_cast<std::int64_t>(blockIdx.x) * gpu::kWarp + lane;
  gpu::wait_for_kernels_before();
  const auto load = [&](int part) { return parts[part * 2 * C + column]; };
  gpu::sum_column<kWarps, 4, A>(warp, lane, column < 2 * C, count, load, [&](A sum) {
    T* gradient = column < C ? dweight : dbias;
    if (!gradient) return;
    gradient += column < C ? column : column - C;
    *gradient = from_arithmetic<T>(add ? to_arithmetic<A>(*gradient) + sum : sum);
  });
}

constexpr int kFew = 8, kMany = 32;  // warps

}  // namespace

int column_sum_warps(std::int64_t C) {
  return C >= 4096 ? kFew : kMany;  // many columns make many blocks, which have few parts each
}

void add_column_sums(const Context& context, const NormBackward& args, const void* parts, int count,
                     int warps) {
  if (!args.dweight && !args.dbias) return;
  const std::int64_t C = args.dx.shape[1], columns = args.dbias ? 2 * C : C;
  cudaLaunchConfig_t config{};
  config.gridDim = static_cast<unsigned>((columns + gpu::kWarp - 1) / gpu::kWarp);
  config.blockDim = static_cast<unsigned>(warps * gpu::kWarp);
  config.stream = context.stream().get();
  // The kernel takes its place on the GPU while the kernel before it ends, even without an Overlap: it reads
  // nothing before it waits.
  cudaLaunchAttribute early = gpu::overlap_attribute();
  config.attrs = &early;
  config.numAttrs = context.device().gpu.runs_hopper_code() ? 1 : 0;
  visit_norm_dtype(args.dweight ? args.dweight.dtype : args.dbias.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    using A = Arithmetic<T>;
    const auto kernel = warps == kFew ? column_sums<A, T, kFew> : column_sums<A, T, kMany>;
    warpwright::cuda::check(
        cudaLaunchKernelEx(&config, kernel, static_cast<const A*>(parts), count, C,
                           static_cast<T*>(args.dweight.data), static_cast<T*>(args.dbias.data),
                           args.dparameters_store == Store::add),
        "norm backward column sums");
  });
}

}  // namespace warpwright::ops::norm::cuda
