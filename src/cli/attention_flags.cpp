#include "cli/attention_flags.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <span>
#include <vector>

#include "cli/checks.hpp"
#include "core/error.hpp"
#include "model/safetensors.hpp"
#include "ops/element.hpp"
#include "runtime/host_view.hpp"

namespace warpwright::cli {
namespace {

// The bytes of bias[:, :L, :L], aligned.
std::vector<std::byte> first_tokens(const SafetensorsFile& file, const SafetensorsEntry& bias,
                                    std::int64_t L) {
  const std::span<const std::byte> from = file.bytes(bias);
  const std::int64_t heads = bias.shape[0], stored = bias.shape[1];
  const std::size_t element = size_of(*bias.dtype), row = static_cast<std::size_t>(L) * element;
  std::vector<std::byte> bytes;
  bytes.reserve(static_cast<std::size_t>(heads * L) * row);
  for (std::int64_t h = 0; h < heads; ++h) {
    for (std::int64_t i = 0; i < L; ++i) {
      const auto begin = from.begin() + static_cast<std::ptrdiff_t>((h * stored + i) * stored) *
                                            static_cast<std::ptrdiff_t>(element);
      bytes.insert(bytes.end(), begin, begin + static_cast<std::ptrdiff_t>(row));
    }
  }
  return bytes;
}

}  // namespace

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
      fmt::format("has shape {}, but a text may have {} tokens", shape.to_string(), longest), bias.string(),
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
  const std::int64_t stored_length = entry->shape[2];
  if (stored_length == 0 || entry->shape != Shape{config.heads, stored_length, stored_length}) {
    throw Error(fmt::format("has shape {}", entry->shape.to_string()), bias.string(),
                fmt::format("give ({}, L, L) with L of at least 1", config.heads));
  }
  const std::int64_t L = std::min(stored_length, config.max_length());  // no text is longer
  const Shape shape{config.heads, L, L};
  std::vector<std::byte> bytes = first_tokens(file, *entry, L);
  const Tensor stored(bytes.data(), *entry->dtype, shape);
  require_bias_values(bias.string(), stored);
  const Device device = context.device().device;
  memory = Buffer(static_cast<std::size_t>(shape.elements()) * size_of(dtype), device, "an attention bias");
  attention.bias = Tensor(memory.data(), dtype, shape, device);
  write_on_host(attention.bias, context.stream(), [&](const Tensor& host) {
    for (std::int64_t i = 0; i < host.elements(); ++i) {
      ops::store_element(host, i, ops::load_element(stored, i));
    }
  });
  return attention;
}

}  // namespace warpwright::cli
