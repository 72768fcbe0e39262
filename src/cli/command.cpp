#include "cli/command.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <cstdio>

#include "core/error.hpp"
#include "ops/registry.hpp"

namespace warpwright::cli {

void DeviceFlags::add_to(CLI::App& command) {
  command.add_option("--device", device, "Where to compute: cpu")->capture_default_str();
  command.add_option("--threads", threads, "CPU threads; 0: OMP_NUM_THREADS or every processor")
      ->capture_default_str()
      ->check(CLI::Range(0, 4096));
}

ContextOptions DeviceFlags::context_options() const {
  if (device != "cpu") {
    throw UsageError(fmt::format("'{}' is not a device of this build", device), "--device", "use cpu");
  }
  ContextOptions options = ContextOptions::from_environment();
  options.threads = threads;
  options.log = [](std::string_view line) { fmt::print(stderr, "{}\n", line); };
  ops::check_forced_names(options);
  return options;
}

std::string human_bytes(double bytes) {
  static constexpr const char* units[] = {"B", "kB", "MB", "GB", "TB"};
  int unit = 0;
  for (; bytes >= 1000 && unit < 4; ++unit) bytes /= 1000;
  return fmt::format("{:.{}f} {}", bytes, unit == 0 ? 0 : 1, units[unit]);
}

std::string human_seconds(double seconds) {
  const auto s = static_cast<std::int64_t>(seconds + 0.5);
  if (s < 60) return fmt::format("{}s", s);
  if (s < 3600) return fmt::format("{}m {:02}s", s / 60, s % 60);
  return fmt::format("{}h {:02}m", s / 3600, s / 60 % 60);
}

std::string human_count(std::int64_t count) {
  std::string text = fmt::format("{}", count % 1000);
  for (count /= 1000; count > 0; count /= 1000) {
    const std::size_t digits = text.find(',') == std::string::npos ? text.size() : text.find(',');
    text = fmt::format("{},{:0>{}}{}", count % 1000, "", 3 - digits, text);
  }
  return text;
}

ProgressLine::ProgressLine() : terminal_(isatty(STDERR_FILENO) == 1) {}
ProgressLine::~ProgressLine() {
  clear();
}

void ProgressLine::show(const std::string& text) {
  if (!terminal_) return;
  fmt::print(stderr, "\r\033[K{}", text);
  std::fflush(stderr);
  shown_ = true;
}

void ProgressLine::clear() {
  if (shown_) fmt::print(stderr, "\r\033[K");
  shown_ = false;
}

}  // namespace warpwright::cli
