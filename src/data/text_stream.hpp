// Reads a text file from beginning to end, and decompresses it if its name ends in .gz or .zst.
//
// A .gz file holds one or more gzip members, a .zst file one or more zstd frames. Memory is bounded by the
// windows: 32 KiB for zlib, up to 128 MiB for zstd. All levels of the zstd program stay below this unless
// --ultra or --long is given.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>

namespace warpwright {

// The name without a final .gz or .zst: `x.jsonl` for `x.jsonl.gz`.
std::filesystem::path without_compression(const std::filesystem::path& path);

class TextStream {
 public:
  // Throws Error if the path is not a regular file or cannot be opened.
  explicit TextStream(const std::filesystem::path& path);
  TextStream(TextStream&&) noexcept;
  ~TextStream();

  // Fills `into` as far as there is text, and returns the number of bytes filled. Fewer than into.size()
  // means the end. Throws Error if compressed data is truncated, damaged, or followed by other data.
  std::size_t read(std::span<char> into);
  std::uint64_t consumed() const;  // bytes of the file read so far, in compressed size

  class Source;  // the file's bytes
  class Codec;   // decodes these bytes

 private:
  std::unique_ptr<Source> source_;
  std::unique_ptr<Codec> codec_;  // null: the file is not compressed
};

}  // namespace warpwright
