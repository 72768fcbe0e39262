// Embedding and layer normalization on a CPU, one row at a time. Memory-bound: it reads three rows of the
// tables and writes one of out. The sum stays in L1 until its statistics are known.
#include <omp.h>

#include "ops/cpu/isa.hpp"
#include "ops/cpu/norm.hpp"
#include "ops/embedding_layernorm/embedding_layernorm.hpp"

namespace warpwright::ops {
namespace {

using namespace simd;

template <class T>
void forward_as(const EmbeddingLayerNormForward& a, float* scratch, int threads) {
  const std::int64_t C = a.out.shape[1];
  const auto *tokens = static_cast<const std::int32_t*>(a.tokens.data),
             *positions = static_cast<const std::int32_t*>(a.positions.data),
             *types = static_cast<const std::int32_t*>(a.types.data),
             *rows = static_cast<const std::int32_t*>(a.rows.data);
  const auto *words = static_cast<const T*>(a.word.data), *places = static_cast<const T*>(a.position.data),
             *kinds = static_cast<const T*>(a.type.data), *weight = static_cast<const T*>(a.weight.data),
             *bias = static_cast<const T*>(a.bias.data);
  const std::int64_t N = rows && rows[0] < a.out.shape[0] ? rows[0] : a.out.shape[0];
#pragma omp parallel for schedule(static) num_threads(threads)
  for (std::int64_t n = 0; n < N; ++n) {
    float* x = scratch + omp_get_thread_num() * C;
    const T *word = words + tokens[n] * C, *position = places + positions[n] * C,
            *type = types ? kinds + types[n] * C : nullptr;
    T* out = static_cast<T*>(a.out.data) + n * C;
    for_each_vector(0, C, [=](std::int64_t c, int lanes) {
      vec v = load_lanes(word + c, lanes) + load_lanes(position + c, lanes);
      if (type) v += load_lanes(type + c, lanes);
      store_lanes(x + c, v, lanes);
    });
    const RowStatistics s = statistics(x, C, a.eps);
    const vec mean = set1(s.mean), rstd = set1(s.rstd);
    for_each_vector(0, C, [=](std::int64_t c, int lanes) {
      const vec normalized = (load_lanes(x + c, lanes) - mean) * rstd;
      store_lanes(out + c, fma(normalized, load_lanes(weight + c, lanes), load_lanes(bias + c, lanes)),
                  lanes);
    });
  }
}

void forward(const Context& context, const EmbeddingLayerNormForward& args) {
  auto* scratch = static_cast<float*>(context.scratch());
  args.out.dtype == DType::f32 ? forward_as<float>(args, scratch, context.threads())
                               : forward_as<bf16>(args, scratch, context.threads());
}

// One row of fp32 per thread.
std::size_t workspace(const EmbeddingLayerNormProblem& p, const DeviceInfo& device) {
  return static_cast<std::size_t>(device.threads) * static_cast<std::size_t>(p.C) * sizeof(float);
}

}  // namespace

WARPWRIGHT_KERNEL(EmbeddingLayerNormForward, kCpu) = {
    .needs = kThisCpu, .dtypes = kCpuDTypes, .run = forward, .workspace = workspace};

}  // namespace warpwright::ops
