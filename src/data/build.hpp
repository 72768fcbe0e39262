// Builds a data folder: documents → ids → shards and data.json. The folder appears whole or not at all.
//
// Documents are encoded in parallel and written in order, each followed by the end-of-text token. The result
// does not depend on the number of threads. Inputs are streamed, so a file may be larger than memory, even if
// it is compressed. The seed chooses whole documents for the validation split. If there is only one document,
// its tail becomes the validation split, from the start of a line.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "data/manifest.hpp"

namespace warpwright {

struct BuildOptions {
  std::vector<std::filesystem::path> inputs;  // text files, JSONL files, or folders (data/documents.hpp)
  std::filesystem::path out;                  // a new or empty folder
  bool force = false;                         // if true, the output of an earlier build in `out` is replaced
  std::string field = "text";                 // the key of the text in JSONL objects
  double val_fraction = 0.01;  // share of documents, in [0, 1); at least one document; 0: no validation split
  std::uint64_t seed = 0;      // chooses the validation documents
  std::int64_t tokens_per_shard = 100'000'000;
  std::int64_t vocabulary_size = 0;
  std::int32_t end_of_text = 0;
  bool binary = false;  // encode files that are not text (data/file_kind.hpp) instead of skipping them
  // Give each document to the encoder whole, for a tokenizer whose ids change if a text is cut. It must fit
  // into memory.
  bool whole_documents = false;
  // Called for each skipped file, with the file's kind.
  std::function<void(const std::filesystem::path& path, std::string_view kind)> skipped;
  // Puts further files (the tokenizer's) into the folder before it appears. data.json lists them.
  std::function<void(const std::filesystem::path& folder)> before_commit;
};

struct BuildProgress {
  std::int64_t bytes_done = 0, bytes_total = 0;  // of the input files, in their compressed size
  std::int64_t tokens = 0;
};

// Appends the ids of a text (any bytes) to ids. The text may continue one of the same document. Several
// threads call it at once.
using EncodeFunction =
    std::function<void(std::string_view text, bool continues, std::vector<std::int32_t>& ids)>;
// Runs on the calling thread, about once per 4 MiB of input per thread.
using ProgressFunction = std::function<void(const BuildProgress&)>;

Manifest build_shards(const BuildOptions& options, const EncodeFunction& encode,
                      const ProgressFunction& progress);

}  // namespace warpwright
