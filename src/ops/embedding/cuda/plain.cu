// The embedding on a GPU in its simplest form. It is there to be read, and as a baseline for timings.
//   forward   each thread writes 16 bytes of a row of out, or one element if rows are not made of 16-byte
//             packs
//   backward  one block per n and table; the block of the first n with an id adds the rows of dout of all n
//             with that id, in their order
//
// The backward needs no floating-point atomics, whose order would change from run to run. Each block searches
// for its id among all earlier ids, and the first block of an id also among all later ones. This takes at
// most N²/256 steps of a block, if all ids differ. The rows of a frequent id are added one after the other.
#include "ops/cuda/reduce.cuh"
#include "ops/cuda/vector.cuh"
#include "ops/embedding/embedding.hpp"
#include "runtime/cuda/check.hpp"

namespace warpwright::ops::embedding {
namespace {

constexpr int kForwardThreads = 512, kBackwardThreads = 256;

template <class T, int lanes>
__global__ void __launch_bounds__(kForwardThreads)
    add_rows(const std::int32_t* tokens, const std::int32_t* positions, const T* wte, const T* wpe, T* out,
             std::int64_t N, std::int64_t C) {
  using Pack = gpu::Packed<T, lanes>;
  const std::int64_t i = (static_cast<std::int64_t>(blockIdx.x) * kForwardThreads + threadIdx.x) * lanes;
  if (i >= N * C) return;
  const std::int64_t n = i / C, c = i % C;
  const Pack a = Pack::load(wte + tokens[n] * C + c);
  const Pack b = positions ? Pack::load(wpe + positions[n] * C + c) : Pack::zero();
  float sum[lanes];
#pragma unroll
  for (int j = 0; j < lanes; ++j) sum[j] = a[j] + b[j];
  Pack::from_floats(sum).store(out + i);
}

template <class T>
__global__ void __launch_bounds__(kBackwardThreads)
    sum_rows(const std::int32_t* ids, const T* dout, float* gradient, std::int64_t N, std::int64_t C) {
  constexpr int kWarps = kBackwardThreads / gpu::kWarp;
  __shared__ unsigned found[kWarps];  // a bit for each n that has the id
  const std::int64_t mine = blockIdx.x;
  float* row = gradient + ids[mine] * C;
  for (std::int64_t first = 0; first < N; first += kBackwardThreads) {
    const std::int64_t n = first + threadIdx.x;
    const bool same = n < N && ids[n] == ids[mine];
    if (__syncthreads_or(same && n < mine)) return;
    const unsigned bits = __ballot_sync(gpu::kAllLanes, same);
    if (threadIdx.x % gpu::kWarp == 0) found[threadIdx.x / gpu::kWarp] = bits;
    __syncthreads();
    for (int warp = 0; warp < kWarps; ++warp) {
      for (unsigned left = found[warp]; left != 0; left &= left - 1) {
        const T* from = dout + (first + warp * gpu::kWarp + __ffs(static_cast<int>(left)) - 1) * C;
        for (std::int64_t c = threadIdx.x; c < C; c += kBackwardThreads) row[c] += gpu::to_float(from[c]);
      }
    }
  }
}

void add_to(const Context& context, const Tensor& gradient, Store store, const Tensor& ids,
            const Tensor& dout) {
  const std::int64_t N = dout.shape[0], C = dout.shape[1];
  const cudaStream_t stream = context.stream().get();
  if (store == Store::assign) {
    const auto bytes = static_cast<std::size_t>(gradient.elements()) * sizeof(float);
    warpwright::cuda::check(cudaMemsetAsync(gradient.data, 0, bytes, stream),
                            "embedding.backward cuda.plain");
  }
  if (N == 0) return;
  gpu::visit_gpu_dtype(dout.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    sum_rows<<<static_cast<unsigned>(N), kBackwardThreads, 0, stream>>>(
        static_cast<const std::int32_t*>(ids.data), static_cast<const T*>(dout.data),
        static_cast<float*>(gradient.data), N, C);
  });
  warpwright::cuda::check_launch("embedding.backward cuda.plain");
}

void plain_forward(const Context& context, const EmbeddingForward& args) {
  const std::int64_t N = args.out.shape[0], C = args.out.shape[1];
  if (N == 0) return;
  gpu::visit_gpu_dtype(args.out.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    constexpr int kLanes = gpu::kPackedLanes<T>;
    const auto* wte = static_cast<const T*>(args.wte.data);
    const auto* wpe = static_cast<const T*>(args.wpe.data);
    auto* out = static_cast<T*>(args.out.data);
    const bool packed = C % kLanes == 0 && gpu::aligned16(wte, wpe, out);
    const auto kernel = packed ? add_rows<T, kLanes> : add_rows<T, 1>;
    const std::int64_t a_block = kForwardThreads * (packed ? kLanes : 1);
    kernel<<<static_cast<unsigned>((N * C + a_block - 1) / a_block), kForwardThreads, 0,
             context.stream().get()>>>(static_cast<const std::int32_t*>(args.tokens.data),
                                       static_cast<const std::int32_t*>(args.positions.data), wte, wpe, out,
                                       N, C);
  });
  warpwright::cuda::check_launch("embedding.forward cuda.plain");
}

void plain_backward(const Context& context, const EmbeddingBackward& args) {
  add_to(context, args.dwte, args.dwte_store, args.tokens, args.dout);
  if (args.dwpe) add_to(context, args.dwpe, args.dwpe_store, args.positions, args.dout);
}

std::string packs(const EmbeddingForwardProblem& p, const DeviceInfo&) {
  const auto lanes = static_cast<std::int64_t>(16 / size_of(p.dtype));
  return p.aligned && p.C % lanes == 0 ? "16 bytes" : "elements";
}

Refusal refuse_plain(const EmbeddingBackwardProblem& p, const DeviceInfo&) {
  if (p.N >= std::int64_t{1} << 31) return "more than 2^31 − 1 tokens";  // one block each
  return {};
}

}  // namespace
}  // namespace warpwright::ops::embedding

namespace warpwright::ops {

WARPWRIGHT_KERNEL(EmbeddingForward, "cuda.plain"_kernel) = {.needs = Needs::gpu,
                                                            .dtypes = kGpuDTypes,
                                                            .run = embedding::plain_forward,
                                                            .configuration = embedding::packs};
WARPWRIGHT_KERNEL(EmbeddingBackward, "cuda.plain"_kernel) = {.needs = Needs::gpu,
                                                             .dtypes = kGpuDTypes,
                                                             .run = embedding::plain_backward,
                                                             .refuse = embedding::refuse_plain};

}  // namespace warpwright::ops
