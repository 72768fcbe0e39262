// That a variant gives the same bits however often it runs: on a GPU, whichever block comes first.
#pragma once

#include "ops/testing/check.hpp"

namespace warpwright::ops::testing {

// Runs it so many times from the same bytes, on a CPU with one and with three threads in turn, and holds
// every byte against the first run's. Returns the variant's reason where it refuses, else "".
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
