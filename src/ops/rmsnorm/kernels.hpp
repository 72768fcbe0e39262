// RMS normalization is computed by ops/layernorm's kernels: its arguments as they take them.
#pragma once

#include "ops/layernorm/kernels.hpp"
#include "ops/rmsnorm/rmsnorm.hpp"

namespace warpwright::ops::rmsnorm {

inline layernorm::NormForward as_norm(const RMSNormForward& a) {
  layernorm::NormForward n;
  n.x = a.x;
  n.weight = a.weight;
  n.out = a.out;
  n.rstd = a.rstd;
  n.eps = a.eps;
  n.kept_columns = a.kept_columns;
  n.kept = a.kept;
  n.centered = false;
  return n;
}

inline layernorm::NormBackward as_norm(const RMSNormBackward& a) {
  layernorm::NormBackward n;
  n.dout = a.dout;
  n.x = a.x;
  n.weight = a.weight;
  n.rstd = a.rstd;
  n.dx = a.dx;
  n.dweight = a.dweight;
  n.dx_store = a.dx_store;
  n.dparameters_store = a.dparameters_store;
  n.dsum = a.dsum;
  n.out = a.out;
  n.kept_columns = a.kept_columns;
  n.kept = a.kept;
  n.centered = false;
  return n;
}

void forward_reference(const Context& context, const RMSNormForward& args);
void backward_reference(const Context& context, const RMSNormBackward& args);

}  // namespace warpwright::ops::rmsnorm
