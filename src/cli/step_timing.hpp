// Times a training step of one slice on random tokens, as a whole and by operation.
#pragma once

#include <cstdint>
#include <vector>

#include "cli/op_table.hpp"
#include "train/step.hpp"

namespace warpwright::cli {

// Seconds of each of `count` steps, from the end of the step before, after some steps that warm up. On a GPU
// the next step is launched meanwhile, as in training.
std::vector<double> timed_steps(Context& context, TrainingStep& step, std::int64_t count, std::int64_t vocab);

// The calls of one step. Those of Muon's update have names of their own, such as "muon.matmul.forward".
OpTable table_of_step(Context& context, TrainingStep& step, std::int64_t vocab,
                      OpTable::Ceiling ceiling = nullptr);

}  // namespace warpwright::cli
