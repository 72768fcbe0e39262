#include "ops/layernorm/kernels.hpp"

namespace warpwright::ops {

NormForwardProblem RMSNormForward::problem() const {
  return layernorm::forward_problem("rmsnorm.forward", layernorm::as_norm(*this));
}
NormBackwardProblem RMSNormBackward::problem() const {
  return layernorm::backward_problem("rmsnorm.backward", layernorm::as_norm(*this));
}

namespace layernorm {

NormForward as_norm(const RMSNormForward& a) {
  NormForward n;
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

NormBackward as_norm(const RMSNormBackward& a) {
  NormBackward n;
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

}  // namespace layernorm

}  // namespace warpwright::ops
