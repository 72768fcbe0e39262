#include "cli/rank_order.hpp"

#include <chrono>
#include <thread>

#include "comm/comm.hpp"
#include "comm/launch.hpp"
#include "core/error.hpp"

namespace warpwright::cli {
namespace {

bool connects = false;

// A process whose variables do not fit together is alone: each of them may say so.
Launch launch_here() {
  try {
    return read_launch();
  } catch (const Error&) {
    return {};
  }
}

}  // namespace

int launched_rank() {
  return launch_here().rank;
}

void begin_to_connect() {
  connects = true;
}

bool may_report() {
  if (connects || launched_rank() == 0 || fail_before_connecting(launch_here())) return true;
  wait_for_the_report();
  return false;
}

void wait_for_the_report() {
  std::this_thread::sleep_for(std::chrono::seconds(1));
}

void end_other_ranks() {
  if (!connects && launched_rank() == 0) fail_before_connecting(launch_here());
}

}  // namespace warpwright::cli
