#include "ops/testing/check.hpp"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <limits>
#include <map>
#include <utility>

namespace warpwright::ops::testing {

DeviceInfo device_for(std::string_view variant) {
  const bool gpu = variant.rfind("cuda.", 0) == 0 && cuda_device_count() > 0;
  return device_info(gpu ? Device{DeviceKind::cuda, 0} : Device{});
}

std::string missing_for(std::string_view variant) {
  if (variant.starts_with("cuda.")) return cuda_device_count() > 0 ? "" : "needs an NVIDIA GPU";
  for (const auto& [name, needs] :
       {std::pair("cpu.avx2", Needs::avx2), std::pair("cpu.avx_vnni", Needs::avx_vnni),
        std::pair("cpu.avx512_bf16", Needs::avx512_bf16), std::pair("cpu.avx512_vnni", Needs::avx512_vnni),
        std::pair("cpu.avx512", Needs::avx512), std::pair("cpu.amx_bf16", Needs::amx_bf16),
        std::pair("cpu.amx_int8", Needs::amx_int8)}) {
    if (variant.starts_with(name)) return refuse_device(needs, device_for(variant));
  }
  return "";
}

Context& gpu_context(Device device, bool tf32) {
  static std::map<std::pair<int, bool>, Context> contexts;
  ContextOptions options;
  options.tf32 = tf32;
  return contexts.try_emplace({device.index, tf32}, options, device).first->second;
}

bool passed_over() {
  static const char* every = std::getenv("WARPWRIGHT_TEST_EVERY");
  static const std::int64_t period = every ? std::max<std::int64_t>(std::atoll(every), 1) : 1;
  static std::int64_t asked = 0;
  return asked++ % period != 0;
}

bool too_long(double flops) {
  static const char* most = std::getenv("WARPWRIGHT_TEST_FLOPS");
  return most && flops > std::atof(most);
}

double tolerance(DType output, double reduction, bool tf32) {
  const double accumulate = output == DType::f64 ? 0x1p-53 : 0x1p-24;
  return 0.5 * epsilon_of(output) + 4 * accumulate * std::sqrt(std::max(reduction, 1.0)) +
         (tf32 ? 2 * 0x1p-11 : 0);
}

Deviation compare(const std::vector<double>& out, const std::vector<double>& reference, DType dtype) {
  Deviation error;
  double square_error = 0, square_reference = 0;
  for (const double r : reference) square_reference += std::isfinite(r) ? r * r : 0;
  const double rms = std::sqrt(square_reference / std::max<double>(1, static_cast<double>(reference.size())));
  for (std::size_t i = 0; i < reference.size(); ++i) {
    if (!std::isfinite(out[i]) || !std::isfinite(reference[i])) {
      error.not_finite += out[i] != reference[i];  // infinities must match; a NaN never passes
      continue;
    }
    const double difference = std::abs(out[i] - reference[i]);
    square_error += difference * difference;
    const double scale = std::max({std::abs(reference[i]), rms, std::numeric_limits<double>::min()});
    error.worst = std::max(error.worst, difference / scale);
  }
  error.worst_ulp = error.worst / epsilon_of(dtype);
  error.relative = square_error == 0 ? 0 : std::sqrt(square_error / square_reference);
  return error;
}

void expect_only_written(Fixture& fixture, const std::vector<TensorUse>& uses) {
  for (auto& storage : fixture.storages()) {
    std::vector<bool> writable(storage.bytes.size(), false);
    for (const TensorUse& use : uses) {
      const auto* begin = static_cast<const std::byte*>(use.tensor.data);
      if (use.access == Access::read || begin < storage.bytes.data() ||
          begin >= storage.bytes.data() + storage.bytes.size()) {
        continue;
      }
      const auto start = static_cast<std::size_t>(begin - storage.bytes.data());
      const std::size_t size = size_of(use.tensor.dtype);
      for_each_element(use.tensor, [&](std::int64_t offset) {
        for (std::size_t b = 0; b < size; ++b)
          writable[start + static_cast<std::size_t>(offset) * size + b] = true;
      });
    }
    std::int64_t changed = 0;
    for (std::size_t i = 0; i < writable.size(); ++i) {
      changed += !writable[i] && storage.bytes[i] != storage.before[i];
    }
    EXPECT_EQ(changed, 0) << "bytes outside the outputs changed";
  }
}

void check_gradient(const std::function<double()>& loss, const Tensor& input, const Tensor& gradient,
                    std::string_view name, double step) {
  ASSERT_EQ(input.dtype, DType::f64);
  const std::vector<double> analytic = elements_of(gradient);
  double norm = 0;
  for (const double g : analytic) norm += g * g;
  const double scale = std::sqrt(norm / std::max<double>(1, static_cast<double>(analytic.size())));
  std::int64_t index = 0, stride = std::max<std::int64_t>(1, input.elements() / 64);
  for_each_element(input, [&](std::int64_t offset) {
    const std::int64_t i = index++;
    if (i % stride != 0) return;
    double& x = static_cast<double*>(input.data)[offset];
    const double kept = x;
    x = kept + step;
    const double above = loss();
    x = kept - step;
    const double below = loss();
    x = kept;
    const double numeric = (above - below) / (2 * step);
    const double wanted = analytic[static_cast<std::size_t>(i)];
    // Central differences have a truncation error of step² and a rounding error of 2^-52·|loss|/step. Both
    // are far below this tolerance.
    EXPECT_NEAR(numeric, wanted, 1e-6 * std::max({scale, std::abs(wanted), 1.0})) << name << " element " << i;
  });
}

}  // namespace warpwright::ops::testing
