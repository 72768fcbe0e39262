// Embedding forward on a GPU, with one warp per row and 16 bytes per access. Memory-bound: out is written
// once, and the selected rows of the tables are read. Rows that several n select come from the caches.
#include "ops/cuda/reduce.cuh"
#include "ops/cuda/vector.cuh"
#include "ops/embedding/embedding.hpp"
#include "runtime/cuda/check.hpp"

namespace warpwright::ops::embedding {
namespace {

constexpr int kThreads = 256, kRows = kThreads / gpu::kWarp;

template <class T, int lanes>
__global__ void __launch_bounds__(kThreads)
    gather_rows(const std::int32_t* tokens, const std::int32_t* positions, const T* __restrict__ wte,
                const T* __restrict__ wpe, T* __restrict__ out, std::int64_t N, std::int64_t C) {
  using Pack = gpu::Packed<T, lanes>;
  const std::int64_t n = static_cast<std::int64_t>(blockIdx.x) * kRows + threadIdx.x / gpu::kWarp;
  if (n >= N) return;
  const T* token = wte + tokens[n] * C;
  const T* position = positions ? wpe + positions[n] * C : nullptr;
#pragma unroll 4
  for (std::int64_t c = threadIdx.x % gpu::kWarp * lanes; c < C; c += gpu::kWarp * lanes) {
    const Pack a = Pack::load(token + c), b = position ? Pack::load(position + c) : Pack::zero();
    float sum[lanes];
#pragma unroll
    for (int j = 0; j < lanes; ++j) sum[j] = a[j] + b[j];
    Pack::from_floats(sum).store(out + n * C + c);
  }
}

void packed_forward(const Context& context, const EmbeddingForward& args) {
  const std::int64_t N = args.out.shape[0], C = args.out.shape[1];
  if (N == 0) return;
  gpu::visit_gpu_dtype(args.out.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    constexpr int kLanes = gpu::kPackedLanes<T>;
    const auto* wte = static_cast<const T*>(args.wte.data);
    const auto* wpe = static_cast<const T*>(args.wpe.data);
    auto* out = static_cast<T*>(args.out.data);
    const bool packed = C % kLanes == 0 && gpu::aligned16(wte, wpe, out);
    const auto kernel = packed ? gather_rows<T, kLanes> : gather_rows<T, 1>;
    kernel<<<static_cast<unsigned>((N + kRows - 1) / kRows), kThreads, 0, context.stream().get()>>>(
        static_cast<const std::int32_t*>(args.tokens.data),
        static_cast<const std::int32_t*>(args.positions.data), wte, wpe, out, N, C);
    warpwright::cuda::check_launch("embedding.forward cuda.packed");
  });
}

std::string packs(const EmbeddingForwardProblem& p, const DeviceInfo&) {
  const auto lanes = static_cast<std::int64_t>(16 / size_of(p.dtype));
  return p.aligned && p.C % lanes == 0 ? "16 bytes" : "elements";
}

}  // namespace
}  // namespace warpwright::ops::embedding

namespace warpwright::ops {

WARPWRIGHT_KERNEL(EmbeddingForward, "cuda.packed"_kernel) = {.needs = Needs::gpu,
                                                             .dtypes = kGpuDTypes,
                                                             .run = embedding::packed_forward,
                                                             .configuration = embedding::packs};

}  // namespace warpwright::ops
