#include "cli/rank_order.hpp"

#include <fmt/format.h>

#include <chrono>
#include <optional>
#include <thread>

#include "cli/standard_streams.hpp"
#include "comm/comm.hpp"
#include "comm/floor.hpp"
#include "comm/host.hpp"
#include "comm/launch.hpp"
#include "core/error.hpp"

namespace warpwright::cli {
namespace {

bool connects = false;

// Nothing if the launcher's variables contradict each other: then nobody knows the rank.
std::optional<Launch> launch_here() {
  try {
    return read_launch();
  } catch (const Error&) {
    return std::nullopt;
  }
}

// Nothing if this rank may report its error. Otherwise another one does, and ends like this.
std::optional<Ending> ending_of_another(const std::optional<Launch>& launch, Ending mine) {
  if (!launch || (connects && launch->by == Launch::By::mpi)) return floor_of_launcher(job_here()).take(mine);
  if (connects || launch->rank == 0) return std::nullopt;
  return fail_before_connecting(*launch, mine);
}

}  // namespace

int launched_rank() {
  return launch_here().value_or(Launch()).rank;
}

void begin_to_connect() {
  connects = true;
}

Ending end_launched(Ending ending, std::string_view line) {
  const std::optional<Launch> launch = launch_here();
  if (launch && launch->ranks == 1) {
    report_error(line);
    return ending;
  }
  const std::optional<Ending> other = ending_of_another(launch, ending);
  if (!other)
    report_error(launch ? fmt::format("{}, {}", rank_on_host(launch->rank), line) : std::string(line));
  if (!connects && launch && launch->rank == 0) fail_before_connecting(*launch, ending);
  wait_for_others(!other);
  return other.value_or(ending);
}

void wait_for_others(bool reports) {
  std::this_thread::sleep_for(std::chrono::milliseconds(reports ? 500 : 1000));
}

}  // namespace warpwright::cli
