// The oracle, in fp64 throughout and in the order of the formulas.
#include <algorithm>
#include <cmath>
#include <vector>

#include "ops/element.hpp"
#include "ops/embedding_layernorm/embedding_layernorm.hpp"

namespace warpwright::ops {
namespace {

void forward(const Context&, const EmbeddingLayerNormForward& args) {
  const std::int64_t C = args.out.shape[1];
  const std::int64_t N = args.rows
                             ? std::min<std::int64_t>(args.rows.as<std::int32_t>()[0], args.out.shape[0])
                             : args.out.shape[0];
  const Elements word(args.word), position(args.position), type(args.type), weight(args.weight),
      bias(args.bias), out(args.out);
  const auto *tokens = args.tokens.as<std::int32_t>(), *positions = args.positions.as<std::int32_t>(),
             *types = args.types.as<std::int32_t>();
  std::vector<double> x(static_cast<std::size_t>(C));
  for (std::int64_t n = 0; n < N; ++n) {
    double mean = 0, variance = 0;
    for (std::int64_t c = 0; c < C; ++c) {
      auto& value = x[static_cast<std::size_t>(c)];
      value = word[tokens[n] * C + c] + position[positions[n] * C + c];
      if (types) value += type[types[n] * C + c];
      mean += value;
    }
    mean /= static_cast<double>(C);
    for (const double value : x) variance += (value - mean) * (value - mean);
    const double rstd = 1 / std::sqrt(variance / static_cast<double>(C) + static_cast<double>(args.eps));
    for (std::int64_t c = 0; c < C; ++c) {
      out.set(n * C + c, (x[static_cast<std::size_t>(c)] - mean) * rstd * weight[c] + bias[c]);
    }
  }
}

}  // namespace

WARPWRIGHT_KERNEL(EmbeddingLayerNormForward, "reference"_kernel) = {
    .needs = Needs::cpu, .dtypes = kFloatingDTypes, .run = forward};

}  // namespace warpwright::ops
