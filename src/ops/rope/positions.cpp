// Wrong positions: how kernels on a CPU find them, and how a call reports them.
#include <fmt/format.h>

#include "ops/rope/kernels.hpp"

namespace warpwright::ops {

namespace rope {

Rotation rotation_of(const RopeForward& a) {
  return {a.x, a.out, a.positions, a.cos, a.sin, a.wrong, a.layout, 1, a.x.data == a.out.data};
}
Rotation rotation_of(const RopeBackward& a) {
  return {a.dout, a.dx, a.positions, a.cos, a.sin, a.wrong, a.layout, -1, a.dout.data == a.dx.data};
}

bool finds_wrong_position(const Rotation& r) {
  const auto* positions = r.positions.as<std::int32_t>();
  const std::int64_t N = r.from.shape[0], P = r.cos.shape[0];
  std::int64_t n = 0;
  while (n < N && positions[n] >= 0 && positions[n] < P) ++n;
  if (n == N) return false;
  auto& wrong = *r.wrong.as<std::int64_t>();
  if (wrong < 0 || n < wrong) wrong = n;
  return true;
}

}  // namespace rope

void rope_forward(Context& context, const RopeForward& args) {
  call_with_positions(context, rope_forward_op(), args);
}
void rope_backward(Context& context, const RopeBackward& args) {
  call_with_positions(context, rope_backward_op(), args);
}

void require_positions(std::string_view where, std::int64_t wrong, std::int64_t P) {
  if (wrong < 0) return;
  throw Error(fmt::format("the position of row {} is not in the table of {} positions", wrong, P),
              std::string(where), fmt::format("give positions from 0 to {}, or a longer table", P - 1));
}

}  // namespace warpwright::ops
