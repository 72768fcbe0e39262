#include "runtime/load.hpp"

#include <fmt/format.h>
#include <sched.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <sstream>
#include <utility>

namespace warpwright {
namespace {

double seconds_of(const timeval& time) {
  return static_cast<double>(time.tv_sec) + 1e-6 * static_cast<double>(time.tv_usec);
}

}  // namespace

OtherLoad::OtherLoad(std::filesystem::path root)
    : root_(std::move(root)), start_(std::chrono::steady_clock::now()), before_(now()) {}

OtherLoad::Times OtherLoad::now() const {
  cpu_set_t mask;
  CPU_ZERO(&mask);
  const bool known = sched_getaffinity(0, sizeof(mask), &mask) == 0;
  Times times{0, 0};
  const double tick = 1.0 / static_cast<double>(sysconf(_SC_CLK_TCK));
  std::ifstream file(root_ / "proc/stat");
  // proc_stat(5): "cpu3 USER NICE SYSTEM IDLE IOWAIT IRQ SOFTIRQ STEAL …".
  for (std::string line; std::getline(file, line);) {
    std::istringstream fields(line);
    std::string name;
    double user = 0, nice = 0, system = 0, idle = 0, wait = 0, irq = 0, softirq = 0, steal = 0;
    if (!(fields >> name >> user >> nice >> system >> idle >> wait >> irq >> softirq >> steal)) continue;
    if (name.size() < 4 || name.compare(0, 3, "cpu") != 0) continue;
    const std::size_t index = std::stoul(name.substr(3));
    if (known && (index >= CPU_SETSIZE || !CPU_ISSET(index, &mask))) continue;
    times.busy += tick * (user + nice + system + irq + softirq + steal);
  }
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  times.own = seconds_of(usage.ru_utime) + seconds_of(usage.ru_stime);
  return times;
}

double OtherLoad::processors() const {
  const Times after = now();
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count();
  const double others = (after.busy - before_.busy) - (after.own - before_.own);
  // /proc/stat counts in ticks, which are too coarse for a short time.
  constexpr double kLeastSeconds = 0.2;
  return seconds < kLeastSeconds ? 0 : std::max(0.0, others / seconds);
}

std::string Disturbance::describe() const {
  return fmt::format(
      "other programs used {:.2f} of this process's CPUs, and a measured ceiling drifted by {:.0f} %; repeat "
      "on an idle machine",
      other_processors, 100 * ceiling_change);
}

}  // namespace warpwright
