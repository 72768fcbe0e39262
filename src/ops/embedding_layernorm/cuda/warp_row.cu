// Embedding and layer normalization on a GPU, with the sum of a row in a warp's registers. It reads three
// rows of the tables once, 16 bytes per access, and writes out once.
#include "ops/embedding_layernorm/cuda/rows.cuh"

namespace warpwright::ops {
namespace {

using namespace embedding_layernorm;

// The number of 16-byte packs that each lane holds; 0 if a warp cannot hold such a row.
int packs_of(std::int64_t C, DType dtype) {
  constexpr std::int64_t kMostPacks = 8;
  const auto lanes = static_cast<std::int64_t>(16 / size_of(dtype));
  if (C % lanes != 0 || C > gpu::kWarp * kMostPacks * lanes) return 0;
  const auto packs = static_cast<int>((C / lanes + gpu::kWarp - 1) / gpu::kWarp);
  return packs > 4 ? (packs + 1) / 2 * 2 : packs;
}

template <class T, int packs>
__global__ void __launch_bounds__(kThreads) warp_rows(const Arguments<T> a) {
  using Pack = gpu::Packed<T>;
  constexpr int kLanes = Pack::kLanes, kStep = gpu::kWarp * kLanes;
  const int n = row_of_warp(a);
  if (n < 0) return;
  const Row<T> row(a, n);
  const int first = static_cast<int>(threadIdx.x) % gpu::kWarp * kLanes;
  float values[packs][kLanes];
  float sum = 0;
#pragma unroll
  for (int k = 0; k < packs; ++k) {
    const int c = first + k * kStep;
    const bool exists = c < a.C;
    const Pack word = exists ? Pack::load(row.word + c) : Pack::zero();
    const Pack position = exists ? Pack::load(row.position + c) : Pack::zero();
    const Pack type = exists && row.type ? Pack::load(row.type + c) : Pack::zero();
#pragma unroll
    for (int j = 0; j < kLanes; ++j) {
      values[k][j] = word[j] + position[j] + type[j];
      sum += values[k][j];
    }
  }
  const float inverse_C = 1.0f / static_cast<float>(a.C);
  const float mean = gpu::warp_sum(sum) * inverse_C;
  float squares = 0;
#pragma unroll
  for (int k = 0; k < packs; ++k) {
#pragma unroll
    for (int j = 0; j < kLanes; ++j) {
      const float centered = first + k * kStep < a.C ? values[k][j] - mean : 0.0f;
      squares = fmaf(centered, centered, squares);
    }
  }
  const float rstd = rsqrtf(fmaf(gpu::warp_sum(squares), inverse_C, a.eps));
#pragma unroll
  for (int k = 0; k < packs; ++k) {
    const int c = first + k * kStep;
    if (c >= a.C) continue;
    const Pack weight = Pack::load(a.weight + c), bias = Pack::load(a.bias + c);
#pragma unroll
    for (int j = 0; j < kLanes; ++j) values[k][j] = fmaf((values[k][j] - mean) * rstd, weight[j], bias[j]);
    Pack::from_floats(values[k]).store(row.out + c);
  }
}

template <class T>
auto warp_rows_of(int packs) {
  switch (packs) {
    case 1:
      return warp_rows<T, 1>;
    case 2:
      return warp_rows<T, 2>;
    case 3:
      return warp_rows<T, 3>;
    case 4:
      return warp_rows<T, 4>;
    case 6:
      return warp_rows<T, 6>;
    default:
      return warp_rows<T, 8>;
  }
}

void forward(const Context& context, const EmbeddingLayerNormForward& args) {
  gpu::visit_gpu_dtype(args.out.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    const Arguments<T> a(args);
    launch(warp_rows_of<T>(packs_of(a.C, args.out.dtype)), context, a,
           "embedding_layernorm.forward cuda.warp_row");
  });
}

Refusal refuse(const EmbeddingLayerNormProblem& p, const DeviceInfo&) {
  if (packs_of(p.C, p.dtype) == 0) return "the row is too long or not made of 16-byte packs";
  if (!p.aligned) return "a tensor does not begin at a multiple of 16 bytes";
  return {};
}

std::string configuration(const EmbeddingLayerNormProblem& p, const DeviceInfo&) {
  return std::to_string(packs_of(p.C, p.dtype)) + " packs";
}

}  // namespace

WARPWRIGHT_KERNEL(EmbeddingLayerNormForward, "cuda.warp_row"_kernel) = {.needs = Needs::gpu,
                                                                        .dtypes = kGpuDTypes,
                                                                        .run = forward,
                                                                        .refuse = refuse,
                                                                        .configuration = configuration};

}  // namespace warpwright::ops
