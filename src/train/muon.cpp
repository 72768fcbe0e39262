#include "train/muon.hpp"

#include <algorithm>
#include <cmath>

#include "ops/global_norm/global_norm.hpp"
#include "ops/matmul/matmul.hpp"
#include "ops/muon/muon.hpp"
#include "ops/residual/residual.hpp"

namespace warpwright {
namespace {

constexpr int kIterations = 5;
constexpr double kA = 3.4445, kB = -4.7750, kC = 2.0315;

bool is_wide(const Shape& matrix) {
  return matrix[0] <= matrix[1];
}

Tensor first_of(const Tensor& buffer, const Shape& shape) {
  return buffer.slice(0, 0, shape.elements()).view(shape);
}

// B = scale · YYᵀ, or scale · YᵀY if that is smaller.
void scaled_gram(Context& context, const Tensor& y, const Tensor& gram, const Tensor& b, double scale) {
  if (is_wide(y.shape)) {
    ops::matmul_forward(
        context,
        {.x = y, .weight = y, .bias = {}, .out = b, .preact = {}, .scale = static_cast<float>(scale)});
  } else {
    ops::matmul_dw(context, {.dout = y, .x = y, .dweight = gram, .dbias = {}, .store = ops::Store::assign});
    ops::muon_scale(context, {.x = gram, .out = b, .factor = scale});
  }
}

// Q = B + (ac/b²)·B². B is symmetric, and so is its own transpose.
void polynomial(Context& context, const Tensor& b, const Tensor& q) {
  ops::matmul_forward(context, {.x = b,
                                .weight = b,
                                .bias = {},
                                .out = q,
                                .preact = {},
                                .residual = b,
                                .scale = static_cast<float>(kA * kC / (kB * kB))});
}

}  // namespace

MuonBuffers allocate_muon(const std::vector<Shape>& matrices, DType dtype, Allocator& allocator) {
  std::int64_t elements = 0, side = 0;
  for (const Shape& matrix : matrices) {
    elements = std::max(elements, matrix.elements());
    side = std::max(side, std::min(matrix[0], matrix[1]));
  }
  const DType accumulation = ops::accumulation_dtype(dtype);
  const auto allocate = [&](const char* name, DType as, std::int64_t count) {
    return allocator.allocate(name, as, {count}, Category::activations);
  };
  const std::int64_t blocks = ops::squares_blocks({Tensor(nullptr, accumulation, {elements})});
  return {.x = allocate("muon.x", dtype, elements),
          .next = allocate("muon.next", dtype, elements),
          .gram = allocate("muon.gram", accumulation, side * side),
          .b = allocate("muon.b", dtype, side * side),
          .q = allocate("muon.q", dtype, side * side),
          .squares = allocate("muon.squares", DType::f64, blocks),
          .norm = allocate("muon.norm", accumulation, 1)};
}

double orthogonalization_flops(const Shape& matrix) {
  const auto side = static_cast<double>(std::min(matrix[0], matrix[1]));
  return kIterations * 2 * (2 * side * static_cast<double>(matrix.elements()) + side * side * side);
}

Orthogonalized orthogonalize(Context& context, const MuonBuffers& buffers, const Tensor& matrix) {
  const bool wide = is_wide(matrix.shape);
  const std::int64_t side = std::min(matrix.shape[0], matrix.shape[1]);
  Tensor y = first_of(buffers.x, matrix.shape), next = first_of(buffers.next, matrix.shape);
  const Tensor gram = first_of(buffers.gram, {side, side}), b = first_of(buffers.b, {side, side}),
               q = first_of(buffers.q, {side, side});
  const Tensor squares = buffers.squares.slice(0, 0, ops::squares_blocks({matrix}));
  ops::squares(context, {.gradients = {matrix}, .sums = squares});
  ops::global_norm(context, {.sums = squares, .norm = buffers.norm, .scale = {}});
  ops::muon_scale(context, {.x = matrix, .norm = buffers.norm, .out = y});
  double grown = 1;  // X = grown · Y
  for (int i = 0; i < kIterations; ++i, grown *= kA) {
    scaled_gram(context, y, gram, b, kB / kA * grown * grown);
    polynomial(context, b, q);
    if (wide) {
      ops::matmul_dx(context, {.dout = q, .weight = y, .preact = {}, .dx = next});
      ops::residual_forward(context, {.a = y, .b = next, .out = y});
    } else {
      ops::matmul_forward(context,
                          {.x = y, .weight = q, .bias = {}, .out = next, .preact = {}, .residual = y});
      std::swap(y, next);
    }
  }
  return {.y = y, .factor = grown};
}

void update_matrix(Context& context, const MuonBuffers& buffers, const MuonMatrix& matrix,
                   const MuonStep& step) {
  const Shape& shape = matrix.parameter.shape;
  ops::muon_momentum(
      context,
      {.gradient = matrix.gradient, .m = matrix.m, .scalars = step.scalars, .momentum = step.momentum});
  const Orthogonalized direction = orthogonalize(context, buffers, matrix.gradient);
  const auto larger = static_cast<double>(std::max(shape[0], shape[1]));
  ops::muon_update(context, {.parameter = matrix.parameter,
                             .remainder = matrix.remainder,
                             .x = direction.y,
                             .scalars = step.scalars,
                             .random = matrix.remainder ? Tensor() : step.random,
                             .factor = 0.2 * std::sqrt(larger) * direction.factor,
                             .weight_decay = matrix.weight_decay,
                             .number = matrix.number});
}

}  // namespace warpwright
