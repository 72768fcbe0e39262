// The sum with a residual and its normalization, if neither the sum nor the statistics are kept, as between
// an encoder's layers. Each row has up to 1,024 elements of 16 bits and belongs to one warp.
//
// Between products these rows are in the second-level cache, so latency decides: loads are issued together,
// both sums of the statistics take one pass, and the parameters are read before the previous kernel has
// ended.
#include "ops/cuda/overlap.cuh"
#include "ops/cuda/reduce.cuh"
#include "ops/cuda/vector.cuh"
#include "ops/norm/kernels.hpp"

namespace warpwright::ops {
namespace norm::cuda {
namespace {

template <class T>
struct Rows {
  const T *x, *x_bias, *residual, *weight, *bias;  // x_bias and bias may be null
  T* out;
  const std::int32_t* rows;  // number of rows to compute, or null for all N
  int N, C;
  float eps, inverse_C;

  explicit Rows(const NormForward& args)
      : x(static_cast<const T*>(args.x.data)),
        x_bias(static_cast<const T*>(args.x_bias.data)),
        residual(static_cast<const T*>(args.residual.data)),
        weight(static_cast<const T*>(args.weight.data)),
        bias(static_cast<const T*>(args.bias.data)),
        out(static_cast<T*>(args.out.data)),
        rows(args.rows.as<std::int32_t>()),
        N(static_cast<int>(args.x.shape[0])),
        C(static_cast<int>(args.x.shape[1])),
        eps(static_cast<float>(args.eps)),
        inverse_C(1.0f / static_cast<float>(C)) {}
};

constexpr int kThreads = 128, kRowsOfBlock = kThreads / gpu::kWarp;
constexpr int kBlocks = 6;  // the registers of a multiprocessor suffice for this many

template <class T, int packs>
__global__ void __launch_bounds__(kThreads, kBlocks) state_rows(const __grid_constant__ Rows<T> a) {
  using Pack = gpu::Packed<T>;
  constexpr int kLanes = Pack::kLanes, kStep = gpu::kWarp * kLanes;
  const int column = static_cast<int>(threadIdx.x) % gpu::kWarp * kLanes;
  const int row = static_cast<int>(blockIdx.x) * kRowsOfBlock + static_cast<int>(threadIdx.x) / gpu::kWarp;
  if (row >= (a.rows ? min(a.N, __ldg(a.rows)) : a.N)) return;
  gpu::let_next_kernel_begin();
  const auto inside = [&](int k) { return k < packs - 1 || column + k * kStep < a.C; };
  const auto read = [&](const T* from, Pack(&to)[packs]) {
#pragma unroll
    for (int k = 0; k < packs; ++k)
      to[k] = from && inside(k) ? Pack::load(from + column + k * kStep) : Pack::zero();
  };
  Pack x[packs], added[packs], residual[packs], weight[packs], bias[packs];
  read(a.x_bias, added);
  read(a.weight, weight);
  read(a.bias, bias);
  gpu::wait_for_kernels_before();
  const std::int64_t first = static_cast<std::int64_t>(row) * a.C;
  read(a.x + first, x);
  read(a.residual + first, residual);
  float values[packs][kLanes];
#pragma unroll
  for (int k = 0; k < packs; ++k) {
#pragma unroll
    for (int j = 0; j < kLanes; ++j) {
      values[k][j] = __fadd_rn(__fadd_rn(x[k][j], added[k][j]), residual[k][j]);
    }
  }
  // The sums are taken about the row's first element, which is at most √C deviations from the mean. The
  // variance thus loses at most 10 of its 24 bits, and out has 11.
  const float shift = __shfl_sync(gpu::kAllLanes, values[0][0], 0);
  float sum = 0, squares = 0;
#pragma unroll
  for (int k = 0; k < packs; ++k) {
    float part = 0, part_of_squares = 0;
#pragma unroll
    for (int j = 0; j < kLanes; ++j) {
      const float from_shift = __fadd_rn(values[k][j], -shift);
      part = __fadd_rn(part, from_shift);
      part_of_squares = fmaf(from_shift, from_shift, part_of_squares);
    }
    sum = __fadd_rn(sum, inside(k) ? part : 0.0f);
    squares = __fadd_rn(squares, inside(k) ? part_of_squares : 0.0f);
  }
#pragma unroll
  for (int distance = gpu::kWarp / 2; distance > 0; distance /= 2) {
    const float other = __shfl_xor_sync(gpu::kAllLanes, sum, distance),
                others = __shfl_xor_sync(gpu::kAllLanes, squares, distance);
    sum = __fadd_rn(sum, other);
    squares = __fadd_rn(squares, others);
  }
  const float rest = __fmul_rn(sum, a.inverse_C), mean = __fadd_rn(shift, rest);
  squares = __fmul_rn(squares, a.inverse_C);
  const float variance = squares == INFINITY ? squares : fmaf(-rest, rest, squares);
  const float rstd = rsqrtf(__fadd_rn(variance < 0 ? 0.0f : variance, a.eps));
#pragma unroll
  for (int k = 0; k < packs; ++k) {
    if (!inside(k)) continue;
#pragma unroll
    for (int j = 0; j < kLanes; ++j) {
      values[k][j] = fmaf(__fmul_rn(__fadd_rn(values[k][j], -mean), rstd), weight[k][j], bias[k][j]);
    }
    Pack::from_floats(values[k]).store(a.out + first + column + k * kStep);
  }
}

constexpr int kPack = 8, kMostPacks = 4;  // elements of 16 bits per pack; packs per lane
int packs_of(std::int64_t C) {
  return static_cast<int>((C + kPack * gpu::kWarp - 1) / (kPack * gpu::kWarp));
}

template <class T>
void launch(const Context& context, const Rows<T>& a) {
  const auto with = [&]<int packs>() {
    gpu::launch_overlapped(context, state_rows<T, packs>,
                           static_cast<unsigned>((a.N + kRowsOfBlock - 1) / kRowsOfBlock), kThreads, 0,
                           "norm.forward cuda.state_row", a);
  };
  switch (packs_of(a.C)) {
    case 1:
      return with.template operator()<1>();
    case 2:
      return with.template operator()<2>();
    case 3:
      return with.template operator()<3>();
    default:
      return with.template operator()<4>();
  }
}

void forward(const Context& context, const NormForward& args) {
  if (args.x.shape[0] == 0) return;
  args.x.dtype == DType::bf16 ? launch(context, Rows<__nv_bfloat16>(args))
                              : launch(context, Rows<__half>(args));
}

Refusal refuse(const NormForwardProblem& p, const DeviceInfo&) {
  if (!p.residual || !p.weight || !p.centered) return "needs layer normalization with weight and residual";
  if (p.sum || p.statistics) return "keeps no sum and no statistics";
  if (p.fp32_parameters) return "takes only parameters of 16 bits";
  if (p.C % kPack != 0 || packs_of(p.C) > kMostPacks) {
    return "the row is too long or not made of 16-byte packs";
  }
  if (!p.aligned) return "a tensor does not begin at a multiple of 16 bytes";
  return {};
}

std::string configuration(const NormForwardProblem& p, const DeviceInfo&) {
  return std::to_string(packs_of(p.C)) + " packs";
}

}  // namespace
}  // namespace norm::cuda

WARPWRIGHT_KERNEL(NormForward, "cuda.state_row"_kernel) = {.needs = Needs::gpu,
                                                           .dtypes = k16Bits,
                                                           .run = norm::cuda::forward,
                                                           .refuse = norm::cuda::refuse,
                                                           .configuration = norm::cuda::configuration};

}  // namespace warpwright::ops
