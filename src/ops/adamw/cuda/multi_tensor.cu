// AdamW on a GPU, all tensors in one launch (of up to 581 tensors). Memory-bound: 28 bytes a parameter in
// fp32 (parameter, m and v read and written, gradient read), 30 with bf16 or fp16 beside an fp32 master.
// Every thread has four neighbours, 64 bytes to read, at a time. 0.96 of copy speed on an H200
// (docs/kernels.md).
#include "ops/adamw/kernels.hpp"
#include "ops/cuda/tensor_list.cuh"
#include "ops/cuda/vector.cuh"
#include "runtime/cuda/check.hpp"

namespace warpwright::ops::adamw_kernels::cuda {
namespace {

constexpr int kThreads = 256, kLanes = 4, kBlock = 2 * kThreads * kLanes;

// T: the dtype of the parameters that have 16 bits, if there are any.
template <class T>
struct Entry {
  T* rounded;     // a parameter of 16 bits, or null
  float* master;  // beside it, or the fp32 parameter itself
  const float* gradient;
  float *m, *v;
  std::int64_t elements;
  unsigned first_block;
  float weight_decay;

  __device__ bool aligned() const {
    const auto bits = reinterpret_cast<std::uintptr_t>(rounded) | reinterpret_cast<std::uintptr_t>(master) |
                      reinterpret_cast<std::uintptr_t>(gradient) | reinterpret_cast<std::uintptr_t>(m) |
                      reinterpret_cast<std::uintptr_t>(v);
    return bits % 16 == 0;
  }
};

struct Constants {
  const float* schedule;  // lr, c1, c2, scale
  float one_minus_beta1, one_minus_beta2, eps;
};

struct Step {
  float scale, one_minus_beta1, one_minus_beta2, eps;
  float rate;      // lr / c1
  float inverse2;  // 1 / √c2
  float decay;     // lr · weight_decay
};

// For `lanes` elements from i on.
template <int lanes, class T>
__device__ void update_at(const Entry<T>& t, const Step& s, std::int64_t i) {
  using Floats = gpu::Packed<float, lanes>;
  const auto gradient = Floats::load(t.gradient + i);
  auto m = Floats::load(t.m + i), v = Floats::load(t.v + i);
  auto w = Floats::load(t.master + i);
#pragma unroll
  for (int j = 0; j < lanes; ++j) {
    const float g = gradient.lanes[j] * s.scale;
    m.lanes[j] = fmaf(s.one_minus_beta1, g - m.lanes[j], m.lanes[j]);
    v.lanes[j] = fmaf(s.one_minus_beta2, fmaf(g, g, -v.lanes[j]), v.lanes[j]);
    const float step = m.lanes[j] * s.rate / fmaf(sqrtf(v.lanes[j]), s.inverse2, s.eps);
    w.lanes[j] = fmaf(-s.decay, w.lanes[j], w.lanes[j]) - step;
  }
  m.store(t.m + i);
  v.store(t.v + i);
  w.store(t.master + i);
  if constexpr (sizeof(T) == 2) {
    if (t.rounded) gpu::Packed<T, lanes>::from_floats(w.lanes).store(t.rounded + i);
  }
}

template <class T>
__global__ void __launch_bounds__(kThreads)
    update(const __grid_constant__ gpu::TensorList<Entry<T>> list, const Constants c) {
  const float lr = c.schedule[0], c1 = c.schedule[1], c2 = c.schedule[2], scale = c.schedule[3];
  if (!isfinite(scale)) return;
  const Entry<T> t = list.at_block(blockIdx.x);
  const Step step{scale,   c.one_minus_beta1, c.one_minus_beta2,  c.eps,
                  lr / c1, 1.0f / sqrtf(c2),  lr * t.weight_decay};
  const std::int64_t begin = static_cast<std::int64_t>(blockIdx.x - t.first_block) * kBlock;
  const std::int64_t end = t.elements - begin < kBlock ? t.elements : begin + kBlock;
  std::int64_t i = begin;
  if (t.aligned()) {
    for (i += threadIdx.x * kLanes; i + kLanes <= end; i += kThreads * kLanes) update_at<kLanes>(t, step, i);
    i = end - end % kLanes;
  }
  for (i += threadIdx.x; i < end; i += kThreads) update_at<1>(t, step, i);
}

template <class T>
void run(const Context& context, const AdamW& a) {
  const Constants constants{static_cast<const float*>(a.schedule.data), static_cast<float>(1 - a.beta1),
                            static_cast<float>(1 - a.beta2), static_cast<float>(a.eps)};
  const auto entry_of = [&](std::int64_t i) {
    const AdamWTensor& t = a.tensors[static_cast<std::size_t>(i)];
    const bool wide = t.parameter.dtype == DType::f32;
    return Entry<T>{wide ? nullptr : static_cast<T*>(t.parameter.data),
                    static_cast<float*>(wide ? t.parameter.data : t.master.data),
                    static_cast<const float*>(t.gradient.data),
                    static_cast<float*>(t.m.data),
                    static_cast<float*>(t.v.data),
                    t.parameter.elements(),
                    0,
                    static_cast<float>(t.weight_decay)};
  };
  gpu::for_each_tensor_list<Entry<T>>(static_cast<std::int64_t>(a.tensors.size()), kBlock, entry_of,
                                      [&](const gpu::TensorList<Entry<T>>& list, unsigned blocks) {
                                        update<<<blocks, kThreads, 0, context.stream().get()>>>(list,
                                                                                                constants);
                                        warpwright::cuda::check_launch("adamw cuda.multi_tensor");
                                      });
}

}  // namespace

void multi_tensor(const Context& context, const AdamW& args) {
  if (args.tensors.empty()) return;
  gpu::visit_gpu_dtype(narrowest_dtype(args),
                       [&](auto tag) { run<typename decltype(tag)::type>(context, args); });
}

}  // namespace warpwright::ops::adamw_kernels::cuda
