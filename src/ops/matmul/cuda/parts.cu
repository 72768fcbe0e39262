#include <algorithm>
#include <type_traits>

#include "ops/cuda/column_sum.cuh"
#include "ops/cuda/gelu.cuh"
#include "ops/cuda/vector.cuh"
#include "ops/matmul/cuda/result.cuh"
#include "runtime/cuda/check.hpp"

namespace warpwright::ops::matmul::cuda {
namespace {

using gpu::Packed;

constexpr int kLanes = 32, kWarps = 8;
constexpr std::int64_t kMostBlocks = 65535;  // in a grid's second dimension

template <class T>
struct Rows {
  T* data;
  std::int64_t stride;
  __device__ T* at(std::int64_t row, std::int64_t col) const { return data + row * stride + col; }
};
template <class T>
Rows<T> rows_of(const Tensor& t) {
  return {static_cast<T*>(t.data), t ? leading_of(t) : 0};
}

// A thread has N neighbouring columns of kRows rows, all loaded before the first is used. A block has 32·N
// columns and kWarps·kRows rows.
constexpr int kRows = 2;

template <int N, class Load, class Use>
__device__ void for_each_pack(std::int64_t rows, std::int64_t cols, Load&& load, Use&& use) {
  using Loaded = decltype(load(rows, cols));
  const std::int64_t col = (static_cast<std::int64_t>(blockIdx.x) * kLanes + threadIdx.x) * N;
  if (col >= cols) return;
  std::int64_t first = static_cast<std::int64_t>(blockIdx.y) * kWarps * kRows + threadIdx.y;
  for (; first < rows; first += static_cast<std::int64_t>(gridDim.y) * kWarps * kRows) {
    Loaded loaded[kRows];
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      if (first + i * kWarps < rows) loaded[i] = load(first + i * kWarps, col);
    }
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      if (first + i * kWarps < rows) use(first + i * kWarps, col, loaded[i]);
    }
  }
}

template <class First, class Second>
struct Both {
  First first;
  Second second;
};

template <class T, class Out, int N, Activation activation>
__global__ void __launch_bounds__(kLanes* kWarps)
    finish_forward_kernel(Rows<const Out> product, const T* bias, Rows<T> preact, Rows<const Out> residual,
                          float scale, Rows<Out> out, std::int64_t rows, std::int64_t cols) {
  using Sums = Packed<Out, N>;
  const auto load = [&](std::int64_t row, std::int64_t col) {
    return Both<Sums, Sums>{Sums::load(product.at(row, col)),
                            residual.data ? Sums::load(residual.at(row, col)) : Sums::zero()};
  };
  for_each_pack<N>(rows, cols, load, [&](std::int64_t row, std::int64_t col, const auto& loaded) {
    float v[N];
    loaded.first.to_floats(v);
    if (bias) {
      const auto b = Packed<T, N>::load(bias + col);
#pragma unroll
      for (int i = 0; i < N; ++i) v[i] += b[i];
    }
    if (preact.data) Packed<T, N>::from_floats(v).store(preact.at(row, col));
#pragma unroll
    for (int i = 0; i < N; ++i) v[i] = scale * gpu::activate<activation>(v[i]) + loaded.second[i];
    Sums::from_floats(v).store(out.at(row, col));
  });
}

template <class T, class Out, int N, Activation activation>
__global__ void __launch_bounds__(kLanes* kWarps)
    finish_dx_kernel(Rows<Out> dx, Rows<const T> preact, std::int64_t rows, std::int64_t cols) {
  const auto load = [&](std::int64_t row, std::int64_t col) {
    return Both<Packed<Out, N>, Packed<T, N>>{Packed<Out, N>::load(dx.at(row, col)),
                                              Packed<T, N>::load(preact.at(row, col))};
  };
  for_each_pack<N>(rows, cols, load, [&](std::int64_t row, std::int64_t col, const auto& loaded) {
    float gradient[N];
    loaded.first.to_floats(gradient);
#pragma unroll
    for (int i = 0; i < N; ++i) gradient[i] *= gpu::activation_derivative<activation>(loaded.second[i]);
    Packed<Out, N>::from_floats(gradient).store(dx.at(row, col));
  });
}

// Sums 32·N columns over part blockIdx.y of the rows. Each warp sums every eighth row.
template <class T, int N>
__global__ void __launch_bounds__(kLanes* kWarps)
    partial_sums_kernel(Rows<const T> dout, float* partials, std::int64_t rows, std::int64_t cols,
                        std::int64_t rows_per_part) {
  __shared__ float sums[kWarps][kLanes * N];
  const std::int64_t first_col = static_cast<std::int64_t>(blockIdx.x) * kLanes * N;
  const std::int64_t col = first_col + static_cast<std::int64_t>(threadIdx.x) * N;
  const std::int64_t begin = static_cast<std::int64_t>(blockIdx.y) * rows_per_part;
  const std::int64_t end = min(begin + rows_per_part, rows);
  float sum[N] = {};
  if (col < cols) {
#pragma unroll 4
    for (std::int64_t row = begin + threadIdx.y; row < end; row += kWarps) {
      const auto v = Packed<T, N>::load(dout.at(row, col));
#pragma unroll
      for (int i = 0; i < N; ++i) sum[i] += v[i];
    }
  }
#pragma unroll
  for (int i = 0; i < N; ++i) sums[threadIdx.y][threadIdx.x * N + i] = sum[i];
  __syncthreads();
  for (int i = static_cast<int>(threadIdx.y * kLanes + threadIdx.x); i < kLanes * N; i += kLanes * kWarps) {
    float total = 0;
#pragma unroll
    for (int warp = 0; warp < kWarps; ++warp) total += sums[warp][i];
    if (first_col + i < cols) partials[blockIdx.y * cols + first_col + i] = total;
  }
}

// out (= or +=) the sums of in's columns, 32 per block.
constexpr int kTotalWarps = 32;
template <class T>
__global__ void __launch_bounds__(kLanes* kTotalWarps)
    total_sums_kernel(Rows<const T> in, float* out, std::int64_t rows, std::int64_t cols, bool add) {
  const std::int64_t col = static_cast<std::int64_t>(blockIdx.x) * kLanes + threadIdx.x;
  const auto load = [&](std::int64_t row) { return gpu::to_float(*in.at(row, col)); };
  gpu::sum_column<kTotalWarps, 8, float>(static_cast<int>(threadIdx.y), static_cast<int>(threadIdx.x),
                                         col < cols, rows, load,
                                         [&](float sum) { out[col] = add ? out[col] + sum : sum; });
}

template <class T>
void total_rows(const Context& context, const Rows<const T>& in, std::int64_t rows, const Tensor& out,
                Store store) {
  const std::int64_t cols = out.shape[0];
  total_sums_kernel<<<static_cast<unsigned>(ceil_div(cols, kLanes)), dim3(kLanes, kTotalWarps), 0,
                      context.stream().get()>>>(in, out.as<float>(), rows, cols, store == Store::add);
  warpwright::cuda::check_launch("matmul.dw column sums");
}

dim3 grid_of(std::int64_t rows, std::int64_t cols, int pack) {
  return dim3(static_cast<unsigned>(ceil_div(cols, std::int64_t{kLanes} * pack)),
              static_cast<unsigned>(std::min(ceil_div(rows, kWarps * kRows), kMostBlocks)));
}

// True if a row, or a vector, can be read 16 bytes at a time to its end. Absent ones do not count.
bool fills_packs(const Tensor& t) {
  if (!t) return true;
  const int last = t.shape.rank() - 1;
  const bool begins = last == 1 ? rows_begin_at_packs(t) : begin_at_packs(t);
  return begins && t.shape[last] * static_cast<std::int64_t>(size_of(t.dtype)) % 16 == 0;
}
template <class... T>
bool fill_packs(const T&... tensors) {
  return (fills_packs(tensors) && ...);
}

// Calls f with the number of elements in an access, as a constant.
template <class T, class F>
void visit_pack(bool packed, F&& f) {
  if (packed) {
    f(std::integral_constant<int, gpu::kPackedLanes<T>>());
  } else {
    f(std::integral_constant<int, 1>());
  }
}

// Calls f with the activation as a constant.
template <class F>
void visit_activation(Activation activation, F&& f) {
  switch (activation) {
    case Activation::gelu_tanh:
      return f(std::integral_constant<Activation, Activation::gelu_tanh>());
    case Activation::gelu_erf:
      return f(std::integral_constant<Activation, Activation::gelu_erf>());
    case Activation::relu:
      return f(std::integral_constant<Activation, Activation::relu>());
    case Activation::tanh:
      return f(std::integral_constant<Activation, Activation::tanh>());
    default:
      return f(std::integral_constant<Activation, Activation::none>());
  }
}

std::int64_t parts_of(std::int64_t M, std::int64_t N) {
  constexpr std::int64_t kRowsPerPart = 128, kMostParts = 256, kMostPartials = 1 << 20;
  return std::max<std::int64_t>(1, std::min({M / kRowsPerPart, kMostParts, kMostPartials / N}));
}

}  // namespace

void total_sums(const Context& context, const float* partials, std::int64_t parts, const Tensor& out,
                Store store) {
  total_rows(context, Rows<const float>{partials, out.shape[0]}, parts, out, store);
}

void plain_column_sums(const Context& context, const Tensor& dout, const Tensor& dbias, Store store) {
  gpu::visit_gpu_dtype(dout.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    total_rows(context, rows_of<const T>(dout), dout.shape[0], dbias, store);
  });
}

void finish_forward(const Context& context, const MatmulForward& args, const Tensor& bias) {
  const std::int64_t rows = args.out.shape[0], cols = args.out.shape[1];
  const Tensor& product = product_of(args);
  const Tensor preact = bias || product.data != args.preact.data ? args.preact : Tensor();
  const bool packed = fill_packs(product, bias, preact, args.residual, args.out);
  visit_result_dtype(args.x.dtype, args.out.dtype, [&]<class T, class Out>() {
    visit_pack<Out>(packed, [&](auto pack) {
      visit_activation(args.activation, [&](auto chosen) {
        finish_forward_kernel<T, Out, pack, chosen>
            <<<grid_of(rows, cols, pack), dim3(kLanes, kWarps), 0, context.stream().get()>>>(
                rows_of<const Out>(product), static_cast<const T*>(bias.data), rows_of<T>(preact),
                rows_of<const Out>(args.residual), args.scale, rows_of<Out>(args.out), rows, cols);
      });
    });
  });
  warpwright::cuda::check_launch("matmul.forward after the product");
}

void finish_dx(const Context& context, const Tensor& dx, const Tensor& preact, Activation activation) {
  const std::int64_t rows = dx.shape[0], cols = dx.shape[1];
  const bool packed = fill_packs(dx, preact);
  visit_result_dtype(preact.dtype, dx.dtype, [&]<class T, class Out>() {
    visit_pack<Out>(packed, [&](auto pack) {
      visit_activation(activation, [&](auto chosen) {
        finish_dx_kernel<T, Out, pack, chosen>
            <<<grid_of(rows, cols, pack), dim3(kLanes, kWarps), 0, context.stream().get()>>>(
                rows_of<Out>(dx), rows_of<const T>(preact), rows, cols);
      });
    });
  });
  warpwright::cuda::check_launch("matmul.dx activation");
}

std::size_t column_sums_bytes(std::int64_t M, std::int64_t N) {
  return N == 0 ? 0 : static_cast<std::size_t>(parts_of(M, N) * N) * sizeof(float);
}

void column_sums(const Context& context, const Tensor& dout, const Tensor& dbias, Store store,
                 float* partials) {
  const std::int64_t rows = dout.shape[0], cols = dout.shape[1];
  if (cols == 0) return;
  const std::int64_t parts = parts_of(rows, cols);
  gpu::visit_gpu_dtype(dout.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    visit_pack<T>(fills_packs(dout), [&](auto pack) {
      const dim3 grid(static_cast<unsigned>(ceil_div(cols, std::int64_t{kLanes} * pack)),
                      static_cast<unsigned>(parts));
      partial_sums_kernel<T, pack><<<grid, dim3(kLanes, kWarps), 0, context.stream().get()>>>(
          rows_of<const T>(dout), partials, rows, cols, ceil_div(rows, parts));
    });
  });
  warpwright::cuda::check_launch("matmul.dw column sums");
  total_sums(context, partials, parts, dbias, store);
}

}  // namespace warpwright::ops::matmul::cuda
