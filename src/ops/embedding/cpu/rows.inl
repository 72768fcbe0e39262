// Embedding on a CPU. Memory-bound.
//   forward   reads a row of wte and of wpe and writes a row of out for each token; the threads share the
//             rows
//   backward  reads dout once, reads and writes rows of dwte and dwpe; each thread owns a range of channels
//             and adds all rows there in the order of n
//
// Partial sums of several threads are thus never combined, so the bits do not depend on the number of
// threads. A frequent token does not make one thread wait for another.
#include "ops/cpu/isa.hpp"
#include "ops/cpu/simd.hpp"
#include "ops/embedding/embedding.hpp"

namespace warpwright::ops::embedding {
namespace {

using namespace simd;

template <class T>
void run_forward(const EmbeddingForward& a, int threads) {
  const std::int64_t N = a.out.shape[0], C = a.out.shape[1];
  const auto* tokens = static_cast<const std::int32_t*>(a.tokens.data);
  const auto* positions = static_cast<const std::int32_t*>(a.positions.data);
#pragma omp parallel for schedule(static) num_threads(threads)
  for (std::int64_t row = 0; row < N; ++row) {
    const T* token = static_cast<const T*>(a.wte.data) + tokens[row] * C;
    T* out = static_cast<T*>(a.out.data) + row * C;
    if (!positions) {
      for_each_vector(0, C,
                      [=](std::int64_t c, int n) { store_lanes(out + c, load_lanes(token + c, n), n); });
      continue;
    }
    const T* position = static_cast<const T*>(a.wpe.data) + positions[row] * C;
    for_each_vector(0, C, [=](std::int64_t c, int n) {
      store_lanes(out + c, load_lanes(token + c, n) + load_lanes(position + c, n), n);
    });
  }
}

// Zeroes a gradient. The stores to a large one bypass the caches, which it would only flush: that of GPT-2's
// 50,257 tokens has 154 MB. A small one stays cached for the additions that follow. On one core of a Xeon
// with AMX, the cached way is faster at 12 MB and the other at 49 MB.
constexpr std::int64_t kStreamElements = std::int64_t{8} << 20;  // 32 MiB
void clear(const Tensor& gradient, int threads) {
  auto* p = static_cast<float*>(gradient.data);
  std::int64_t count = gradient.elements();
  const bool past_caches = count >= kStreamElements;
  for (; count > 0 && reinterpret_cast<std::uintptr_t>(p) % sizeof(vec) != 0; --count) *p++ = 0;
  const std::int64_t vectors = count / kLanes;
#pragma omp parallel num_threads(threads)
  {
#pragma omp for schedule(static) nowait
    for (std::int64_t i = 0; i < vectors; ++i) {
      past_caches ? stream(p + i * kLanes, zero()) : store(p + i * kLanes, zero());
    }
    fence();
  }
  for (std::int64_t i = vectors * kLanes; i < count; ++i) p[i] = 0;
}

template <class T>
void add_rows(const EmbeddingBackward& a, std::int64_t begin, std::int64_t end) {
  const std::int64_t N = a.dout.shape[0], C = a.dout.shape[1];
  const auto* tokens = static_cast<const std::int32_t*>(a.tokens.data);
  const auto* positions = static_cast<const std::int32_t*>(a.positions.data);
  for (std::int64_t row = 0; row < N; ++row) {
    const T* dout = static_cast<const T*>(a.dout.data) + row * C;
    float* dwte = static_cast<float*>(a.dwte.data) + tokens[row] * C;
    float* dwpe = positions ? static_cast<float*>(a.dwpe.data) + positions[row] * C : nullptr;
    for_each_vector(begin, end, [=](std::int64_t c, int n) {
      const vec d = load_lanes(dout + c, n);
      store_lanes(dwte + c, load_lanes(dwte + c, n) + d, n);
      if (dwpe) store_lanes(dwpe + c, load_lanes(dwpe + c, n) + d, n);
    });
  }
}

template <class T>
void run_backward(const EmbeddingBackward& a, int threads) {
  if (a.dwte_store == Store::assign) clear(a.dwte, threads);
  if (a.dwpe.data && a.dwpe_store == Store::assign) clear(a.dwpe, threads);
  constexpr std::int64_t kLine = 16;  // floats: no cache line of a gradient belongs to two threads
  const std::int64_t C = a.dout.shape[1], lines = (C + kLine - 1) / kLine;
  const std::int64_t parts = lines < threads ? lines : threads;
#pragma omp parallel for schedule(static) num_threads(threads)
  for (std::int64_t part = 0; part < parts; ++part) {
    const std::int64_t begin = part * lines / parts * kLine, end = (part + 1) * lines / parts * kLine;
    add_rows<T>(a, begin, end < C ? end : C);
  }
}

void forward(const Context& context, const EmbeddingForward& args) {
  args.out.dtype == DType::f32 ? run_forward<float>(args, context.threads())
                               : run_forward<bf16>(args, context.threads());
}

void backward(const Context& context, const EmbeddingBackward& args) {
  args.dout.dtype == DType::f32 ? run_backward<float>(args, context.threads())
                                : run_backward<bf16>(args, context.threads());
}

}  // namespace
}  // namespace warpwright::ops::embedding

namespace warpwright::ops {

WARPWRIGHT_KERNEL(EmbeddingForward, kCpu) = {
    .needs = kThisCpu, .dtypes = kCpuDTypes, .run = embedding::forward};
WARPWRIGHT_KERNEL(EmbeddingBackward, kCpu) = {
    .needs = kThisCpu, .dtypes = kCpuDTypes, .run = embedding::backward};

}  // namespace warpwright::ops
