// Checks that a variant gives the same bits in every run. On a GPU, the blocks' order changes from run to
// run.
#pragma once

#include <fmt/format.h>

#include "ops/testing/check.hpp"

namespace warpwright::ops::testing {

// Runs the variant this many times from the same bytes and compares every byte with the first run's. On a
// CPU, runs with one and with three threads alternate. Returns the variant's reason if it refuses, otherwise
// "".
template <class A>
std::string check_repeats(const Op<A>& op, std::string_view name, Fixture& fixture, const A& args,
                          int runs = 100) {
  const auto& variant = find_variant(op, name);
  const typename A::Problem problem = op.problem(args);
  SCOPED_TRACE(fmt::format("{} {} {}", op.name, name, problem.describe()));
  if (std::string reason = variant.refuse(problem, device_for(name)); !reason.empty()) return reason;
  fixture.snapshot();
  std::vector<std::vector<std::byte>> first;
  for (int run = 0; run < runs && !::testing::Test::HasFailure(); ++run) {
    fixture.restore();
    run_variant(op, variant, args, run % 2 == 0 ? 1 : 3);
    for (std::size_t i = 0; i < fixture.storages().size(); ++i) {
      const std::vector<std::byte>& bytes = fixture.storages()[i].bytes;
      if (run == 0) first.push_back(bytes);
      EXPECT_TRUE(first[i] == bytes) << "run " << run;
    }
  }
  return "";
}

}  // namespace warpwright::ops::testing
