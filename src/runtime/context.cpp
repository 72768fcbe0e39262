#include "runtime/context.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <utility>

#include "core/error.hpp"
#include "runtime/threads.hpp"

namespace warpwright {

namespace {

// The first comma that is not within brackets: a configuration has commas, too, and may contain others'.
std::size_t end_of_item(std::string_view text) {
  int depth = 0;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '[') ++depth;
    if (text[i] == ']' && depth > 0) --depth;
    if (text[i] == ',' && depth == 0) return i;
  }
  return text.size();
}

}  // namespace

ContextOptions ContextOptions::from_environment() {
  ContextOptions options;
  const char* verbose = std::getenv("WARPWRIGHT_VERBOSE");
  options.verbose = verbose && std::string_view(verbose) != "0" && std::string_view(verbose) != "";
  const char* force = std::getenv("WARPWRIGHT_FORCE");
  std::string_view rest = force ? force : "";
  while (!rest.empty()) {
    const std::string_view item = rest.substr(0, end_of_item(rest));
    rest.remove_prefix(std::min(rest.size(), item.size() + 1));
    const std::size_t equals = item.find('=');
    if (equals == std::string_view::npos || equals == 0 || equals + 1 == item.size()) {
      throw UsageError(fmt::format("cannot read '{}'", item), "WARPWRIGHT_FORCE",
                       "write operation=variant pairs with commas, as `warpwright info` lists them");
    }
    options.force[std::string(item.substr(0, equals))] = std::string(item.substr(equals + 1));
  }
  return options;
}

Context::Context(ContextOptions options, Device device) : Context(std::move(options), device, Stream()) {
  make_current(device);  // first: cudaSetDevice() starts a GPU, and Stream() would go back to another one
  stream_ = Stream(device);
}

Context::Context(ContextOptions options, Device device, Stream stream)
    : options_(std::move(options)),
      device_(device_info(device, options_.threads)),
      stream_(std::move(stream)) {
  device_.tf32 = options_.tf32;
  device_.tuned = options_.tuned.get();
  device_.forced = &options_.force;
  claim_threads(device_.threads);
}

Context::~Context() {
  if (kept_.empty() || stream_.borrowed()) return;
  try {
    stream_.synchronize();
  } catch (const Error&) {
    // The GPU failed or the process is ending, so nothing runs anymore.
  }
}

void Context::set_threads(int threads) {
  const int wanted = checked_threads(threads == 0 ? options_.threads : threads, "threads");
  claim_threads(wanted);
  if (wanted != device_.threads) derived_.clear();
  device_.threads = wanted;
}

void Context::set_tuned(std::shared_ptr<const TunedTable> tuned) {
  options_.tuned = std::move(tuned);
  device_.tuned = options_.tuned.get();
  derived_.clear();
  choice_lines_.clear();
}

void Context::log(std::string_view line) const {
  if (options_.log) options_.log(line);
}

void Context::reserve_scratch(std::size_t bytes) {
  if (!lent_scratch_ && bytes > scratch_.bytes()) scratch_ = Buffer(bytes, device_.device, "workspace");
}

std::uint64_t Context::plan_hash() const {
  // FNV-1a, 64 bits. Checkpoints record the value, so it must not depend on the standard library, as that of
  // std::hash does, or on a library's version.
  std::uint64_t hash = 0xcbf29ce484222325u;
  for (const std::string& line : choice_lines_) {
    for (const char c : line + "\n") hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3u;
  }
  return hash;
}

Inspecting::Inspecting(Context& context, Context::Inspector inspector)
    : context_(context), before_(std::exchange(context.inspector_, std::move(inspector))) {}

Timing::Timing(Context& context, Context::Timer timer)
    : context_(context), before_(std::exchange(context.timer_, std::move(timer))) {}

}  // namespace warpwright
