// A batch of texts for an encoder: on the host, checked, and as its kernels read it.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "model/bert.hpp"

namespace warpwright {

// A batch on the host: texts as token ids, one after the other.
struct PackedBatch {
  std::vector<std::int32_t> tokens;  // (N)
  std::vector<std::int32_t> types;   // (N), or empty: all 0
  // (S + 1): sequence s is tokens [cu_seqlens[s], cu_seqlens[s + 1])
  std::vector<std::int32_t> cu_seqlens{0};

  std::int64_t sequences() const { return static_cast<std::int64_t>(cu_seqlens.size()) - 1; }
  void clear();
  // Appends a sequence; no types: all 0.
  void append(std::span<const std::int32_t> ids, std::span<const std::int32_t> type_ids = {});
};

// The most that a session has memory for.
struct BatchLimits {
  std::int64_t tokens, sequences;
};

// Throws an Error that names the text ("text 3 of the batch") for a batch that does not fit, and for ids that
// are not the vocabulary's.
void check_batch(const BertConfig& config, const BatchLimits& limits, const PackedBatch& batch);

// Writes the integers of `host`, a narrowed BertActivations (model/bert_memory.hpp) in the host's memory.
// Sequences after the batch's own are empty.
void write_batch(const BertConfig& config, const PackedBatch& batch, const BertActivations& host);

}  // namespace warpwright
