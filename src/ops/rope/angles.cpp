#include "ops/rope/angles.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numbers>

#include "ops/element.hpp"
#include "ops/op.hpp"

namespace warpwright::ops {
namespace {

constexpr std::string_view kName = "rope angles";

void check(const RopeAngles& a) {
  const auto in_range = [](bool fits, std::string_view field, double value, std::string_view range) {
    if (!fits) throw Error(fmt::format("{} is {}", field, value), std::string(kName), std::string(range));
  };
  const auto above = [](double value, double least) { return std::isfinite(value) && value > least; };
  in_range(above(a.theta, 1), "theta", a.theta, "give a number above 1");
  in_range(a.R >= 2 && a.R % 2 == 0, "R", static_cast<double>(a.R), "give an even number of elements");
  if (a.scaling == RopeScaling::none) return;
  in_range(above(a.factor, 0) && a.factor >= 1, "factor", a.factor, "give a number from 1 on");
  if (a.scaling == RopeScaling::linear) return;
  in_range(a.original_positions >= 1, "original_max_position_embeddings",
           static_cast<double>(a.original_positions), "give the positions of the first training");
  if (a.scaling == RopeScaling::llama3) {
    in_range(above(a.low_freq_factor, 0), "low_freq_factor", a.low_freq_factor, "give a number above 0");
    in_range(above(a.high_freq_factor, a.low_freq_factor), "high_freq_factor", a.high_freq_factor,
             "give a number above low_freq_factor");
    return;
  }
  in_range(above(a.beta_slow, 0), "beta_slow", a.beta_slow, "give a number above 0");
  in_range(above(a.beta_fast, 0) && a.beta_fast >= a.beta_slow, "beta_fast", a.beta_fast,
           "give a number from beta_slow on");
  in_range(!a.attention_factor || above(*a.attention_factor, 0), "attention_factor",
           a.attention_factor.value_or(1), "give a number above 0");
  in_range(std::isfinite(a.mscale) && a.mscale >= 0, "mscale", a.mscale, "give a number from 0 on");
  in_range(std::isfinite(a.mscale_all_dim) && a.mscale_all_dim >= 0, "mscale_all_dim", a.mscale_all_dim,
           "give a number from 0 on");
}

double llama3_frequency(const RopeAngles& a, double frequency) {
  const double wavelengths =  // in the original positions: L/λ
      static_cast<double>(a.original_positions) * frequency / (2 * std::numbers::pi);
  if (wavelengths > a.high_freq_factor) return frequency;
  if (wavelengths < a.low_freq_factor) return frequency / a.factor;
  const double s = (wavelengths - a.low_freq_factor) / (a.high_freq_factor - a.low_freq_factor);
  return (1 - s) * frequency / a.factor + s * frequency;
}

// The pair, a real number, that makes this many turns in the original positions.
double pair_of_turns(const RopeAngles& a, double turns) {
  const double positions_per_radian =
      static_cast<double>(a.original_positions) / (turns * 2 * std::numbers::pi);
  return static_cast<double>(a.R) * std::log(positions_per_radian) / (2 * std::log(a.theta));
}

// The pairs where γ begins to rise and where it is 1, which may be after the last pair: the bound is R − 1.
struct Ramp {
  double first, last;
};
Ramp yarn_ramp(const RopeAngles& a) {
  Ramp ramp{pair_of_turns(a, a.beta_fast), pair_of_turns(a, a.beta_slow)};
  if (a.truncate) ramp = {std::floor(ramp.first), std::ceil(ramp.last)};
  ramp = {std::max(ramp.first, 0.0), std::min(ramp.last, static_cast<double>(a.R - 1))};
  if (ramp.first == ramp.last) ramp.last += 0.001;  // a step
  return ramp;
}

// g(a) of the header.
double yarn_magnitude(double factor, double scale) {
  return factor <= 1 ? 1 : 0.1 * scale * std::log(factor) + 1;
}

}  // namespace

std::vector<double> rope_frequencies(const RopeAngles& a) {
  check(a);
  std::vector<double> frequencies;
  const Ramp ramp = a.scaling == RopeScaling::yarn ? yarn_ramp(a) : Ramp{};
  for (std::int64_t i = 0; i < a.R / 2; ++i) {
    double frequency = std::pow(a.theta, static_cast<double>(-2 * i) / static_cast<double>(a.R));
    if (a.scaling == RopeScaling::linear) frequency /= a.factor;
    if (a.scaling == RopeScaling::llama3) frequency = llama3_frequency(a, frequency);
    if (a.scaling == RopeScaling::yarn) {
      const double gamma =
          std::clamp((static_cast<double>(i) - ramp.first) / (ramp.last - ramp.first), 0.0, 1.0);
      frequency = gamma * frequency / a.factor + (1 - gamma) * frequency;
    }
    frequencies.push_back(frequency);
  }
  return frequencies;
}

double rope_attention_factor(const RopeAngles& a) {
  check(a);
  if (a.scaling != RopeScaling::yarn) return 1;
  if (a.attention_factor) return *a.attention_factor;
  if (a.mscale == 0 || a.mscale_all_dim == 0) return yarn_magnitude(a.factor, 1);
  return yarn_magnitude(a.factor, a.mscale) / yarn_magnitude(a.factor, a.mscale_all_dim);
}

void write_rope_tables(const RopeAngles& angles, const Tensor& cos, const Tensor& sin) {
  const std::vector<double> frequencies = rope_frequencies(angles);
  const double m = rope_attention_factor(angles);
  require(cos.shape.rank() == 2 && cos.shape[1] == angles.R / 2, kName, "cos must be (P, R/2)");
  require(cos.dtype == DType::f32 || cos.dtype == DType::f64, kName, "cos must be fp32 or fp64");
  require_tensor(kName, "cos", cos, cos.dtype, cos.shape);
  require_tensor(kName, "sin", sin, cos.dtype, cos.shape);
  const std::int64_t P = cos.shape[0], pairs = cos.shape[1];
  for (std::int64_t p = 0; p < P; ++p) {
    for (std::int64_t i = 0; i < pairs; ++i) {
      const double angle = static_cast<double>(p) * frequencies[static_cast<std::size_t>(i)];
      store_element(cos, p * pairs + i, m * std::cos(angle));
      store_element(sin, p * pairs + i, m * std::sin(angle));
    }
  }
}

}  // namespace warpwright::ops
