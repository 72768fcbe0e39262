#include "ops/layernorm/cuda/column_sums.cuh"

#include "ops/layernorm/cuda/element.cuh"

namespace warpwright::ops::layernorm::cuda {
namespace {

constexpr int kWarps = 32;

// A lane for each column; a warp adds every 32nd part, then the warps' sums are added in order.
template <class A, class T>
__global__ void __launch_bounds__(kWarps* gpu::kWarp)
    column_sums(const A* parts, int count, std::int64_t C, T* dweight, T* dbias, bool add) {
  __shared__ A sums[kWarps][gpu::kWarp];
  const int lane = static_cast<int>(threadIdx.x) % gpu::kWarp;
  const int warp = static_cast<int>(threadIdx.x) / gpu::kWarp;
  const std::int64_t column = static_cast<std::int64_t>(blockIdx.x) * gpu::kWarp + lane;
  A sum = 0;
  if (column < 2 * C) {
#pragma unroll 4
    for (int part = warp; part < count; part += kWarps) sum += parts[part * 2 * C + column];
  }
  sums[warp][lane] = sum;
  __syncthreads();
  if (warp > 0 || column >= 2 * C) return;
  for (int other = 1; other < kWarps; ++other) sum += sums[other][lane];
  T* gradient = column < C ? dweight : dbias;
  if (!gradient) return;
  gradient += column < C ? column : column - C;
  *gradient = from_arithmetic<T>(add ? to_arithmetic<A>(*gradient) + sum : sum);
}

}  // namespace

void add_column_sums(const void* parts, int count, const NormBackward& args, cudaStream_t stream) {
  if (!args.dweight && !args.dbias) return;
  const std::int64_t C = args.dx.shape[1], columns = args.dbias ? 2 * C : C;
  const auto blocks = static_cast<unsigned>((columns + gpu::kWarp - 1) / gpu::kWarp);
  visit_norm_dtype(args.dweight ? args.dweight.dtype : args.dbias.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    using A = Arithmetic<T>;
    column_sums<A, T><<<blocks, kWarps * gpu::kWarp, 0, stream>>>(
        static_cast<const A*>(parts), count, C, static_cast<T*>(args.dweight.data),
        static_cast<T*>(args.dbias.data), args.dparameters_store == Store::add);
  });
  warpwright::cuda::check_launch("norm backward column sums");
}

}  // namespace warpwright::ops::layernorm::cuda
