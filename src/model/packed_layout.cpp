#include "model/packed_layout.hpp"

#include <algorithm>
#include <cfloat>
#include <cmath>

#include "core/error.hpp"
#include "ops/int8_linear/int8_linear.hpp"
#include "ops/matmul/packed.hpp"
#include "runtime/threads.hpp"

namespace warpwright {

Precision int8_precision(const DeviceInfo& device) {
  if (const std::string reason = ops::refuse_int8(device); !reason.empty()) {
    throw UsageError("int8 " + reason, "dtype", "use fp32 or bf16");
  }
  const bool fast_bf16 = device.cpu.amx_bf16 || device.cpu.fast_bf16_dot();
  return {.dtype = fast_bf16 ? DType::bf16 : DType::f32, .int8 = true};
}

PackedLayout::PackedLayout(const Precision& precision, const DeviceInfo& on)
    : name(precision.int8 ? ops::int8_layout(on) : ops::packed_layout(precision.dtype, on)),
      dtype(precision.int8 ? DType::f32 : precision.dtype),
      int8(precision.int8),
      device(on) {}

std::int64_t PackedLayout::bytes(std::int64_t N, std::int64_t K) const {
  return int8 ? ops::int8_packed_bytes(N, K) : ops::packed_bytes(N, K, dtype, device);
}

void PackedLayout::pack(const Context& context, const Tensor& weight, const Tensor& factors,
                        const Tensor& packed) const {
  int8 ? ops::int8_pack(context, weight, factors, packed) : ops::pack_weight(context, weight, packed);
}

// √(w / r) for each column, with w the largest weight and r the size of the input: γ times a number that is
// seldom beyond ±3, plus β (SmoothQuant, arXiv:2211.10438, equation 4, without its calibration). A change
// here needs another name of the layout (ops::int8_layout).
std::vector<float> factors_after_norm(const Tensor& gain, const Tensor& shift, const Tensor& rows) {
  constexpr float kLeast = 1e-5f;
  const std::int64_t N = rows.shape[0], K = rows.shape[1];
  std::vector<float> most(static_cast<std::size_t>(K), kLeast);
  // A thread takes columns of a few cache lines. int8_pack refuses what is not finite.
  constexpr std::int64_t kColumns = 64;
#pragma omp parallel for schedule(static) num_threads(claimed_threads())
  for (std::int64_t first = 0; first < K; first += kColumns) {
    const std::int64_t count = std::min(kColumns, K - first);
    float* const of_column = most.data() + first;
    for (std::int64_t n = 0; n < N; ++n) {
      const float* const row = rows.as<float>() + n * K + first;
      for (std::int64_t k = 0; k < count; ++k) {
        const float magnitude = std::abs(row[k]);
        of_column[k] = std::max(of_column[k], magnitude <= FLT_MAX ? magnitude : 0);
      }
    }
  }
  std::vector<float> factors;
  for (std::int64_t k = 0; k < K; ++k) {
    const float size = 3 * std::abs(gain.as<float>()[k]) + (shift ? std::abs(shift.as<float>()[k]) : 0);
    factors.push_back(std::sqrt(most[static_cast<std::size_t>(k)] / std::clamp(size, kLeast, FLT_MAX)));
  }
  return factors;
}

}  // namespace warpwright
