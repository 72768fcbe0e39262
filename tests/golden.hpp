// Shared by the tests of goldens: numbers drawn as tests/goldens/make_goldens.py draws them, and
// comparisons.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "model/safetensors.hpp"
#include "ops/element.hpp"
#include "runtime/host_view.hpp"
#include "runtime/philox.hpp"
#include "train/step.hpp"

namespace warpwright::golden {

inline const std::filesystem::path kFolder =
    std::filesystem::path(WARPWRIGHT_SOURCE_DIR) / "tests" / "goldens";
constexpr std::uint32_t kTokens = 1000;  // the Philox stream of the tokens in make_goldens.py

inline std::uint32_t first_word(std::uint64_t index, std::uint32_t purpose) {
  return PhiloxStream(0, purpose).block(index)[0];
}

// The value that a weight is drawn with, a 24-bit integer scaled by a power of two, as a tensor that is
// rounded to this dtype has it.
inline double drawn(std::int64_t i, std::uint32_t stream, double scale, double offset, DType rounding) {
  const std::uint32_t word = first_word(static_cast<std::uint64_t>(i), stream);
  const double uniform = (static_cast<double>(word >> 8) - 0x1p23) * 0x1p-23;
  const auto value = static_cast<float>(uniform * scale + offset);
  return static_cast<double>(rounding == DType::bf16 ? static_cast<float>(bf16(value)) : value);
}

// The training step that a golden's record describes.
inline StepOptions options_of(const nlohmann::json& spec, std::shared_ptr<const Decoder> model, DType dtype) {
  StepOptions o;
  o.model = std::move(model);
  o.dtype = dtype;
  o.B = spec["B"];
  o.T = spec["T"];
  o.clip = spec["clip"];
  o.beta1 = spec["beta1"];
  o.beta2 = spec["beta2"];
  o.eps = spec["eps"];
  o.weight_decay = spec["weight_decay"];
  return o;
}

inline void draw_batch(const StepOptions& o, std::int64_t step, const TrainingStep::HostBatch& batch) {
  const std::int64_t N = o.B * o.T;
  const auto id = [&](std::int64_t i) {
    const auto index = static_cast<std::uint64_t>(step * (N + 1) + i);
    return static_cast<std::int32_t>(first_word(index, kTokens) %
                                     static_cast<std::uint32_t>(o.model->vocab()));
  };
  for (std::int64_t n = 0; n < N; ++n) {
    batch.tokens.as<std::int32_t>()[n] = id(n);
    batch.targets.as<std::int32_t>()[n] = id(n + 1);
  }
}

inline std::vector<float> tensor(const SafetensorsFile& file, const std::string& name) {
  const SafetensorsEntry* entry = file.find(name);
  const auto bytes = file.bytes(*entry);
  std::vector<float> values(bytes.size() / sizeof(float));
  std::memcpy(values.data(), bytes.data(), bytes.size());
  return values;
}

// ‖ours − golden‖ / ‖golden‖ over the first columns of each row. The other columns are padding.
inline double relative_error(const Tensor& on_device, const Stream& stream, const std::vector<float>& golden,
                             std::int64_t columns, std::int64_t stride) {
  const HostView view = downloaded(on_device, stream);
  const Tensor& ours = view.tensor();
  double error = 0, norm = 0;
  for (std::size_t i = 0; i < golden.size(); ++i) {
    const auto n = static_cast<std::int64_t>(i);
    const double difference =
        ops::load_element(ours, n / columns * stride + n % columns) - static_cast<double>(golden[i]);
    error += difference * difference;
    norm += static_cast<double>(golden[i]) * static_cast<double>(golden[i]);
  }
  return std::sqrt(error / norm);
}

// The error must be at most twice PyTorch's own error in the same dtype, plus one ulp. A scalar or short
// vector can be off by this much by chance. In fp32 it must also be below 1e-5 (losses of the steps: 1e-4).
struct Bound {
  DType dtype;
  double operator()(double pytorch_error, double most = 1e-5) const {
    const double bound = 2 * pytorch_error + epsilon_of(dtype);
    return dtype == DType::f32 ? std::min(bound, most) : bound;
  }
};

}  // namespace warpwright::golden
