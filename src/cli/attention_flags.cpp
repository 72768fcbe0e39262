#include "cli/attention_flags.hpp"

#include <fmt/format.h>

#include <cstring>
#include <vector>

#include "cli/checks.hpp"
#include "core/error.hpp"
#include "model/safetensors.hpp"
#include "ops/element.hpp"
#include "runtime/host_view.hpp"

namespace warpwright::cli {

void AttentionFlags::add_to(CLI::App& command) {
  command.add_option(
      "--attention-bias", bias,
      "A safetensors file whose tensor \"bias\" (heads, L, L) is added to the attention scores of "
      "all layers, as T5 and ALiBi need it; default: none");
  command
      .add_option("--attention-temperature", temperature,
                  "Divide the attention scores by this before the bias is added")
      ->capture_default_str()
      ->check(float_at_least(kLeastTemperature));
}

void AttentionFlags::require_length(const BertAttention& attention, std::int64_t longest) const {
  if (bias.empty()) return;
  const Shape& shape = attention.bias.shape;
  const std::int64_t L = shape[1];
  if (L >= longest) return;
  throw Error(
      fmt::format("has shape {}, a text may have {} tokens", shape.to_string(), longest), bias.string(),
      fmt::format("give ({0}, L, L) with L of at least {1}, or --max-length {2}", shape[0], longest, L));
}

BertAttention AttentionFlags::load(const Context& context, const BertConfig& config, DType dtype,
                                   Buffer& memory) const {
  BertAttention attention;
  attention.temperature = temperature;
  if (bias.empty()) return attention;
  const SafetensorsFile file(bias);
  const SafetensorsEntry* entry = file.find("bias");
  if (!entry || !entry->dtype || !is_floating(*entry->dtype) || entry->shape.rank() != 3) {
    throw Error("has no floating tensor \"bias\" of three axes", bias.string(), "give it as (heads, L, L)");
  }
  const std::int64_t L = entry->shape[2];
  if (L == 0 || entry->shape != Shape{config.heads, L, L}) {
    throw Error(fmt::format("has shape {}", entry->shape.to_string()), bias.string(),
                fmt::format("give ({}, L, L) with L of at least 1", config.heads));
  }
  const std::span<const std::byte> bytes = file.bytes(*entry);
  std::vector<std::byte> aligned(bytes.begin(), bytes.end());
  const Tensor stored(aligned.data(), *entry->dtype, entry->shape);
  require_bias_values(bias.string(), stored);
  const Device device = context.device().device;
  memory =
      Buffer(static_cast<std::size_t>(entry->shape.elements()) * size_of(dtype), device, "an attention bias");
  attention.bias = Tensor(memory.data(), dtype, entry->shape, device);
  write_on_host(attention.bias, context.stream(), [&](const Tensor& host) {
    for (std::int64_t i = 0; i < host.elements(); ++i) {
      ops::store_element(host, i, ops::load_element(stored, i));
    }
  });
  return attention;
}

}  // namespace warpwright::cli
