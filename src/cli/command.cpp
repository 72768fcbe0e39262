#include "cli/command.hpp"

#include <fmt/format.h>

#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <optional>

#include "cli/checks.hpp"
#include "cli/standard_streams.hpp"
#include "core/error.hpp"
#include "ops/registry.hpp"
#include "runtime/json.hpp"
#include "runtime/threads.hpp"

namespace warpwright::cli {

namespace {

// "cpu", "cuda" (the first GPU) or "cuda:N".
std::optional<Device> device_named(std::string_view name) {
  constexpr std::string_view kGpu = "cuda:";
  if (name == "cpu") return Device{};
  Device place{DeviceKind::cuda, 0};
  if (name == "cuda") return place;
  if (!name.starts_with(kGpu)) return {};
  const char* end = name.data() + name.size();
  const auto parsed = std::from_chars(name.data() + kGpu.size(), end, place.index);
  if (parsed.ec != std::errc() || parsed.ptr != end || place.index < 0) return {};
  return place;
}

}  // namespace

CLI::Validator device_name() {
  const std::vector<std::string> names = {"cpu", "cuda", "cuda:N"};
  CLI::Validator words = one_of(names);
  return CLI::Validator(
      [names, words](std::string& text) {
        if (device_named(text)) return std::string();
        // The letters of gpu are nearest to those of cpu.
        const bool means_gpu = text.starts_with("gpu") || text.starts_with("GPU");
        if (!means_gpu) return words(text);
        return fmt::format("{} is not one of {}; the nearest is cuda", quote(text), fmt::join(names, ", "));
      },
      words.get_description());
}

namespace {

// Many threads for a processor seem to stand still: in every parallel region, each waits for all others. A
// resumed run's number may be that of another machine, and is not checked.
CLI::Validator threads_here() {
  return CLI::Validator(
      [](std::string& text) {
        constexpr std::int64_t kEach = 4;
        const int processors = processors_here();
        const std::int64_t most = std::min<std::int64_t>(kEach * processors, kMaxThreads);
        std::int64_t number = 0;
        const char* end = text.data() + text.size();
        const auto parsed = std::from_chars(text.data(), end, number);
        if (parsed.ec != std::errc() || parsed.ptr != end) return std::string();  // check_values() says why
        if (number >= 0 && number <= most) return std::string();
        return fmt::format("is {}, give 0 to {}: this process may use {}", number, most,
                           counted(processors, "processor"));
      },
      "");
}

}  // namespace

void DeviceFlags::add_to(CLI::App& command) {
  command.add_option("--device", device, "Device to compute on; N counts GPUs from 0")
      ->capture_default_str()
      ->check(device_name());
  command
      .add_option(
          "--threads", threads,
          "CPU threads, at most 4 for each processor; 0: OMP_NUM_THREADS, or what the affinity mask and the "
          "CPU quota allow (see info)")
      ->capture_default_str()
      ->check(threads_here());
}

Device DeviceFlags::place() const {
  if (const auto place = device_named(device)) return *place;
  throw UsageError(fmt::format("{} is not a device", quote(device)), "--device", "use cpu, cuda or cuda:N");
}

ContextOptions DeviceFlags::context_options(const std::string& dtype) const {
  ContextOptions options = ContextOptions::from_environment();
  options.threads = threads;
  options.tf32 = dtype == "tf32";
  if ((options.tf32 || dtype == "fp16") && place().kind == DeviceKind::cpu) {
    throw UsageError(fmt::format("a CPU has no {}", dtype), "--dtype", "use fp32 or bf16, or --device cuda");
  }
  options.log = [](std::string_view line) { write_message(fmt::format("{}\n", line)); };
  ops::check_forced_names(options);
  return options;
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

std::string counted(std::int64_t count, std::string_view what) {
  const char* ending = count == 1 ? "" : what.ends_with("ch") ? "es" : "s";
  return fmt::format("{} {}{}", human_count(count), what, ending);
}

ProgressLine::ProgressLine() : terminal_(isatty(STDERR_FILENO) == 1) {}
ProgressLine::~ProgressLine() {
  clear();
}

void ProgressLine::show(const std::string& text) {
  if (!terminal_) return;
  write_message(fmt::format("\r\033[K{}", text));
  std::fflush(stderr);
  shown_ = true;
}

void ProgressLine::clear() {
  if (shown_) write_message("\r\033[K");
  shown_ = false;
}

}  // namespace warpwright::cli
