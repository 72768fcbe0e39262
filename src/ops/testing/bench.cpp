#include "ops/testing/bench.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <chrono>
#include <cmath>
#include <limits>

#include "runtime/memory.hpp"

namespace warpwright::ops {
namespace testing {
namespace {

constexpr std::size_t kMaxCopies = 1024;
constexpr int kMinSamples = 3, kMaxSamples = 1000;
constexpr double kMinSampleSeconds = 100e-6;  // shorter calls are timed in groups

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

// One variant in the interleaved timing. Its calls cycle through the copies of the arguments.
struct Lane {
  const Context* context;
  const std::function<void(std::size_t)>* call;
  Event start, end;
  std::size_t next = 0;
  int calls_per_sample = 1;
  std::vector<double> samples;

  double sample(std::size_t copies) {
    start.record(context->stream());
    for (int i = 0; i < calls_per_sample; ++i) {
      (*call)(next);
      next = next + 1 == copies ? 0 : next + 1;
    }
    end.record(context->stream());
    end.synchronize();
    return end.seconds_since(start) / calls_per_sample;
  }

  Timing timing() {
    std::sort(samples.begin(), samples.end());
    return {samples[samples.size() / 2], samples.front()};
  }
};

}  // namespace

Copies::Copies(Fixture& fixture, std::size_t footprint, const Context& context) : fixture_(fixture) {
  for (const auto& storage : fixture.storages()) {
    offsets_.push_back(stride_);
    stride_ += round_up(storage.tensor.bytes());
  }
  if (stride_ > 0) count_ = std::clamp(footprint / stride_ + 1, std::size_t{1}, kMaxCopies);
  buffer_ = Buffer(stride_ * count_, context.device().device, "bench arguments");
  const auto place = [&](std::size_t at, DType dtype, const Shape& shape) {
    return Tensor(buffer_.data() + at, dtype, shape, context.device().device);
  };
  for (std::size_t i = 0; i < offsets_.size(); ++i) {
    const Tensor& tensor = fixture.storages()[i].tensor;
    copy(place(offsets_[i], tensor.dtype, tensor.shape), tensor, context.stream());
  }
  const Shape whole{static_cast<std::int64_t>(stride_)};
  for (std::size_t at = 1; at < count_; ++at) {
    copy(place(at * stride_, DType::u8, whole), place(0, DType::u8, whole), context.stream());
  }
  context.synchronize();
}

void* Copies::address(const void* in_fixture, std::size_t copy) const {
  const auto* byte = static_cast<const std::byte*>(in_fixture);
  for (std::size_t i = 0; i < offsets_.size(); ++i) {
    const Tensor& tensor = fixture_.storages()[i].tensor;
    const auto* first = static_cast<const std::byte*>(tensor.data);
    if (byte >= first && byte <= first + tensor.bytes()) {
      return buffer_.data() + copy * stride_ + offsets_[i] + (byte - first);
    }
  }
  throw Error("a tensor that the Fixture did not make", "bench", "build every argument from the Fixture");
}

PlainCopy::PlainCopy(double bytes, const Copies& content, const Context& context) : context_(context) {
  half_bytes_ = round_up(static_cast<std::size_t>(bytes / 2));
  if (half_bytes_ > 0)
    count_ = std::clamp(content.bytes() / (2 * half_bytes_) + 1, std::size_t{1}, kMaxCopies);
  buffer_ = Buffer(2 * half_bytes_ * count_, context.device().device, "bench copies");
  const auto bytes_at = [&](std::byte* data, std::size_t size) {
    return Tensor(data, DType::u8, {static_cast<std::int64_t>(size)}, context.device().device);
  };
  for (std::size_t at = 0; at < buffer_.bytes();) {
    const std::size_t size = std::min(content.bytes(), buffer_.bytes() - at);
    copy(bytes_at(buffer_.data() + at, size), bytes_at(content.data(), size), context.stream());
    at += size;
  }
  context.synchronize();
}

Tensor PlainCopy::half(std::size_t index) const {
  return {buffer_.data() + index * half_bytes_,
          DType::u8,
          {static_cast<std::int64_t>(half_bytes_)},
          context_.device().device};
}

void PlainCopy::run() {
  const Tensor from = half(2 * next_), to = half(2 * next_ + 1);
  if (context_.device().device.kind == DeviceKind::cpu) {
    copy_by_all_threads(context_.device(), static_cast<const std::byte*>(from.data),
                        static_cast<std::byte*>(to.data), half_bytes_);
  } else {
    copy(to, from, context_.stream());
  }
  next_ = next_ + 1 == count_ ? 0 : next_ + 1;
}

double write_share(const std::vector<TensorUse>& uses) {
  double read = 0, written = 0;
  for (const TensorUse& use : uses) {
    if (use.access == Access::scratch) continue;
    const auto bytes = static_cast<double>(use.tensor.bytes());
    if (use.access != Access::write) read += bytes;
    if (use.access != Access::read) written += bytes;
  }
  return read + written > 0 ? written / (read + written) : 0;
}

std::vector<Timing> time_interleaved(const Context& context,
                                     const std::vector<std::function<void(std::size_t)>>& calls,
                                     std::size_t copies, double seconds) {
  const Device device = context.device().device;
  std::vector<Lane> lanes;
  for (const auto& call : calls) lanes.push_back({&context, &call, Event(device), Event(device), 0, 1, {}});
  for (Lane& lane : lanes) {  // warm up, and choose the number of calls in a sample
    double once = lane.sample(copies);
    for (int i = 0; i < kMinSamples && once < seconds / 10; ++i) once = std::min(once, lane.sample(copies));
    lane.calls_per_sample = std::max(1, static_cast<int>(kMinSampleSeconds / std::max(once, 1e-9)));
  }
  const auto start = std::chrono::steady_clock::now();
  for (int round = 0; round < kMaxSamples && (round < kMinSamples || seconds_since(start) < seconds);
       ++round) {
    for (Lane& lane : lanes) lane.samples.push_back(lane.sample(copies));
  }
  std::vector<Timing> timings;
  for (Lane& lane : lanes) timings.push_back(lane.timing());
  return timings;
}

}  // namespace testing

Bench::Bench(BenchOptions options, Sink sink)
    : options_(std::move(options)),
      context_(options_.context, options_.device),
      flops_(measure_peak_flops(context_.device(), 0.4)),
      sink_(std::move(sink)) {}

Ceilings Bench::ceilings(std::size_t working_set) {
  const std::size_t size = std::bit_ceil(std::max(working_set, footprint()));
  auto found = bandwidth_.find(size);
  if (found == bandwidth_.end()) {
    found = bandwidth_.emplace(size, measure_bandwidth(device(), size, 0.4)).first;
  }
  return {flops_, found->second};
}

Disturbance Bench::disturbance() {
  Disturbance found;
  if (!on_gpu()) found.other_processors = others_.processors();
  for (const auto& [size, before] : bandwidth_) {
    const Bandwidth after = measure_bandwidth(device(), size, 0.2);
    found.ceiling_change = std::max(found.ceiling_change, std::abs(after.mixed / before.mixed - 1));
  }
  const PeakFlops after = measure_peak_flops(device(), 0.2);
  found.ceiling_change = std::max(found.ceiling_change, std::abs(after.fp32 / flops_.fp32 - 1));
  return found;
}

bool Bench::wanted(std::string_view op, std::string_view variant, const std::string& problem) const {
  return fmt::format("{} {} {}", op, variant, problem).find(options_.filter) != std::string::npos;
}

}  // namespace warpwright::ops
