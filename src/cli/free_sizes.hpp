// A model of any size: --family, --layers, --heads, --key-heads, --channels, --hidden, --vocab and --context.
#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <memory>
#include <string>

#include "model/decoder.hpp"

namespace warpwright::cli {

// 0 and "": not given.
struct FreeSizes {
  std::string family;
  std::int64_t layers = 0, heads = 0, key_heads = 0, channels = 0, hidden = 0, vocab = 0, context = 0;

  // vocab: what the vocabulary is by default, for --help.
  void add_to(CLI::App& command, const std::string& vocab);
  // True if they describe a model, so --model would be redundant.
  bool describe_model() const { return layers || heads || channels; }
  bool given() const {
    return describe_model() || key_heads || hidden || vocab || context || !family.empty();
  }
  // Those that are given: "--layers, --heads".
  std::string flags() const;
  // The first flag that conflicts with --model; "" if there is none.
  std::string beside_model() const;
};

// The model of these sizes. base: a checkpoint's model, whose sizes fill the gaps; may be null, and vocab and
// context are then given. UsageError for sizes that cannot be, by the names of the flags.
std::shared_ptr<const Decoder> free_model(const FreeSizes& sizes, const Decoder* base);

}  // namespace warpwright::cli
