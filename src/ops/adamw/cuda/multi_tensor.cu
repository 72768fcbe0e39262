// AdamW on a GPU. One launch updates up to 581 tensors. Memory-bound: 28 bytes per parameter in fp32
// (parameter, m and v read and written, gradient read), 28 for bf16 with its master, 24 for bf16 alone. Each
// thread updates four neighbours at a time, which are 64 bytes to read. Without masters it updates eight,
// because one call of Philox gives the random bits of eight. Speed: docs/kernels.md.
#include "ops/adamw/cuda/master.cuh"
#include "ops/adamw/kernels.hpp"
#include "ops/adamw/rounding.hpp"
#include "ops/cuda/tensor_list.cuh"
#include "ops/cuda/vector.cuh"
#include "runtime/cuda/check.hpp"

namespace warpwright::ops::adamw_kernels {
namespace {

constexpr int kThreads = 256, kBlock = 2048;

struct Constants {
  const AdamWScalars<float>* scalars;
  const std::int32_t* random;  // null with masters
  float one_minus_beta1, one_minus_beta2, eps;
};

struct Step {
  float scale, one_minus_beta1, one_minus_beta2, eps;
  float corrected_learning_rate;  // learning_rate / bias_correction1
  float inverse2;                 // 1 / √bias_correction2
  float decay;                    // learning_rate · weight_decay
};

// Each product that is added to something is part of an explicit fma, or explicitly rounded as
// scale · gradient is. The results are then the same in every kernel into which this is inlined.
template <int lanes>
__device__ void update(const Step& s, const float* gradient, float* m_at, float* v_at, float (&w)[lanes]) {
  float g[lanes], m[lanes], v[lanes];
  gpu::load_floats(gradient, g);
  gpu::load_floats(m_at, m);
  gpu::load_floats(v_at, v);
#pragma unroll
  for (int j = 0; j < lanes; ++j) {
    const float scaled = __fmul_rn(g[j], s.scale);
    m[j] = fmaf(s.one_minus_beta1, scaled - m[j], m[j]);
    v[j] = fmaf(s.one_minus_beta2, fmaf(scaled, scaled, -v[j]), v[j]);
    const float step = m[j] * s.corrected_learning_rate / fmaf(sqrtf(v[j]), s.inverse2, s.eps);
    w[j] = fmaf(-s.decay, w[j], w[j]) - step;
  }
  gpu::store_floats(m_at, m);
  gpu::store_floats(v_at, v);
}

template <class... Pointers>
__device__ bool all_aligned(const Pointers*... pointers) {
  return ((reinterpret_cast<std::uintptr_t>(pointers) % 16 == 0) && ...);
}

// bf16 with its master, or fp32.
struct WithMaster {
  static constexpr int kLanes = 4;

  void* parameter;
  std::int16_t* remainder;  // null: the parameter is fp32
  const float* gradient;
  float *m, *v;
  std::int64_t elements;
  unsigned first_block;
  float weight_decay;

  static WithMaster of(const AdamWTensor& t) {
    return {t.parameter.data,
            static_cast<std::int16_t*>(t.remainder.data),
            static_cast<const float*>(t.gradient.data),
            static_cast<float*>(t.m.data),
            static_cast<float*>(t.v.data),
            t.parameter.elements(),
            0,
            static_cast<float>(t.weight_decay)};
  }

  __device__ bool aligned() const { return all_aligned(parameter, remainder, gradient, m, v); }

  // `lanes` elements from i on.
  template <int lanes>
  __device__ void update_at(const Step& s, const Constants&, std::int64_t i) const {
    float w[lanes];
    if (!remainder) {
      float* p = static_cast<float*>(parameter) + i;
      gpu::load_floats(p, w);
      update(s, gradient + i, m + i, v + i, w);
      gpu::store_floats(p, w);
      return;
    }
    __nv_bfloat16* p = static_cast<__nv_bfloat16*>(parameter) + i;
    load_masters(p, remainder + i, w);
    update(s, gradient + i, m + i, v + i, w);
    store_masters(p, remainder + i, w);
  }
};

// bf16 without a master, or fp32. It is as large as WithMaster, so that a launch takes as many tensors.
struct Alone {
  static constexpr int kLanes = kRandomElements;

  void* parameter;
  const float* gradient;
  float *m, *v;
  std::int64_t elements;
  unsigned first_block;
  float weight_decay;
  // Of the random bits. `wide`, an fp32 parameter, has none.
  unsigned number : 31, wide : 1;
  unsigned first_random_block;

  static Alone of(const AdamWTensor& t) {
    return {t.parameter.data,
            static_cast<const float*>(t.gradient.data),
            static_cast<float*>(t.m.data),
            static_cast<float*>(t.v.data),
            t.parameter.elements(),
            0,
            static_cast<float>(t.weight_decay),
            t.number,
            t.parameter.dtype == DType::f32,
            static_cast<unsigned>(t.first / kRandomElements)};
  }

  __device__ bool aligned() const { return all_aligned(parameter, gradient, m, v); }

  template <int lanes>
  __device__ void update_at(const Step& s, const Constants& c, std::int64_t i) const {
    float w[lanes];
    if (wide) {
      float* p = static_cast<float*>(parameter) + i;
      gpu::load_floats(p, w);
      update(s, gradient + i, m + i, v + i, w);
      gpu::store_floats(p, w);
      return;
    }
    __nv_bfloat16* p = static_cast<__nv_bfloat16*>(parameter) + i;
    gpu::Packed<__nv_bfloat16, lanes>::load(p).to_floats(w);
    update(s, gradient + i, m + i, v + i, w);
    const PhiloxCounter random = random_block(c.random, number, first_random_block + i / kRandomElements);
    const int first = static_cast<int>(i % kRandomElements);
#pragma unroll
    for (int j = 0; j < lanes; ++j) w[j] = stochastically_rounded(w[j], random_half(random, first + j));
    gpu::Packed<__nv_bfloat16, lanes>::from_floats(w).store(p);
  }
};
static_assert(sizeof(Alone) == sizeof(WithMaster));

template <class Entry, class List>
__global__ void __launch_bounds__(kThreads) update_all(const __grid_constant__ List list, const Constants c) {
  constexpr int kLanes = Entry::kLanes;
  const AdamWScalars<float> s = *c.scalars;
  if (!isfinite(s.gradient_scale)) return;
  const Entry t = list.at_block(blockIdx.x);
  const Step step{.scale = s.gradient_scale,
                  .one_minus_beta1 = c.one_minus_beta1,
                  .one_minus_beta2 = c.one_minus_beta2,
                  .eps = c.eps,
                  .corrected_learning_rate = s.learning_rate / s.bias_correction1,
                  .inverse2 = 1.0f / sqrtf(s.bias_correction2),
                  .decay = s.learning_rate * t.weight_decay};
  const std::int64_t begin = static_cast<std::int64_t>(blockIdx.x - t.first_block) * kBlock;
  const std::int64_t end = t.elements - begin < kBlock ? t.elements : begin + kBlock;
  std::int64_t i = begin;
  if (t.aligned()) {
    for (i += threadIdx.x * kLanes; i + kLanes <= end; i += kThreads * kLanes) {
      t.template update_at<kLanes>(step, c, i);
    }
    i = end - end % kLanes;
  }
  for (i += threadIdx.x; i < end; i += kThreads) t.template update_at<1>(step, c, i);
}

template <class Entry>
void run(const Context& context, const AdamW& a) {
  const Constants constants{.scalars = static_cast<const AdamWScalars<float>*>(a.scalars.data),
                            .random = static_cast<const std::int32_t*>(a.random.data),
                            .one_minus_beta1 = static_cast<float>(1 - a.beta1),
                            .one_minus_beta2 = static_cast<float>(1 - a.beta2),
                            .eps = static_cast<float>(a.eps)};
  const auto entry_of = [&](std::int64_t i) { return Entry::of(a.tensors[static_cast<std::size_t>(i)]); };
  gpu::for_each_tensor_list<Entry>(
      static_cast<std::int64_t>(a.tensors.size()), kBlock, entry_of, [&](const auto& list, unsigned blocks) {
        update_all<Entry><<<blocks, kThreads, 0, context.stream().get()>>>(list, constants);
        warpwright::cuda::check_launch("adamw cuda.multi_tensor");
      });
}

void multi_tensor(const Context& context, const AdamW& args) {
  if (args.tensors.empty()) return;
  without_masters(args) ? run<Alone>(context, args) : run<WithMaster>(context, args);
}

}  // namespace
}  // namespace warpwright::ops::adamw_kernels

namespace warpwright::ops {

WARPWRIGHT_KERNEL(AdamW, "cuda.multi_tensor"_kernel) = {
    .needs = Needs::gpu, .dtypes = DTypes{DType::f32, DType::bf16}, .run = adamw_kernels::multi_tensor};

}  // namespace warpwright::ops
