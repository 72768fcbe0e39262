// QK norm on a CPU, one head at a time. Memory-bound: forward 2 passes over (N, NH, HS), backward 3 (dout, x,
// dx); the second read of a head is in L1. The threads share the rows, and in the backward parts of them.
#include "ops/cpu/isa.hpp"
#include "ops/cpu/simd.hpp"
#include "ops/head_norm/kernels.hpp"

namespace warpwright::ops::head_norm {
namespace {

using namespace simd;

template <class T>
T* head_of(const Tensor& t, std::int64_t n, std::int64_t h) {
  return static_cast<T*>(t.data) + n * t.strides[0] + h * t.strides[1];
}
const float* weight_of(const Tensor& q_weight, const Tensor& k_weight, bool is_q) {
  return static_cast<const float*>((is_q ? q_weight : k_weight).data);
}

// The sum over a head of f(i, n), which is 0 in the lanes after the head's end.
template <class F>
float sum_head(std::int64_t HS, const F& f) {
  vec total = zero();
  for_each_vector(0, HS, [&](std::int64_t i, int n) { total += f(i, n); });
  return sum(total);
}

template <class T>
void run_forward(const HeadNormForward& a, int threads) {
  const std::int64_t N = a.x.shape[0], NH = a.x.shape[1], HS = a.x.shape[2];
  auto* rstd = static_cast<float*>(a.rstd.data);
  const auto eps = static_cast<float>(a.eps);
#pragma omp parallel for schedule(static) num_threads(threads)
  for (std::int64_t n = 0; n < N; ++n) {
    for (std::int64_t h = 0; h < NH; ++h) {
      const float* weight = weight_of(a.q_weight, a.k_weight, h < a.q_heads);
      const T* x = head_of<const T>(a.x, n, h);
      T* out = head_of<T>(a.out, n, h);
      const float squares = sum_head(HS, [=](std::int64_t i, int lanes) {
        const vec v = load_lanes(x + i, lanes);
        return v * v;
      });
      const float r = 1.0f / __builtin_sqrtf(squares / static_cast<float>(HS) + eps);
      if (rstd) rstd[n * NH + h] = r;
      for_each_vector(0, HS, [=](std::int64_t i, int lanes) {
        store_lanes(out + i, load_lanes(x + i, lanes) * set1(r) * load_lanes(weight + i, lanes), lanes);
      });
    }
  }
}

// dx of one head. Adds the head's dout·x̂ to dweight.
template <class T>
void head_backward(const T* dout, const T* x, const float* weight, float r, T* dx, float* dweight,
                   std::int64_t HS) {
  const float products = sum_head(HS, [=](std::int64_t i, int lanes) {
    return load_lanes(dout + i, lanes) * load_lanes(weight + i, lanes) * load_lanes(x + i, lanes);
  });
  const vec mean = set1(products * r / static_cast<float>(HS));
  for_each_vector(0, HS, [=](std::int64_t i, int lanes) {
    const vec d = load_lanes(dout + i, lanes), x_hat = load_lanes(x + i, lanes) * set1(r);
    store_lanes(dweight + i, fma(d, x_hat, load_lanes(dweight + i, lanes)), lanes);
    store_lanes(dx + i, set1(r) * fnma(x_hat, mean, d * load_lanes(weight + i, lanes)), lanes);
  });
}

// dweight (= or +=) the sum of its parts, which are `stride` apart.
void add_parts(const float* parts, std::int64_t count, std::int64_t stride, const Tensor& dweight,
               std::int64_t HS, Store store) {
  auto* to = static_cast<float*>(dweight.data);
  for_each_vector(0, HS, [=](std::int64_t i, int lanes) {
    vec total = zero();
    for (std::int64_t part = 0; part < count; ++part) total += load_lanes(parts + part * stride + i, lanes);
    store_lanes(to + i, store == Store::add ? load_lanes(to + i, lanes) + total : total, lanes);
  });
}

template <class T>
void run_backward(const HeadNormBackward& a, float* scratch, int threads) {
  const std::int64_t N = a.x.shape[0], NH = a.x.shape[1], HS = a.x.shape[2];
  const std::int64_t parts = row_parts(N), stride = 2 * HS;
  const auto* rstd = static_cast<const float*>(a.rstd.data);
#pragma omp parallel for schedule(static) num_threads(threads)
  for (std::int64_t part = 0; part < parts; ++part) {
    float* dweights = scratch + part * stride;
    for (std::int64_t i = 0; i < stride; ++i) dweights[i] = 0;
    for (std::int64_t n = part * N / parts; n < (part + 1) * N / parts; ++n) {
      for (std::int64_t h = 0; h < NH; ++h) {
        const bool is_q = h < a.q_heads;
        head_backward(head_of<const T>(a.dout, n, h), head_of<const T>(a.x, n, h),
                      weight_of(a.q_weight, a.k_weight, is_q), rstd[n * NH + h], head_of<T>(a.dx, n, h),
                      is_q ? dweights : dweights + HS, HS);
      }
    }
  }
  add_parts(scratch, parts, stride, a.dq_weight, HS, a.dweights_store);
  add_parts(scratch + HS, parts, stride, a.dk_weight, HS, a.dweights_store);
}

void forward(const Context& context, const HeadNormForward& args) {
  switch (args.x.dtype) {
    case DType::bf16:
      return run_forward<bf16>(args, context.threads());
    case DType::f16:
      return run_forward<f16>(args, context.threads());
    default:
      return run_forward<float>(args, context.threads());
  }
}

void backward(const Context& context, const HeadNormBackward& args) {
  auto* scratch = static_cast<float*>(context.scratch());
  switch (args.x.dtype) {
    case DType::bf16:
      return run_backward<bf16>(args, scratch, context.threads());
    case DType::f16:
      return run_backward<f16>(args, scratch, context.threads());
    default:
      return run_backward<float>(args, scratch, context.threads());
  }
}

constexpr DTypes kDTypes{DType::f32, DType::bf16, DType::f16};

}  // namespace
}  // namespace warpwright::ops::head_norm

namespace warpwright::ops {

WARPWRIGHT_KERNEL(HeadNormForward, kCpu) = {
    .needs = kThisCpu, .dtypes = head_norm::kDTypes, .run = head_norm::forward};
WARPWRIGHT_KERNEL(HeadNormBackward, kCpu) = {.needs = kThisCpu,
                                             .dtypes = head_norm::kDTypes,
                                             .run = head_norm::backward,
                                             .workspace = head_norm::cpu_workspace};

}  // namespace warpwright::ops
