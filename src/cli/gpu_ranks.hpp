// --gpus: a process for each GPU of this machine. And the GPU of a rank that another launcher has started.
#pragma once

#include <CLI/CLI.hpp>
#include <string>

#include "comm/launch.hpp"
#include "core/tensor.hpp"

namespace warpwright::cli {

// Accepts a number from 1 on, or all.
CLI::Validator gpus_to_use();

// The number that a value of --gpus means here. Throws Error if this machine has fewer.
int count_gpus(const std::string& value);

// The device of this rank: its own GPU if it trains on GPUs. Throws Error if there are too few, or if ranks
// would train on CPUs without MPI.
Device device_of_rank(const Launch& launch, Device asked);

// Starts this command line once for each of this many GPUs, as the ranks of one run, and waits for them.
// Passes signals on. If one fails, the others end. Returns the exit code: that of the first that failed.
int run_on_gpus(int gpus);

// Thrown with the exit code of processes that have said themselves why they failed.
struct RanksFailed {
  int code;
};

}  // namespace warpwright::cli
