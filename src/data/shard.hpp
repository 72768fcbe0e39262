// Token shards: files of token ids in llm.c's format, little-endian.
//
//   256 int32   header: [0] magic 20240520, [1] version, [2] count of tokens, the rest 0
//   count ids   version 1 (llm.c's): uint16; version 2 (ours, for vocabularies over 65,536): uint32
//
// The count is an int32, so a shard holds at most 2^31 - 1 tokens. Larger splits have several shards. Source
// of version 1: llm.c, llmc/dataloader.h and dev/data/data_common.py.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "runtime/file.hpp"

namespace warpwright {

inline constexpr std::int32_t kShardMagic = 20240520;
inline constexpr std::int64_t kShardHeaderBytes = 256 * 4;
inline constexpr std::int64_t kMaxShardTokens = 0x7fffffff;

// A shard for reading. The constructor checks the header and the file's size; read() checks the ids. It uses
// pread instead of a mapping, so a file that shrinks is an Error. One thread at a time may call it.
class Shard {
 public:
  explicit Shard(const std::filesystem::path& path);

  std::int64_t tokens() const { return tokens_; }
  std::uint64_t bytes() const { return id_.size; }  // the file's size
  std::filesystem::path path() const { return path_; }

  // Reads the ids [first, first + out.size()). Throws an Error that names the first id outside the vocabulary
  // and its position. Opens the file again after release(), and throws Error if the file has changed.
  void read(std::int64_t first, std::int64_t vocabulary, std::span<std::int32_t> out);
  // Closes the file until the next read().
  void release() { file_ = FileDescriptor(); }
  bool is_open() const { return static_cast<bool>(file_); }

 private:
  struct Identity {
    std::uint64_t device = 0, inode = 0, size = 0;
    std::int64_t seconds = 0, nanoseconds = 0;  // the time of the last change of its content
    bool operator==(const Identity&) const = default;
  };

  Identity open();
  void read_at(std::uint64_t offset, std::span<std::byte> out) const;
  void check_header();

  std::string path_;
  FileDescriptor file_;
  Identity id_;
  std::int64_t tokens_ = 0;
  int token_bytes_ = 0;
};

// Writes ids in order to FOLDER/PREFIX_000000.bin, …, and starts a new shard after every tokens_per_shard
// ids. The folder's owner makes the whole atomic (AtomicFolder).
class ShardWriter {
 public:
  ShardWriter(std::filesystem::path folder, std::string prefix, std::int64_t vocabulary,
              std::int64_t tokens_per_shard);

  void append(std::span<const std::int32_t> ids);
  void finish();  // completes the last shard

  std::int64_t tokens() const { return tokens_; }
  const std::vector<std::string>& shards() const { return shards_; }  // file names

 private:
  void open_shard();
  void close_shard();

  std::filesystem::path folder_;
  std::string prefix_;
  std::int64_t vocabulary_;
  std::int64_t tokens_per_shard_;
  std::int64_t tokens_ = 0;
  std::int64_t shard_tokens_ = 0;
  std::vector<std::string> shards_;
  std::optional<OutputFile> file_;
};

}  // namespace warpwright
