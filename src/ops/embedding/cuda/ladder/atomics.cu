// The embedding's backward with floating-point atomics, the shortest that there is: a thread for each number
// of dout adds it to its place in both tables. Memory-bound: dout is read once, and each of its numbers is
// added twice in the second-level cache, which takes additions to one address one after the other.
//
// The order of the additions changes from run to run, so the bits do, too. cuda.plain and cuda.sorted add in
// a fixed order.
#include "ops/embedding/embedding.hpp"
#include "runtime/cuda/check.hpp"

namespace warpwright::ops::embedding {
namespace {

constexpr int kThreads = 256;
constexpr const char* kName = "embedding.backward cuda.ladder_atomics";

__global__ void __launch_bounds__(kThreads)
    add_rows(const std::int32_t* tokens, const std::int32_t* positions, const float* dout, float* dwte,
             float* dwpe, std::int64_t N, std::int64_t C) {
  const std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i >= N * C) return;
  const std::int64_t n = i / C, c = i % C;
  atomicAdd(dwte + tokens[n] * C + c, dout[i]);
  if (positions) atomicAdd(dwpe + positions[n] * C + c, dout[i]);
}

void zero(const Tensor& gradient, cudaStream_t stream) {
  const auto bytes = static_cast<std::size_t>(gradient.elements()) * sizeof(float);
  warpwright::cuda::check(cudaMemsetAsync(gradient.data, 0, bytes, stream), kName);
}

std::int64_t blocks_of(std::int64_t elements) {
  return (elements + kThreads - 1) / kThreads;
}

void atomics_backward(const Context& context, const EmbeddingBackward& args) {
  const std::int64_t N = args.dout.shape[0], C = args.dout.shape[1];
  const cudaStream_t stream = context.stream().get();
  if (args.dwte_store == Store::assign) zero(args.dwte, stream);
  if (args.dwpe && args.dwpe_store == Store::assign) zero(args.dwpe, stream);
  if (N * C == 0) return;
  add_rows<<<static_cast<unsigned>(blocks_of(N * C)), kThreads, 0, stream>>>(
      args.tokens.as<std::int32_t>(), args.positions.as<std::int32_t>(), args.dout.as<float>(),
      args.dwte.as<float>(), args.dwpe.as<float>(), N, C);
  warpwright::cuda::check_launch(kName);
}

Refusal refuse_atomics(const EmbeddingBackwardProblem& p, const DeviceInfo&) {
  if (blocks_of(p.N * p.C) >= std::int64_t{1} << 31) return "dout has more numbers than a grid has threads";
  return {};
}

}  // namespace
}  // namespace warpwright::ops::embedding

namespace warpwright::ops {

WARPWRIGHT_KERNEL(EmbeddingBackward, "cuda.ladder_atomics"_kernel) = {.needs = Needs::gpu,
                                                                      .dtypes = {DType::f32},
                                                                      .run = embedding::atomics_backward,
                                                                      .refuse = embedding::refuse_atomics,
                                                                      .only_forced = true,
                                                                      .repeats = false};

}  // namespace warpwright::ops
