// Tests with tensors that do not begin at a multiple of 16 bytes.
#pragma once

#include <algorithm>
#include <string>
#include <string_view>
#include <vector>

#include "ops/testing/check.hpp"

namespace warpwright::ops::testing {

// Checks one variant on such arguments. A variant in `move_packs` must refuse them, and the variant that is
// then chosen must take them. Returns the variant's reason if it refuses for another reason, otherwise "".
template <class A>
std::string check_unaligned(const Op<A>& op, std::string_view name, Fixture& fixture, const A& args,
                            const ReductionLength& reduction,
                            const std::vector<std::string_view>& move_packs) {
  const typename A::Problem problem = op.problem(args);
  EXPECT_FALSE(problem.aligned);
  const bool moves_packs = std::find(move_packs.begin(), move_packs.end(), name) != move_packs.end();
  const Device device = device_for(name).device;
  std::string reason = check_variant(op, name, fixture, args, reduction);
  if (!moves_packs || device.kind == DeviceKind::cpu) return reason;
  EXPECT_EQ(reason, "a tensor does not begin at a multiple of 16 bytes");
  const auto chosen = choose(gpu_context(device, false), op, problem);
  EXPECT_EQ(check_variant(op, chosen.variant->name, fixture, args, reduction), "");
  return "";
}

// All rows of a contiguous matrix except the last, starting at its second element.
inline Tensor between_packs(const Tensor& t) {
  const std::int64_t rows = t.shape[0] - 1, columns = t.shape[1];
  return t.view({t.elements()}).slice(0, 1, rows * columns).view({rows, columns});
}

}  // namespace warpwright::ops::testing
