#include "model/bert_attention.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>

#include "core/error.hpp"
#include "ops/padding/mask.hpp"

namespace warpwright {
namespace {

void check_place(const std::string& argument, const Tensor& tensor, Device device) {
  if (tensor.device == device) return;
  throw Error("is not on the encoder's device", argument, "copy it there");
}

void check_bias(const Tensor& bias, std::int64_t heads, DType dtype, std::int64_t S, std::int64_t longest) {
  const int rank = bias.shape.rank();
  const std::int64_t L = rank > 0 ? bias.shape[rank - 1] : 0;
  const std::int64_t least = std::max<std::int64_t>(longest, 1);
  const bool fits = (bias.shape == Shape{heads, L, L} || bias.shape == Shape{S, heads, L, L}) && L >= least;
  if (!fits) {
    const std::string shapes =
        S == 0 ? fmt::format("({}, L, L)", heads)  // for the calls to come
               : fmt::format("({1}, L, L) or ({0}, {1}, L, L) with L of at least {2}", S, heads, least);
    throw Error(fmt::format("has shape {}", bias.shape.to_string()), "bias", "give " + shapes);
  }
  if (bias.dtype != dtype) {
    throw Error(fmt::format("is {}", name_of(bias.dtype)), "bias",
                fmt::format("give the encoder's dtype, {}", name_of(dtype)));
  }
}

}  // namespace

void require_bias_values(const std::string& where, const Tensor& bias) {
  visit_dtype(bias.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    const T* values = bias.as<T>();
    for (std::int64_t i = 0; i < bias.elements(); ++i) {
      const auto value = static_cast<float>(values[i]);
      if (value <= std::numeric_limits<float>::max()) continue;
      std::int64_t rest = i;
      Shape place = bias.shape;
      for (int axis = place.rank() - 1; axis >= 0; --axis) {
        place[axis] = rest % bias.shape[axis];
        rest /= bias.shape[axis];
      }
      throw Error(fmt::format("has {} at {}", value, place.to_string()), where, "give numbers");
    }
  });
}

void check_attention(const BertConfig& config, DType dtype, Device device, std::int64_t S,
                     std::int64_t longest, const BertAttention& attention) {
  const float temperature = attention.temperature;
  if (!(temperature >= kLeastTemperature) || !std::isfinite(temperature)) {
    throw Error(fmt::format("is {}", temperature), "temperature",
                fmt::format("give a number of {} or more", kLeastTemperature));
  }
  const Tensor &bias = attention.bias, &mask = attention.mask;
  if (bias || bias.shape.rank() > 0) {  // an empty one may have no memory
    check_bias(bias, config.heads, dtype, S, longest);
    check_place("bias", bias, device);
  }
  if (mask) {
    const std::int64_t L = mask.shape.rank() == 4 ? std::max(mask.shape[3], longest) : longest;
    if (ops::mask_form(kMaskArgument, mask.shape, S, L) != ops::MaskForm::pairs) {
      throw Error(fmt::format("has shape {}", mask.shape.to_string()), kMaskArgument,
                  fmt::format("a packed batch has no padding; give ({}, 1, {}, {}) for pairs", S, L, L));
    }
    check_place(kMaskArgument, mask, device);
  }
}

}  // namespace warpwright
