// Muon's update of a matrix: the momentum's direction, whose singular values five iterations of Newton and
// Schulz bring near 1, replaces AdamW's quotient.
//   X ← X / ‖X‖_F, five times X ← aX + (bA + cA²)X with A = XXᵀ;  w −= learning_rate · (0.2·√max(rows,
//   columns) · X + weight_decay · w)
// The factor 0.2·√max(rows, columns) gives the update the size of AdamW's, so that one learning rate and one
// weight decay serve both. Sources: ops/muon.
//
// The products are ops/matmul's, in the parameter's dtype. They compute the smaller of XXᵀ and XᵀX, and no
// transpose. With Y = X / aᵏ after k iterations an iteration is Y ← Y + QY (or YQ), where Q = B + (ac/b²)·B²
// and B = (b/a)·A: the scales, and most additions, belong to the products.
#pragma once

#include <cstdint>
#include <vector>

#include "core/tensor.hpp"
#include "runtime/context.hpp"
#include "runtime/memory.hpp"

namespace warpwright {

// A parameter, or some of its rows.
struct MuonMatrix {
  Tensor parameter;  // (rows, columns)
  Tensor remainder;  // as in ops/adamw
  Tensor gradient;   // fp32; the update overwrites it
  Tensor m;          // fp32
  double weight_decay = 0;
  std::uint32_t number = 0;  // of the random bits
};

// Memory for one matrix at a time.
struct MuonBuffers {
  Tensor x, next;  // (rows · columns) of the parameter's dtype: Y, and QY or the next Y
  Tensor gram;     // (side²) fp32: YᵀY
  Tensor b, q;     // (side²) of the parameter's dtype
  Tensor squares;  // (blocks) fp64 (ops/global_norm)
  Tensor norm;     // (1) fp32
};
// For the largest of these matrices.
MuonBuffers allocate_muon(const std::vector<Shape>& matrices, DType dtype, Allocator& allocator);

// FLOPs of the products for one matrix.
double orthogonalization_flops(const Shape& matrix);
// factor · y, with y in the buffers.
struct Orthogonalized {
  Tensor y;
  double factor = 1;
};
// matrix: (rows, columns) fp32.
Orthogonalized orthogonalize(Context& context, const MuonBuffers& buffers, const Tensor& matrix);

struct MuonStep {
  Tensor scalars, random;  // of ops/muon
  double momentum = 0.95;
};
void update_matrix(Context& context, const MuonBuffers& buffers, const MuonMatrix& matrix,
                   const MuonStep& step);

}  // namespace warpwright
