// A data folder's fingerprint: what a run records about its data and compares when it resumes.
//
// It holds the vocabulary, the end-of-text id and, for each split, the tokens and a checksum of every shard
// in order. The shards' names do not count. Shards of a split of at most 1 GiB are read whole. Shards of a
// larger split are sampled: their size, their header, and 8,192 blocks of 4 KiB spread over the split, at
// least one per shard. The checksum listed in data.json is added to the sample. Sampling reads 32 MiB for up
// to 8,192 shards. It cannot detect a change between the blocks of a shard whose size and entry in data.json
// stay the same.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "data/manifest.hpp"

namespace warpwright {

struct SplitFingerprint {
  std::int64_t tokens = 0, shards = 0;
  std::vector<std::string> sums;  // one per shard; for more than 4,096 shards, one per equal group of shards
  bool operator==(const SplitFingerprint&) const = default;
};

struct DataFingerprint {
  std::int64_t vocabulary_size = 0;  // 0: there is no data.json to name it
  std::int64_t end_of_text = -1;     // −1: there is no data.json to name it
  SplitFingerprint train, val;
  bool operator==(const DataFingerprint&) const = default;
};

// Reads the folder as described above. Throws Error if a shard or a tokenizer file does not have the checksum
// that data.json lists. If `changed` is given, the error's text is appended to it instead.
DataFingerprint fingerprint_of_data(const std::filesystem::path& folder,
                                    std::vector<std::string>* changed = nullptr);

// Names the first difference: "shard train_000003.bin of the train split has other contents". Empty if they
// are equal. `folder`, the folder of `now`, supplies the shards' names.
std::string difference(const DataFingerprint& before, const DataFingerprint& now,
                       const std::filesystem::path& folder);

nlohmann::json to_json(const DataFingerprint& fingerprint);
// Throws nlohmann::json::exception if a field is missing or has another type.
DataFingerprint data_fingerprint(const nlohmann::json& json);

}  // namespace warpwright
