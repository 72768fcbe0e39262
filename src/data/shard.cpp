#include "data/shard.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <utility>

#include "core/error.hpp"

namespace warpwright {
namespace {

static_assert(std::endian::native == std::endian::little,
              "shards are read and written in place, little-endian");

constexpr std::int32_t kVersionUint16 = 1;
constexpr std::int32_t kVersionUint32 = 2;
constexpr std::int64_t kLargestUint16Vocabulary = 65536;
constexpr std::size_t kMaxShards = 1000000;  // six digits keep the names in order
constexpr std::size_t kIdsPerWrite = 65536;
constexpr std::size_t kBytesPerRead = 65536;

template <class Id>
void widen(std::span<const std::byte> bytes, std::span<std::int32_t> out) {
  for (std::size_t i = 0; i < out.size(); ++i) {
    Id id;
    std::memcpy(&id, bytes.data() + i * sizeof id, sizeof id);
    out[i] = static_cast<std::int32_t>(id);
  }
}

template <class Id>
void write_ids(OutputFile& file, std::span<const std::int32_t> ids) {
  std::array<Id, kIdsPerWrite> narrow;
  while (!ids.empty()) {
    const std::size_t count = std::min(ids.size(), narrow.size());
    std::transform(ids.begin(), ids.begin() + static_cast<std::ptrdiff_t>(count), narrow.begin(),
                   [](std::int32_t id) { return static_cast<Id>(id); });
    file.write(std::as_bytes(std::span(narrow.data(), count)));
    ids = ids.subspan(count);
  }
}

std::int64_t first_outside(std::span<const std::int32_t> ids, std::int64_t vocabulary) {
  const auto outside = [&](std::int32_t id) { return id < 0 || id >= vocabulary; };
  return std::find_if(ids.begin(), ids.end(), outside) - ids.begin();
}

}  // namespace

Shard::Shard(const std::filesystem::path& path) : path_(path.string()) {
  id_ = open();
  check_header();
}

// Opens the file and returns its identity.
Shard::Identity Shard::open() {
  file_ = open_file(path_, O_RDONLY | O_NONBLOCK, "open");
  const struct stat status = stat_of(file_.get(), path_);
  if (!S_ISREG(status.st_mode)) throw Error("is not a regular file", path_, "name a token shard");
  return {status.st_dev, status.st_ino, static_cast<std::uint64_t>(status.st_size), status.st_mtim.tv_sec,
          status.st_mtim.tv_nsec};
}

void Shard::check_header() {
  if (id_.size < kShardHeaderBytes) {
    throw Error(
        fmt::format("holds {} bytes, but the header of a token shard needs {}", id_.size, kShardHeaderBytes),
        path_, "build the data again");
  }
  std::array<std::int32_t, 3> header;
  read_at(0, std::as_writable_bytes(std::span(header)));
  if (header[0] != kShardMagic) {
    throw Error(fmt::format("begins with {}, but a token shard begins with {}", header[0], kShardMagic),
                path_, "name a folder made by `warpwright data build` or by llm.c's GPT-2 scripts");
  }
  if (header[1] != kVersionUint16 && header[1] != kVersionUint32) {
    throw Error(fmt::format("has version {}, but only versions 1 and 2 are known", header[1]), path_,
                "build the data again or use a newer warpwright");
  }
  token_bytes_ = header[1] == kVersionUint16 ? 2 : 4;
  tokens_ = header[2];
  if (tokens_ < 0) throw Error(fmt::format("declares {} tokens", tokens_), path_, "build the data again");
  const auto expected = static_cast<std::uint64_t>(kShardHeaderBytes + tokens_ * token_bytes_);
  if (id_.size != expected) {
    throw Error(fmt::format("holds {} bytes, but its {} tokens need {}: it is {}", id_.size, tokens_,
                            expected, id_.size < expected ? "truncated" : "followed by something else"),
                path_, "build or copy the data again");
  }
}

void Shard::read_at(std::uint64_t offset, std::span<std::byte> out) const {
  while (!out.empty()) {
    const ssize_t got = uninterrupted(
        [&] { return ::pread(file_.get(), out.data(), out.size(), static_cast<off_t>(offset)); });
    if (got < 0) throw_system_error("read", path_, "check the health of the disk");
    if (got == 0) {
      throw Error(fmt::format("shrank to less than {} bytes while in use", offset + out.size()), path_,
                  "replace files by renaming, do not rewrite them in place");
    }
    out = out.subspan(static_cast<std::size_t>(got));
    offset += static_cast<std::uint64_t>(got);
  }
}

void Shard::read(std::int64_t first, std::int64_t vocabulary, std::span<std::int32_t> out) {
  const auto count = static_cast<std::int64_t>(out.size());
  if (first < 0 || first > tokens_ || count > tokens_ - first) {
    throw Error(fmt::format("holds {} tokens, but {} are wanted from token {}", tokens_, count, first), path_,
                "read within the shard");
  }
  if (!is_open() && open() != id_) {
    release();
    throw Error("was replaced or changed while in use", path_,
                "build data that a run uses into a new folder, and start or resume the run again");
  }
  const auto width = static_cast<std::size_t>(token_bytes_);
  std::array<std::byte, kBytesPerRead> chunk;
  for (std::size_t done = 0; done < out.size();) {
    const std::span<std::int32_t> part = out.subspan(done, std::min(chunk.size() / width, out.size() - done));
    const std::span<std::byte> bytes = std::span(chunk).first(part.size() * width);
    read_at(kShardHeaderBytes + (static_cast<std::uint64_t>(first) + done) * width, bytes);
    width == 2 ? widen<std::uint16_t>(bytes, part) : widen<std::uint32_t>(bytes, part);
    done += part.size();
  }
  if (const std::int64_t bad = first_outside(out, vocabulary); bad != count) {
    throw Error(fmt::format("token {} is {}, but the vocabulary has {} entries", first + bad,
                            static_cast<std::uint32_t>(out[static_cast<std::size_t>(bad)]), vocabulary),
                path_, "use the data's own tokenizer and a model of its vocabulary");
  }
}

ShardWriter::ShardWriter(std::filesystem::path folder, std::string prefix, std::int64_t vocabulary,
                         std::int64_t tokens_per_shard)
    : folder_(std::move(folder)),
      prefix_(std::move(prefix)),
      vocabulary_(vocabulary),
      tokens_per_shard_(tokens_per_shard) {
  if (tokens_per_shard_ < 1 || tokens_per_shard_ > kMaxShardTokens) {
    throw UsageError(fmt::format("cannot be {}", tokens_per_shard_), "tokens per shard",
                     fmt::format("give a number from 1 to {}", kMaxShardTokens));
  }
}

void ShardWriter::append(std::span<const std::int32_t> ids) {
  const std::int64_t bad = first_outside(ids, vocabulary_);
  if (bad != static_cast<std::int64_t>(ids.size())) {
    throw Error(fmt::format("gave the id {}, but its vocabulary has {} entries",
                            ids[static_cast<std::size_t>(bad)], vocabulary_),
                "tokenizer", "check that tokenizer and vocabulary size belong together");
  }
  while (!ids.empty()) {
    if (!file_) open_shard();
    const std::size_t count =
        std::min(ids.size(), static_cast<std::size_t>(tokens_per_shard_ - shard_tokens_));
    if (vocabulary_ <= kLargestUint16Vocabulary) {
      write_ids<std::uint16_t>(*file_, ids.first(count));
    } else {
      write_ids<std::uint32_t>(*file_, ids.first(count));
    }
    ids = ids.subspan(count);
    tokens_ += static_cast<std::int64_t>(count);
    shard_tokens_ += static_cast<std::int64_t>(count);
    if (shard_tokens_ == tokens_per_shard_) close_shard();
  }
}

void ShardWriter::finish() {
  if (file_) close_shard();
}

void ShardWriter::open_shard() {
  if (shards_.size() == kMaxShards) {
    throw Error(fmt::format("needs more than {} shards", kMaxShards), folder_.string(), "use larger shards");
  }
  shards_.push_back(fmt::format("{}_{:06}.bin", prefix_, shards_.size()));
  file_.emplace(folder_ / shards_.back());
  std::array<std::int32_t, 256> header{};
  header[0] = kShardMagic;
  header[1] = vocabulary_ <= kLargestUint16Vocabulary ? kVersionUint16 : kVersionUint32;
  file_->write(std::as_bytes(std::span(header)));
}

void ShardWriter::close_shard() {
  const auto count = static_cast<std::int32_t>(shard_tokens_);
  file_->write_at(2 * sizeof count, std::as_bytes(std::span(&count, 1)));
  file_->close();
  file_.reset();
  shard_tokens_ = 0;
}

}  // namespace warpwright
