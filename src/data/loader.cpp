#include "data/loader.hpp"

#include <fmt/format.h>
#include <sys/resource.h>

#include <algorithm>
#include <set>
#include <string>

#include "core/error.hpp"
#include "data/permutation.hpp"

namespace warpwright {
namespace {

namespace fs = std::filesystem;

// These purposes keep the loader's random numbers apart from all others of the same seed.
constexpr std::uint32_t kOrderPurpose = 0x6f726472;   // "ordr"
constexpr std::uint32_t kOffsetPurpose = 0x6f666673;  // "offs"

constexpr const char* kNameShards =
    "build it with `warpwright data build`, or name its shards as train_000000.bin and val_000000.bin";

// The splits that the words of a shard's name say: train or training, val, valid or validation, each perhaps
// with a number. "retrieval_0.bin" says none.
std::set<Split> splits_in(std::string_view name) {
  std::set<Split> splits;
  for (std::size_t begin = 0; begin < name.size();) {
    const std::size_t end = std::min(name.find_first_of("_-.", begin), name.size());
    std::string_view word = name.substr(begin, end - begin);
    word = word.substr(0, word.find_last_not_of("0123456789") + 1);
    if (word == "train" || word == "training") splits.insert(Split::train);
    if (word == "val" || word == "valid" || word == "validation") splits.insert(Split::val);
    begin = end + 1;
  }
  return splits;
}

std::vector<fs::path> shards_by_name(const fs::path& folder, Split split) {
  std::vector<fs::path> found;
  for (const fs::path& entry : list_folder(folder)) {
    const std::string name = entry.filename().string();
    const std::set<Split> splits = splits_in(name);
    if (!name.ends_with(".bin") || !splits.contains(split)) continue;
    if (splits.size() > 1) {
      throw Error("has both \"train\" and \"val\" in its name", entry.string(),
                  "rename it so that it names one split");
    }
    found.push_back(entry);
  }
  return found;
}

// Shards that one split keeps open: at most a quarter of the process's limit.
std::size_t most_open_files() {
  constexpr std::size_t kMost = 512;
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) return 1;
  return std::clamp<std::size_t>(static_cast<std::size_t>(limit.rlim_cur / 4), 1, kMost);
}

void check_batch(const Tensor& inputs, const Tensor& targets, std::int64_t T) {
  const bool fits = inputs.shape.rank() == 2 && inputs.shape[1] == T && inputs.shape == targets.shape &&
                    inputs.contiguous() && targets.contiguous();
  if (!fits) {
    throw Error(fmt::format("inputs {} and targets {} are not (B, {})", inputs.shape.to_string(),
                            targets.shape.to_string(), T),
                "batch", "give contiguous tensors of the loader's sequence length");
  }
}

void load_row(const TokenStream& stream, std::int64_t first, std::int64_t row, const Tensor& inputs,
              const Tensor& targets) {
  const auto T = static_cast<std::size_t>(inputs.shape[1]);
  stream.read(first, std::span(inputs.as<std::int32_t>() + row * inputs.shape[1], T));
  stream.read(first + 1, std::span(targets.as<std::int32_t>() + row * inputs.shape[1], T));
}

void check_length(const TokenStream& stream, std::int64_t T) {
  if (T < 1) throw UsageError(fmt::format("cannot be {}", T), "sequence length", "give at least 1");
  if (stream.tokens() - 1 < T) {
    throw Error(fmt::format("the {} split holds {} tokens, but a sequence of {} needs {}",
                            name_of(stream.split()), stream.tokens(), T, T + 1),
                stream.folder().string(), "use more data or a shorter sequence");
  }
}

}  // namespace

std::vector<fs::path> shard_paths(const fs::path& folder, Split split,
                                  const std::optional<Manifest>& manifest) {
  if (!manifest) return shards_by_name(folder, split);
  std::vector<fs::path> paths;
  for (const std::string& name : manifest->split(split).shards) paths.push_back(folder / name);
  return paths;
}

TokenStream::TokenStream(const fs::path& folder, Split split, std::int64_t vocabulary)
    : folder_(folder), split_(split), vocabulary_(vocabulary), files_(std::make_unique<Files>()) {
  const auto manifest = read_manifest(folder);
  if (manifest && manifest->vocabulary_size > vocabulary) {
    throw Error(fmt::format("holds ids of a vocabulary of {}, but the model's has {}",
                            manifest->vocabulary_size, vocabulary),
                folder.string(),
                "use data that was built with the model's tokenizer, or give --vocab that size");
  }
  std::int64_t total = 0;
  files_->most_open = most_open_files();
  for (const fs::path& path : shard_paths(folder, split, manifest)) {
    files_->shards.emplace_back(path);
    files_->keep_open(files_->shards.size() - 1);
    total += files_->shards.back().tokens();
    ends_.push_back(total);
  }
  if (total == 0) {
    throw Error(fmt::format("holds no tokens for the {} split", name_of(split)), folder.string(),
                manifest ? "build it with `warpwright data build`" : kNameShards);
  }
  if (manifest && manifest->split(split).tokens != total) {
    throw Error(fmt::format("data.json promises {} tokens for the {} split, but its shards hold {}",
                            manifest->split(split).tokens, name_of(split), total),
                folder.string(), "build the data again");
  }
}

void TokenStream::Files::keep_open(std::size_t shard) {
  if (open.size() == most_open) {
    shards[open.front()].release();
    open.pop_front();
  }
  open.push_back(shard);
}

void TokenStream::read(std::int64_t first, std::span<std::int32_t> out) const {
  const auto count = static_cast<std::int64_t>(out.size());
  if (first < 0 || first > tokens() || count > tokens() - first) {
    throw Error(fmt::format("the {} split holds {} tokens, but {} are wanted from token {}", name_of(split_),
                            tokens(), count, first),
                folder_.string(), "read within the split");
  }
  const std::lock_guard lock(files_->mutex);
  auto index = static_cast<std::size_t>(std::upper_bound(ends_.begin(), ends_.end(), first) - ends_.begin());
  while (!out.empty()) {
    Shard& shard = files_->shards[index];
    const bool was_open = shard.is_open();
    const std::int64_t within = first - (ends_[index] - shard.tokens());
    const auto part =
        static_cast<std::size_t>(std::min(static_cast<std::int64_t>(out.size()), shard.tokens() - within));
    shard.read(within, vocabulary_, out.first(part));
    if (!was_open) files_->keep_open(index);
    out = out.subspan(part);
    first += static_cast<std::int64_t>(part);
    ++index;
  }
}

void TokenStream::check(std::int64_t count) const {
  std::vector<std::int32_t> ids(std::size_t{1} << 16);
  for (std::int64_t first = 0; first < count;) {
    const auto part = std::min(static_cast<std::int64_t>(ids.size()), count - first);
    read(first, std::span(ids).first(static_cast<std::size_t>(part)));
    first += part;
  }
}

TrainingLoader::TrainingLoader(const TokenStream& stream, std::uint64_t seed, std::int64_t T,
                               std::int64_t samples_per_step)
    : stream_(&stream), seed_(seed), T_(T), samples_per_step_(samples_per_step) {
  check_length(stream, T);
  if (samples_per_step < 1) {
    throw UsageError(fmt::format("cannot be {} sequences", samples_per_step), "total batch",
                     "give at least 1");
  }
  samples_per_epoch_ = std::max(std::int64_t{1}, (stream.tokens() - T) / T);
  if (samples_per_epoch_ < samples_per_step) {
    throw Error(fmt::format("the {} split holds {} samples of {} tokens, but a step takes {}",
                            name_of(stream.split()), samples_per_epoch_, T, samples_per_step),
                stream.folder().string(), "use more data, a smaller total batch or a shorter sequence");
  }
}

void TrainingLoader::load(std::int64_t step, std::int64_t first_row, const Tensor& inputs,
                          const Tensor& targets) const {
  check_batch(inputs, targets, T_);
  const std::int64_t B = inputs.shape[0];
  std::int64_t first_sample;
  if (first_row < 0 || first_row > samples_per_step_ || B > samples_per_step_ - first_row) {
    throw Error(fmt::format("rows [{}, {}) lie outside the {} rows of a step", first_row, first_row + B,
                            samples_per_step_),
                "batch", "split the total batch evenly");
  }
  if (step < 0 || __builtin_mul_overflow(step, samples_per_step_, &first_sample) ||
      __builtin_add_overflow(first_sample, samples_per_step_, &first_sample)) {
    throw Error(fmt::format("step {} is out of range", step), "loader", "give a step of the run");
  }
  first_sample += first_row - samples_per_step_;
  for (std::int64_t row = 0; row < B; ++row) {
    load_row(*stream_, first_token(first_sample + row), row, inputs, targets);
  }
}

std::int64_t TrainingLoader::first_token(std::int64_t sample) const {
  const auto epoch = static_cast<std::uint32_t>(sample / samples_per_epoch_);
  const auto index = static_cast<std::uint64_t>(sample % samples_per_epoch_);
  const Permutation order(static_cast<std::uint64_t>(samples_per_epoch_), seed_, kOrderPurpose, epoch);
  const std::int64_t spare = stream_->tokens() - 1 - samples_per_epoch_ * T_;
  const auto offsets = static_cast<double>(std::min(spare + 1, T_));
  const auto offset =
      static_cast<std::int64_t>(PhiloxStream(seed_, kOffsetPurpose, epoch).uniform(0) * offsets);
  return offset + static_cast<std::int64_t>(order(index)) * T_;
}

double TrainingLoader::epochs_at(std::int64_t step) const {
  return static_cast<double>(step) * static_cast<double>(samples_per_step_) /
         static_cast<double>(samples_per_epoch_);
}

ValidationLoader::ValidationLoader(const TokenStream& stream, std::int64_t T) : stream_(&stream), T_(T) {
  check_length(stream, T);
  samples_ = (stream.tokens() - 1) / T;
}

void ValidationLoader::load(std::int64_t first, const Tensor& inputs, const Tensor& targets) const {
  check_batch(inputs, targets, T_);
  const std::int64_t B = inputs.shape[0];
  if (first < 0 || first > samples_ || B > samples_ - first) {
    throw Error(fmt::format("samples [{}, {}) lie outside the {} of the {} split", first, first + B, samples_,
                            name_of(stream_->split())),
                stream_->folder().string(), "load within the split");
  }
  for (std::int64_t row = 0; row < B; ++row) load_row(*stream_, (first + row) * T_, row, inputs, targets);
}

}  // namespace warpwright
