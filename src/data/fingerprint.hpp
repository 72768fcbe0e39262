// A data folder's fingerprint: what a run records of its data, and compares when it is resumed.
//
// It holds the vocabulary, the end-of-text id and, for each split, the tokens and a checksum of every shard
// in order; the shards' names do not count. The shards of a split of at most 1 GiB are read whole. Those of a
// larger split are sampled: their size, header, and 8,192 blocks of 4 KiB spread over the split (at least one
// in each shard), to which the checksum that data.json lists is added. That costs 32 MiB of reads for up to
// 8,192 shards; it cannot detect a change between the blocks of a shard that keeps its size and its entry in
// data.json.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "data/manifest.hpp"

namespace warpwright {

struct SplitFingerprint {
  std::int64_t tokens = 0, shards = 0;
  std::vector<std::string> sums;  // of each shard or, of more than 4,096 shards, of as many equal groups
  bool operator==(const SplitFingerprint&) const = default;
};

struct DataFingerprint {
  std::int64_t vocabulary_size = 0;  // 0: no data.json says it
  std::int64_t end_of_text = -1;     // −1: no data.json says it
  SplitFingerprint train, val;
  bool operator==(const DataFingerprint&) const = default;
};

// Reads the folder as described above. A shard, or a tokenizer's file, that does not have the checksum that
// data.json lists is an Error, unless `changed` is given: then what would be the error is appended to it.
DataFingerprint fingerprint_of_data(const std::filesystem::path& folder,
                                    std::vector<std::string>* changed = nullptr);

// Names the first difference: "shard train_000003.bin of the train split has other contents"; empty if they
// are equal. `folder`, that of `now`, gives the shards their names.
std::string difference(const DataFingerprint& before, const DataFingerprint& now,
                       const std::filesystem::path& folder);

nlohmann::json to_json(const DataFingerprint& fingerprint);
// Throws a nlohmann::json::exception for a field that is missing or of another type.
DataFingerprint data_fingerprint(const nlohmann::json& json);

}  // namespace warpwright
