// Trains a byte-level BPE tokenizer: counts the pieces of the text, then merges the most frequent pair again
// and again.
//
// The result equals that of Hugging Face tokenizers' BpeTrainer (models/bpe/trainer.rs) with its ByteLevel
// alphabet on the same documents, merge for merge. Ties go to the pair of smaller ids. Special tokens take
// the first ids, then come the 256 bytes in the order of their characters. The result depends only on the
// documents and the options, not on the number of threads.
#pragma once

#include <cstddef>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "text/tokenizer.hpp"

namespace warpwright::text {

struct TrainProgress {
  enum class Phase { counting, merging } phase;
  std::size_t done, total;  // counting: bytes of text so far, and 0; merging: tokens so far, and the target
};

struct TokenizerTraining {
  std::size_t vocab_size = 0;                                   // including special tokens and the 256 bytes
  std::vector<std::string> special_tokens = {"<|endoftext|>"};  // the first one ends documents
  std::vector<Cut> patterns;  // cut the text before GPT-2's does (use_regex), or instead of it
  bool use_regex = true;
  std::function<void(const TrainProgress&)> progress;  // called from the calling thread, at intervals
};

// Calls `add` with each document in turn. The bytes must be valid only until `add` returns.
using DocumentSource = std::function<void(const std::function<void(std::string_view document)>& add)>;

// Trains on documents. No piece spans two documents, and special tokens spelled out in them are plain text.
// Memory grows with the number of distinct pieces, plus one batch of documents. The vocabulary is smaller
// than requested if no pairs are left to merge. Throws UsageError for a vocabulary that is too small or a
// special token that plain text could produce, and Error if the documents hold no text.
Tokenizer train_tokenizer(const DocumentSource& documents, const TokenizerTraining& options);
Tokenizer train_tokenizer(std::span<const std::string_view> documents, const TokenizerTraining& options);

}  // namespace warpwright::text
