// Loader: shards -> batches of (inputs, targets), both (B, T) int32; targets are the inputs one token later.
//
// A split's shards are one stream of tokens: sample k of an epoch is the T + 1 tokens from offset + k·T on,
// across shard borders where it falls so. Everything a training step sees is a pure function of (data, seed,
// T, samples per step, step): the order within an epoch is a keyed permutation, nothing is kept between
// calls, and the state that a checkpoint needs is the step.
#pragma once

#include <cstdint>
#include <deque>
#include <filesystem>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <vector>

#include "core/tensor.hpp"
#include "data/manifest.hpp"
#include "data/shard.hpp"

namespace warpwright {

// The shards of a split: those in the folder's manifest or, without one, the files whose names contain the
// split's name and end in ".bin", in order of name.
std::vector<std::filesystem::path> shard_paths(const std::filesystem::path& folder, Split split,
                                               const std::optional<Manifest>& manifest);

// The tokens of one split of a data folder: those of its shards, one after the other.
class TokenStream {
 public:
  // vocabulary: ids at or above it are errors when they are read, and data.json of a larger one is an Error
  // here.
  TokenStream(const std::filesystem::path& folder, Split split, std::int64_t vocabulary);

  std::int64_t tokens() const { return ends_.empty() ? 0 : ends_.back(); }
  // The tokens [first, first + out.size()). May be called from several threads.
  void read(std::int64_t first, std::span<std::int32_t> out) const;
  // Reads the first `count` tokens, so that an id beyond the vocabulary is an Error before anything else is
  // done.
  void check(std::int64_t count) const;

  const std::filesystem::path& folder() const { return folder_; }
  Split split() const { return split_; }

 private:
  std::filesystem::path folder_;
  Split split_;
  std::int64_t vocabulary_;
  std::vector<std::int64_t> ends_;  // tokens up to and including each shard
  // A process may have fewer files open than a split has shards: the oldest of the open ones is released.
  struct Files {
    std::mutex mutex;
    std::vector<Shard> shards;
    std::deque<std::size_t> open;  // in order of opening
    std::size_t most_open = 0;
    void keep_open(std::size_t shard);
  };
  std::unique_ptr<Files> files_;
};

// Shuffled batches. An epoch has max(1, (tokens - T) / T) samples, each exactly once; its offset is drawn
// anew from [0, T), as far as the tokens allow, so that epochs cut the text at different places.
class TrainingLoader {
 public:
  // samples_per_step: rows of the total batch, over all micro-batches and processes. An epoch must hold as
  // many.
  TrainingLoader(const TokenStream& stream, std::uint64_t seed, std::int64_t T,
                 std::int64_t samples_per_step);

  // Rows [first_row, first_row + B) of the step's total batch. Micro-batch m of process r of R takes
  // first_row = (m·R + r)·B.
  void load(std::int64_t step, std::int64_t first_row, const Tensor& inputs, const Tensor& targets) const;

  std::int64_t samples_per_epoch() const { return samples_per_epoch_; }
  double epochs_at(std::int64_t step) const;  // epochs that are over when the step begins

 private:
  std::int64_t first_token(std::int64_t sample) const;  // sample counts from step 0, through all epochs

  const TokenStream* stream_;
  std::uint64_t seed_;
  std::int64_t T_;
  std::int64_t samples_per_step_;
  std::int64_t samples_per_epoch_;
};

// The split from its beginning to its end in (tokens - 1) / T samples; the last tokens, fewer than T, are
// left out.
class ValidationLoader {
 public:
  ValidationLoader(const TokenStream& stream, std::int64_t T);

  std::int64_t samples() const { return samples_; }
  // Samples [first, first + B), B ≥ 1 from the tensors' shape.
  void load(std::int64_t first, const Tensor& inputs, const Tensor& targets) const;

 private:
  const TokenStream* stream_;
  std::int64_t T_;
  std::int64_t samples_;
};

}  // namespace warpwright
