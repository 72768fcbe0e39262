// data.json, stored next to the shards: their origin, and the tokenizer's files in the same folder.
//
//   {"format": "warpwright-data", "version": 1, "vocabulary_size": 50257, "end_of_text": 50256,
//    "files": {"tokenizer.json": "xxh128:…"},
//    "splits": {"train": {"tokens": 9, "documents": 1, "bytes": 30, "shards": ["train_000000.bin"],
//                         "checksums": ["xxh128:…"]},
//               "val": {…}}}
//
// Folders made by llm.c's scripts have no data.json. Their shards are the files with the word "train" or
// "val" in their names.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace warpwright {

enum class Split : std::uint8_t { train, val };

std::string_view name_of(Split split);  // "train", "val"

struct SplitManifest {
  std::int64_t tokens = 0;  // end-of-text tokens included
  std::int64_t documents = 0;
  // Bytes of text, without end-of-text tokens. Bits per byte = nats per token × tokens / bytes / ln 2.
  std::int64_t bytes = 0;
  std::vector<std::string> shards;  // file names in the folder, in order
  // Checksum_of each shard; empty if the build that made the folder wrote none.
  std::vector<std::string> checksums;
};

struct Manifest {
  std::int64_t vocabulary_size = 0;
  std::int32_t end_of_text = 0;
  std::map<std::string, std::string> files;  // name and checksum_of the files next to the shards
  SplitManifest train, val;

  const SplitManifest& split(Split which) const { return which == Split::train ? train : val; }
};

// The folder's manifest, or empty if there is none. Throws Error for an invalid field. Shard names must be
// plain names of files in the folder.
std::optional<Manifest> read_manifest(const std::filesystem::path& folder);

void write_manifest(const Manifest& manifest, const std::filesystem::path& folder);

}  // namespace warpwright
