// Copies new keys and values into a cache on a GPU: one warp per row and head, 16 bytes per access if
// alignment and size allow it. Memory-bound.
#include "ops/cached_attention/kernels.hpp"
#include "ops/cuda/overlap.cuh"
#include "ops/cuda/reduce.cuh"
#include "ops/cuda/vector.cuh"

namespace warpwright::ops::cached {
namespace {

constexpr int kThreads = 128, kWarps = kThreads / gpu::kWarp;

template <class T>
struct Rows {
  const T* from;
  T* cache;
  std::int64_t stride, head_stride;  // of from
};

template <class T>
struct Arguments {
  Rows<T> keys, values;
  const std::int32_t* slots;
  int N, KH, HS, places, block_size;
};

template <int lanes, class T>
__global__ void __launch_bounds__(kThreads) append_rows(const Arguments<T> a) {
  using Pack = gpu::Packed<T, lanes>;
  const std::int64_t task =
      static_cast<std::int64_t>(blockIdx.x) * kWarps + static_cast<int>(threadIdx.x) / gpu::kWarp;
  gpu::wait_for_kernels_before();
  const auto n = static_cast<int>(task / a.KH), h = static_cast<int>(task % a.KH);
  if (n >= a.N) return;
  const int slot = __ldg(a.slots + n);
  if (slot < 0 || slot >= a.places) return;
  const int block = slot / a.block_size;
  const std::int64_t head = static_cast<std::int64_t>(block) * a.KH + h;  // of that block
  const std::int64_t to = (head * a.block_size + slot - block * a.block_size) * a.HS;
  for (int d = static_cast<int>(threadIdx.x) % gpu::kWarp * lanes; d < a.HS; d += gpu::kWarp * lanes) {
    for (const Rows<T>& rows : {a.keys, a.values}) {
      Pack::load(rows.from + n * rows.stride + h * rows.head_stride + d).store(rows.cache + to + d);
    }
  }
}

void rows_append(const Context& context, const CacheAppend& args) {
  const CacheAppendProblem p = args.problem();
  if (p.N == 0) return;
  gpu::visit_gpu_dtype(p.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    const auto rows = [](const Tensor& from, const Tensor& cache) {
      return Rows<T>{static_cast<const T*>(from.data), static_cast<T*>(cache.data), from.strides[0],
                     from.strides[1]};
    };
    const Arguments<T> a{rows(args.k, args.key_cache),
                         rows(args.v, args.value_cache),
                         static_cast<const std::int32_t*>(args.slots.data),
                         static_cast<int>(p.N),
                         static_cast<int>(p.KH),
                         static_cast<int>(p.HS),
                         static_cast<int>(p.places),
                         static_cast<int>(args.key_cache.shape[2])};
    const dim3 grid(static_cast<unsigned>((p.N * p.KH + kWarps - 1) / kWarps));
    const auto kernel = p.aligned ? append_rows<gpu::kPackedLanes<T>, T> : append_rows<1, T>;
    gpu::launch_overlapped(context, kernel, grid, kThreads, 0, "cache.append cuda.rows", a);
  });
}

std::string packs(const CacheAppendProblem& p, const DeviceInfo&) {
  return p.aligned ? "16 bytes" : "elements";
}

}  // namespace
}  // namespace warpwright::ops::cached

namespace warpwright::ops {

WARPWRIGHT_KERNEL(CacheAppend, "cuda.rows"_kernel) = {
    .needs = Needs::gpu, .dtypes = kGpuDTypes, .run = cached::rows_append, .configuration = cached::packs};

}  // namespace warpwright::ops
