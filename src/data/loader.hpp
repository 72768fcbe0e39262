// Loaders turn shards into batches of (inputs, targets), both (B, T) int32. The targets are the inputs one
// token later.
//
// A split's shards form one stream of tokens. Sample k of an epoch is the T + 1 tokens from offset + k·T on,
// across the borders of shards. Each batch is a pure function of (data, seed, T, samples per step, step). The
// order within an epoch is a keyed permutation. No state is kept between calls, so a checkpoint needs only
// the step.
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

// The shards of a split, as listed in the folder's manifest. Without a manifest, these are the files whose
// names end in ".bin" and have the split's name as a word ("_", "-" and "." separate words), sorted by name.
// Throws Error for a file that names both splits.
std::vector<std::filesystem::path> shard_paths(const std::filesystem::path& folder, Split split,
                                               const std::optional<Manifest>& manifest);

// The tokens of one split of a data folder: its shards in sequence.
class TokenStream {
 public:
  // Throws Error if data.json names a larger vocabulary. Reading an id of at least `vocabulary` throws Error.
  TokenStream(const std::filesystem::path& folder, Split split, std::int64_t vocabulary);

  std::int64_t tokens() const { return ends_.empty() ? 0 : ends_.back(); }
  // Reads the tokens [first, first + out.size()). Several threads may call it at once.
  void read(std::int64_t first, std::span<std::int32_t> out) const;
  // Reads the first `count` tokens, to find an id outside the vocabulary before any other work.
  void check(std::int64_t count) const;

  const std::filesystem::path& folder() const { return folder_; }
  Split split() const { return split_; }

 private:
  std::filesystem::path folder_;
  Split split_;
  std::int64_t vocabulary_;
  std::vector<std::int64_t> ends_;  // for each shard, the tokens up to its end
  // A split may have more shards than a process may have open files. So the shard that was opened first is
  // closed when too many are open.
  struct Files {
    std::mutex mutex;
    std::vector<Shard> shards;
    std::deque<std::size_t> open;  // in order of opening
    std::size_t most_open = 0;
    void keep_open(std::size_t shard);
  };
  std::unique_ptr<Files> files_;
};

// Shuffled batches. An epoch has max(1, (tokens - T) / T) samples and uses each exactly once. Each epoch
// draws a new offset from [0, T), as far as the tokens allow, so that epochs cut the text at different
// places.
class TrainingLoader {
 public:
  // samples_per_step: rows of the total batch, over all slices. An epoch must hold at
  // least this many samples.
  TrainingLoader(const TokenStream& stream, std::uint64_t seed, std::int64_t T,
                 std::int64_t samples_per_step);

  // Loads the rows [first_row, first_row + B) of the step's total batch. Slice i starts at row i·B.
  void load(std::int64_t step, std::int64_t first_row, const Tensor& inputs, const Tensor& targets) const;

  double epochs_at(std::int64_t step) const;  // epochs completed before the step

 private:
  std::int64_t first_token(std::int64_t sample) const;  // `sample` counts from step 0 through all epochs

  const TokenStream* stream_;
  std::uint64_t seed_;
  std::int64_t T_;
  std::int64_t samples_per_step_;
  std::int64_t samples_per_epoch_;
};

// The whole split in order, in (tokens - 1) / T samples. The last tokens, fewer than T, are dropped.
class ValidationLoader {
 public:
  ValidationLoader(const TokenStream& stream, std::int64_t T);

  std::int64_t samples() const { return samples_; }
  // Loads the samples [first, first + B). B ≥ 1 comes from the tensors' shape.
  void load(std::int64_t first, const Tensor& inputs, const Tensor& targets) const;

 private:
  const TokenStream* stream_;
  std::int64_t T_;
  std::int64_t samples_;
};

}  // namespace warpwright
