// The oracle, in fp64 throughout and in the order of the formulas.
#include "ops/element.hpp"
#include "ops/rope/kernels.hpp"

namespace warpwright::ops::rope {
namespace {

// The elements of pair i.
struct Pair {
  std::int64_t a, b;
};
Pair pair_of(RopeLayout layout, std::int64_t i, std::int64_t R) {
  return layout == RopeLayout::half ? Pair{i, i + R / 2} : Pair{2 * i, 2 * i + 1};
}

void rotate_head(const Rotation& r, std::int64_t from, std::int64_t to, std::int64_t position) {
  const std::int64_t HS = r.from.shape[2], R = 2 * r.cos.shape[1];
  for (std::int64_t i = 0; i < R / 2; ++i) {
    const double cos = load_element(r.cos, position * R / 2 + i);
    const double sin = r.sign * load_element(r.sin, position * R / 2 + i);
    const Pair pair = pair_of(r.layout, i, R);
    const double a = load_element(r.from, from + pair.a), b = load_element(r.from, from + pair.b);
    store_element(r.to, to + pair.a, a * cos - b * sin);
    store_element(r.to, to + pair.b, b * cos + a * sin);
  }
  for (std::int64_t i = R; i < HS; ++i) store_element(r.to, to + i, load_element(r.from, from + i));
}

void rotate(const Rotation& r) {
  if (finds_wrong_position(r)) return;
  for (std::int64_t n = 0; n < r.from.shape[0]; ++n) {
    for (std::int64_t h = 0; h < r.from.shape[1]; ++h) {
      rotate_head(r, n * r.from.strides[0] + h * r.from.strides[1], n * r.to.strides[0] + h * r.to.strides[1],
                  r.positions.as<std::int32_t>()[n]);
    }
  }
}

void forward_reference(const Context&, const RopeForward& args) {
  rotate(rotation_of(args));
}
void backward_reference(const Context&, const RopeBackward& args) {
  rotate(rotation_of(args));
}

}  // namespace
}  // namespace warpwright::ops::rope

namespace warpwright::ops {

WARPWRIGHT_KERNEL(RopeForward, "reference"_kernel) = {
    .needs = Needs::cpu, .dtypes = kFloatingDTypes, .run = rope::forward_reference};
WARPWRIGHT_KERNEL(RopeBackward, "reference"_kernel) = {
    .needs = Needs::cpu, .dtypes = kFloatingDTypes, .run = rope::backward_reference};

}  // namespace warpwright::ops
