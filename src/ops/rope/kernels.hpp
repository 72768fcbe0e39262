// Shared by the kernels of forward and backward: both are one rotation, by the angle or by its negative.
#pragma once

#include "ops/rope/rope.hpp"

namespace warpwright::ops::rope {

struct Rotation {
  Tensor from, to;   // (N, NH, HS)
  Tensor positions;  // (N) int32
  Tensor cos, sin;   // (P, R/2)
  Tensor wrong;      // (1) int64
  RopeLayout layout;
  float sign;     // of the angle: 1 forward, −1 backward
  bool in_place;  // `to` is `from`
};
Rotation rotation_of(const RopeForward& args);
Rotation rotation_of(const RopeBackward& args);

// True if a position in the host's memory is wrong. `wrong` then has the first such row or an earlier one.
bool finds_wrong_position(const Rotation& r);

}  // namespace warpwright::ops::rope
