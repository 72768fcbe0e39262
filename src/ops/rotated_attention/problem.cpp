#include <fmt/format.h>

#include "ops/rotated_attention/rotated_attention.hpp"

namespace warpwright::ops {
namespace {

constexpr std::string_view kName = "rotated_attention.backward";

}  // namespace

namespace rotated_attention {

AttentionBackward attention_of(const RotatedAttentionBackward& a) {
  const std::int64_t NH = a.attention.q.shape[1];
  AttentionBackward attention = a.attention;
  attention.dq = a.dqk.slice(1, 0, NH);
  attention.dk = a.dqk.slice(1, NH, a.dqk.shape[1] - NH);
  return attention;
}

RopeBackward rope_of(const RotatedAttentionBackward& a) {
  return {.dout = a.dqk,
          .positions = a.positions,
          .cos = a.cos,
          .sin = a.sin,
          .dx = a.dqk,
          .wrong = a.wrong,
          .layout = a.layout};
}

}  // namespace rotated_attention

RotatedAttentionProblem RotatedAttentionBackward::problem() const {
  const Tensor &q = attention.q, &k = attention.k;
  require(!attention.dq && !attention.dk, kName, "dqk takes the place of dq and dk");
  require(q.shape.rank() == 3 && k.shape.rank() == 3 && k.shape[0] == q.shape[0], kName,
          "q and k must be (N, heads, HS)");
  require_shape(kName, "dqk", dqk, {q.shape[0], q.shape[1] + k.shape[1], q.shape[2]});
  return {.attention = rotated_attention::attention_of(*this).problem(),
          .rope = rotated_attention::rope_of(*this).problem(),
          .dtype = q.dtype};
}

std::string RotatedAttentionProblem::describe() const {
  return fmt::format("{} R={} P={} {}{}", attention.describe(), rope.R, rope.P, name_of(rope.layout),
                     unaligned_note(rope.aligned));
}
double RotatedAttentionProblem::flops() const {
  return attention.flops() + rope.flops();
}
// The gradients are written once, and not read.
double RotatedAttentionProblem::bytes() const {
  const double rotated = static_cast<double>(rope.N * rope.NH) * static_cast<double>(rope.R);
  return attention.bytes() + rope.bytes() - 2 * rotated * static_cast<double>(size_of(dtype));
}

}  // namespace warpwright::ops
