// Muon's element-wise operations on a GPU; each thread processes the elements of one pack of 16 bytes.
// Memory-bound; bytes per element:
//   momentum  16 (gradient and m read and written)
//   scale     8 in fp32, 6 to 16 bits
//   update    12 in fp32, 10 for bf16 with its master, 6 for bf16 alone
// Each product that is added to something is part of an explicit fma, so that aligned and unaligned tensors
// get the same bits.
#include "ops/adamw/cuda/master.cuh"
#include "ops/adamw/rounding.hpp"
#include "ops/cuda/elementwise.cuh"
#include "ops/muon/muon.hpp"

namespace warpwright::ops {
namespace {

using Scalars = AdamWScalars<float>;

struct Momentum {
  float *gradient, *m;
  const Scalars* scalars;
  float rest;  // 1 − μ

  template <int N>
  __device__ void at(std::int64_t i) const {
    const float scale = scalars->gradient_scale;
    if (!isfinite(scale)) return;
    float g[N], v[N];
    gpu::load_floats(gradient + i, g);
    gpu::load_floats(m + i, v);
#pragma unroll
    for (int j = 0; j < N; ++j) {
      const float scaled = __fmul_rn(g[j], scale);
      v[j] = fmaf(rest, scaled - v[j], v[j]);
      g[j] = fmaf(rest, scaled - v[j], v[j]);
    }
    gpu::store_floats(m + i, v);
    gpu::store_floats(gradient + i, g);
  }
};

template <class T>
struct Scale {
  const float *x, *norm;  // norm may be null
  T* out;
  float factor;

  template <int N>
  __device__ void at(std::int64_t i) const {
    const float by = norm ? factor / (*norm + static_cast<float>(kMuonEps)) : factor;
    float values[N];
    gpu::load_floats(x + i, values);
#pragma unroll
    for (int j = 0; j < N; ++j) values[j] *= by;
    gpu::Packed<T, N>::from_floats(values).store(out + i);
  }
};

// w −= learning_rate · (factor · x + weight_decay · w)
template <class T>
struct Update {
  T* parameter;
  std::int16_t* remainder;  // null: the parameter has no master, or is fp32
  const T* x;
  const Scalars* scalars;
  const std::int32_t* random;  // null with a master
  float factor, weight_decay;
  std::uint32_t number;

  template <int N>
  __device__ void at(std::int64_t i) const {
    const Scalars s = *scalars;
    if (!isfinite(s.gradient_scale)) return;
    const float rate = s.learning_rate * factor, decay = s.learning_rate * weight_decay;
    float w[N];
    load_weights(i, w);
    const auto direction = gpu::Packed<T, N>::load_streaming(x + i);
#pragma unroll
    for (int j = 0; j < N; ++j) w[j] = fmaf(-rate, direction[j], fmaf(-decay, w[j], w[j]));
    store_weights(i, w);
  }

  template <int N>
  __device__ void load_weights(std::int64_t i, float (&w)[N]) const {
    if constexpr (sizeof(T) == 2) {
      if (remainder) return adamw_kernels::load_masters(parameter + i, remainder + i, w);
    }
    gpu::Packed<T, N>::load(parameter + i).to_floats(w);
  }
  template <int N>
  __device__ void store_weights(std::int64_t i, float (&w)[N]) const {
    if constexpr (sizeof(T) == 2) {
      if (remainder) return adamw_kernels::store_masters(parameter + i, remainder + i, w);
      round_at_random(i, w);
    }
    gpu::Packed<T, N>::from_floats(w).store(parameter + i);
  }

  template <int N>
  __device__ void round_at_random(std::int64_t i, float (&w)[N]) const {
    using namespace adamw_kernels;
    static_assert(kRandomElements % N == 0);
    const PhiloxCounter block = random_block(random, number, i / kRandomElements);
    const int first = static_cast<int>(i % kRandomElements);
#pragma unroll
    for (int j = 0; j < N; ++j) w[j] = stochastically_rounded(w[j], random_half(block, first + j));
  }
};

std::string packs(const MuonProblem& p, const DeviceInfo&) {
  return p.aligned ? "16 bytes" : "elements";
}

void run_momentum(const Context& context, const MuonMomentum& args) {
  const Momentum f{static_cast<float*>(args.gradient.data), static_cast<float*>(args.m.data),
                   static_cast<const Scalars*>(args.scalars.data), static_cast<float>(1 - args.momentum)};
  gpu::for_each_element<float>(args.m.elements(), gpu::aligned16(f.gradient, f.m), f, context.stream().get(),
                               "muon.momentum cuda.packed");
}

void run_scale(const Context& context, const MuonScale& args) {
  gpu::visit_gpu_dtype(args.out.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    const Scale<T> f{static_cast<const float*>(args.x.data), static_cast<const float*>(args.norm.data),
                     static_cast<T*>(args.out.data), static_cast<float>(args.factor)};
    gpu::for_each_element<T>(args.x.elements(), gpu::aligned16(f.x, f.out), f, context.stream().get(),
                             "muon.scale cuda.packed");
  });
}

template <class T>
void update_all(const Context& context, const MuonUpdate& args) {
  const Update<T> f{static_cast<T*>(args.parameter.data),
                    static_cast<std::int16_t*>(args.remainder.data),
                    static_cast<const T*>(args.x.data),
                    static_cast<const Scalars*>(args.scalars.data),
                    static_cast<const std::int32_t*>(args.random.data),
                    static_cast<float>(args.factor),
                    static_cast<float>(args.weight_decay),
                    args.number};
  gpu::for_each_element<T>(args.parameter.elements(), gpu::aligned16(f.parameter, f.remainder, f.x), f,
                           context.stream().get(), "muon.update cuda.packed");
}

void run_update(const Context& context, const MuonUpdate& args) {
  args.parameter.dtype == DType::f32 ? update_all<float>(context, args)
                                     : update_all<__nv_bfloat16>(context, args);
}

}  // namespace

WARPWRIGHT_KERNEL(MuonMomentum, "cuda.packed"_kernel) = {
    .needs = Needs::gpu, .dtypes = DTypes{DType::f32}, .run = run_momentum, .configuration = packs};
WARPWRIGHT_KERNEL(MuonScale, "cuda.packed"_kernel) = {
    .needs = Needs::gpu, .dtypes = kGpuDTypes, .run = run_scale, .configuration = packs};
WARPWRIGHT_KERNEL(MuonUpdate, "cuda.packed"_kernel) = {.needs = Needs::gpu,
                                                       .dtypes = DTypes{DType::f32, DType::bf16},
                                                       .run = run_update,
                                                       .configuration = packs};

}  // namespace warpwright::ops
