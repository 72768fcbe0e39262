// The tables cos and sin of rotary position embeddings (rope.hpp).
//   θ_i = theta^(−2i/R) for the pairs i < R/2, changed by the scaling
//   cos[p, i] = m · cos(p·θ_i), sin[p, i] = m · sin(p·θ_i) with the attention factor m, 1 except with yarn
// The scalings let a model attend over more positions than it was first trained with:
//   none    θ_i
//   linear  θ_i / factor. Source: S. Chen et al., "Extending Context Window of Large Language Models via
//           Position Interpolation", arXiv:2306.15595.
//   llama3  with the wavelength λ = 2π/θ_i and L = original_positions: θ_i if λ < L/high_freq_factor,
//           θ_i/factor if λ > L/low_freq_factor, and in between (1 − s)·θ_i/factor + s·θ_i with s = (L/λ −
//           low_freq_factor) / (high_freq_factor − low_freq_factor). Source: A. Grattafiori et al., "The
//           Llama 3 Herd of Models", arXiv:2407.21783, and its reference code.
//   yarn    γ_i·θ_i/factor + (1 − γ_i)·θ_i. γ rises linearly from 0, at the pair that makes beta_fast turns
//           in L positions, to 1, at the pair that makes beta_slow turns. Source: B. Peng et al., "YaRN:
//           Efficient Context Window Extension of Large Language Models", arXiv:2309.00071.
// Everything is computed in fp64 and rounded to the tables' dtype.
#pragma once

#include <optional>
#include <string_view>
#include <vector>

#include "core/tensor.hpp"

namespace warpwright::ops {

enum class RopeScaling : std::uint8_t { none, linear, llama3, yarn };

// The fields have the names of Hugging Face's rope_parameters, except theta (rope_theta), R and
// original_positions (original_max_position_embeddings).
struct RopeAngles {
  double theta = 10000;  // > 1
  std::int64_t R = 0;    // rotary elements of a head: even, ≥ 2
  RopeScaling scaling = RopeScaling::none;
  double factor = 1;                                 // ≥ 1; linear, llama3, yarn
  std::int64_t original_positions = 0;               // L ≥ 1; llama3, yarn
  double low_freq_factor = 1, high_freq_factor = 4;  // 0 < low < high; llama3
  double beta_fast = 32, beta_slow = 1;              // 0 < slow ≤ fast; yarn
  bool truncate = true;                              // yarn: γ begins and ends at whole pairs
  std::optional<double> attention_factor = {};       // yarn: m > 0, if it is given
  double mscale = 0, mscale_all_dim = 0;             // yarn: m follows from both if neither is 0

  bool operator==(const RopeAngles&) const = default;
};

// The frequencies θ_i of the R/2 pairs, in radians per position. Throws Error if a field is out of its range.
std::vector<double> rope_frequencies(const RopeAngles& angles);

// The factor m of the tables. Without attention_factor, yarn's is g(mscale) / g(mscale_all_dim) or g(1), with
// g(a) = 0.1·a·ln(factor) + 1. Throws Error if a field is out of its range.
double rope_attention_factor(const RopeAngles& angles);

// Fills the tables of positions 0 to P − 1. cos and sin are (P, R/2), fp32 or fp64, contiguous, in the host's
// memory. Throws Error if a tensor does not fit or a field is out of its range.
void write_rope_tables(const RopeAngles& angles, const Tensor& cos, const Tensor& sin);

}  // namespace warpwright::ops
