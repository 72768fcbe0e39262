// Tells whether a measurement had the machine to itself.
#pragma once

#include <chrono>
#include <filesystem>
#include <string>

namespace warpwright {

// Measures the CPU time that other processes take on the processors of this process's affinity mask, from
// construction on. Time stolen by a hypervisor counts too. `root` holds proc/.
class OtherLoad {
 public:
  explicit OtherLoad(std::filesystem::path root = "/");

  // In processors, averaged since construction; 0 if /proc/stat does not say, or in the first 0.2 s.
  double processors() const;

 private:
  // Seconds these processors were busy for anyone, and for this process.
  struct Times {
    double busy, own;
  };
  Times now() const;

  std::filesystem::path root_;
  std::chrono::steady_clock::time_point start_;
  Times before_;
};

// Signs that a measurement against ceilings was disturbed.
struct Disturbance {
  double other_processors = 0;  // OtherLoad::processors()
  double ceiling_change = 0;    // |after / before - 1| of a ceiling measured twice

  static constexpr double kOtherProcessors = 0.1, kCeilingChange = 0.15;
  bool found() const { return other_processors > kOtherProcessors || ceiling_change > kCeilingChange; }
  std::string describe() const;  // one line
};

}  // namespace warpwright
