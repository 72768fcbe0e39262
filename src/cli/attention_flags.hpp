// The flags of an encoder's attention: a bias from a file, and a temperature.
#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <filesystem>

#include "model/bert_attention.hpp"
#include "runtime/context.hpp"

namespace warpwright::cli {

struct AttentionFlags {
  std::filesystem::path bias;
  float temperature = 1;

  void add_to(CLI::App& command);
  // Puts the file's bias into `memory`, on the context's device and in the encoder's dtype.
  BertAttention load(const Context& context, const BertConfig& config, DType dtype, Buffer& memory) const;
  // Throws unless the loaded bias suits texts of this many tokens.
  void require_length(const BertAttention& attention, std::int64_t longest) const;
};

}  // namespace warpwright::cli
