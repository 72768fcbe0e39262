#include "data/fingerprint.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <numeric>
#include <optional>
#include <span>

#include "core/error.hpp"
#include "data/loader.hpp"
#include "data/shard.hpp"
#include "runtime/file.hpp"

namespace warpwright {
namespace {

namespace fs = std::filesystem;

constexpr std::uint64_t kMostWholeBytes = std::uint64_t{1} << 30;  // a larger split is sampled
constexpr std::uint64_t kBlockBytes = 4096;
constexpr std::size_t kBlocks = 8192;  // per sampled split
constexpr std::size_t kMostSums = 4096;

std::string checksum_of_text(const std::string& text) {
  return checksum_of(std::as_bytes(std::span(text)));
}

// Reads only some blocks of a file. A mapping would read 128 KiB around each of them.
class SparseReader {
 public:
  explicit SparseReader(const fs::path& path) : path_(path), fd_(open_file(path, O_RDONLY, "open")) {
    ::posix_fadvise(fd_.get(), 0, 0, POSIX_FADV_RANDOM);  // a hint, which a file system may ignore
  }

  void append(std::uint64_t offset, std::uint64_t count, std::string& bytes) const {
    const std::size_t before = bytes.size();
    bytes.resize(before + count);
    for (std::size_t done = 0; done < count;) {
      const ssize_t got = uninterrupted([&] {
        return ::pread(fd_.get(), bytes.data() + before + done, count - done,
                       static_cast<off_t>(offset + done));
      });
      if (got < 0) throw_system_error("read", path_.string(), "check the health of the disk");
      if (got == 0) {
        throw Error("shrank while it was read", path_.string(), "build or copy the data again");
      }
      done += static_cast<std::size_t>(got);
    }
  }

 private:
  fs::path path_;
  FileDescriptor fd_;
};

// The checksum of a shard's size, header and evenly spread blocks. Two or more blocks include the first and
// the last 4 KiB.
std::string sampled_checksum(const fs::path& path, std::uint64_t size, std::size_t blocks) {
  const SparseReader file(path);
  std::string bytes = fmt::format("{};", size);
  file.append(0, kShardHeaderBytes, bytes);
  if (size <= blocks * kBlockBytes) {
    file.append(0, size, bytes);
  } else {
    const std::uint64_t last = size - kBlockBytes;
    for (std::size_t i = 0; i < blocks; ++i) {
      const std::uint64_t offset =
          blocks == 1 ? last / 2 : last / (blocks - 1) * i + last % (blocks - 1) * i / (blocks - 1);
      file.append(offset, kBlockBytes, bytes);
    }
  }
  return checksum_of_text(bytes);
}

// Joins the sums in groups, so that the record of a split with very many shards stays small.
std::vector<std::string> grouped(std::vector<std::string> sums) {
  if (sums.size() <= kMostSums) return sums;
  const std::size_t group = (sums.size() + kMostSums - 1) / kMostSums;
  std::vector<std::string> result;
  for (std::size_t first = 0; first < sums.size(); first += group) {
    std::string text;
    for (std::size_t i = first; i < std::min(first + group, sums.size()); ++i) text += sums[i];
    result.push_back(checksum_of_text(text));
  }
  return result;
}

// Compares the checksums listed in data.json with the files' own.
class ListedChecksums {
 public:
  explicit ListedChecksums(std::vector<std::string>* changed) : changed_(changed) {}

  // `found`: the file's checksum, "" if the file is missing.
  void check(const fs::path& path, const std::string& listed, const std::string& found) const {
    if (listed == found) return;
    const char* problem = found.empty()
                              ? "is missing, but data.json lists it"
                              : "was changed after the build: its checksum is not the one in data.json";
    if (!changed_) {
      throw Error(problem, path.string(), "build the data again, or continue with --allow-data-change");
    }
    changed_->push_back(fmt::format("{} {}", path.string(), problem));
  }

 private:
  std::vector<std::string>* changed_;
};

SplitFingerprint fingerprint_of_split(const fs::path& folder, Split split,
                                      const std::optional<Manifest>& manifest,
                                      const ListedChecksums& listed_checksums) {
  const std::vector<fs::path> paths = shard_paths(folder, split, manifest);
  const std::vector<std::string> none;
  const std::vector<std::string>& listed = manifest ? manifest->split(split).checksums : none;
  SplitFingerprint result;
  std::vector<std::uint64_t> sizes;
  for (const fs::path& path : paths) {
    const Shard shard(path);
    result.tokens += shard.tokens();
    sizes.push_back(shard.bytes());
  }
  const std::uint64_t bytes = std::accumulate(sizes.begin(), sizes.end(), std::uint64_t{0});
  result.shards = static_cast<std::int64_t>(paths.size());
  const std::size_t blocks = std::max<std::size_t>(1, kBlocks / std::max<std::size_t>(1, paths.size()));
  for (std::size_t i = 0; i < paths.size(); ++i) {
    if (bytes <= kMostWholeBytes) {
      result.sums.push_back(checksum_of(paths[i]));
      if (!listed.empty()) listed_checksums.check(paths[i], listed[i], result.sums.back());
    } else {
      const std::string sampled = sampled_checksum(paths[i], sizes[i], blocks);
      result.sums.push_back(checksum_of_text(sampled + (listed.empty() ? "" : listed[i])));
    }
  }
  result.sums = grouped(std::move(result.sums));
  return result;
}

std::string difference_of_split(const SplitFingerprint& before, const SplitFingerprint& now, Split split,
                                const fs::path& folder) {
  if (before == now) return "";
  if (before.shards != now.shards) {
    return fmt::format("the {} split has {} shards, it had {}", name_of(split), now.shards, before.shards);
  }
  const auto first = std::mismatch(before.sums.begin(), before.sums.end(), now.sums.begin(), now.sums.end());
  const auto index = static_cast<std::size_t>(first.second - now.sums.begin());
  const std::vector<fs::path> paths = shard_paths(folder, split, read_manifest(folder));
  const std::size_t group = (paths.size() + kMostSums - 1) / kMostSums;
  const std::string tokens = before.tokens == now.tokens ? ""
                                                         : fmt::format(" ({} tokens in the split, now {})",
                                                                       before.tokens, now.tokens);
  if (index * group >= paths.size()) return fmt::format("the {} split changed{}", name_of(split), tokens);
  return fmt::format("{} {} of the {} split has other contents{}",
                     group > 1 ? fmt::format("one of {} shards from", group) : "shard",
                     paths[index * group].filename().string(), name_of(split), tokens);
}

nlohmann::json to_json(const SplitFingerprint& split) {
  return {{"tokens", split.tokens}, {"shards", split.shards}, {"sums", split.sums}};
}

SplitFingerprint split_fingerprint(const nlohmann::json& json) {
  return {json.at("tokens").get<std::int64_t>(), json.at("shards").get<std::int64_t>(),
          json.at("sums").get<std::vector<std::string>>()};
}

}  // namespace

DataFingerprint fingerprint_of_data(const fs::path& folder, std::vector<std::string>* changed) {
  const std::optional<Manifest> manifest = read_manifest(folder);
  const ListedChecksums listed_checksums(changed);
  DataFingerprint result;
  if (manifest) {
    result.vocabulary_size = manifest->vocabulary_size;
    result.end_of_text = manifest->end_of_text;
    for (const auto& [name, checksum] : manifest->files) {
      const fs::path path = folder / name;
      listed_checksums.check(path, checksum, path_exists(path) ? checksum_of(path) : "");
    }
  }
  result.train = fingerprint_of_split(folder, Split::train, manifest, listed_checksums);
  result.val = fingerprint_of_split(folder, Split::val, manifest, listed_checksums);
  return result;
}

std::string difference(const DataFingerprint& before, const DataFingerprint& now, const fs::path& folder) {
  for (const Split split : {Split::train, Split::val}) {
    const bool train = split == Split::train;
    const std::string text =
        difference_of_split(train ? before.train : before.val, train ? now.train : now.val, split, folder);
    if (!text.empty()) return text;
  }
  if (before.vocabulary_size != now.vocabulary_size) {
    return fmt::format("the vocabulary has {} entries, it had {}", now.vocabulary_size,
                       before.vocabulary_size);
  }
  if (before.end_of_text != now.end_of_text) {
    return fmt::format("the end-of-text id is {}, it was {}", now.end_of_text, before.end_of_text);
  }
  return "";
}

nlohmann::json to_json(const DataFingerprint& f) {
  return {{"vocabulary_size", f.vocabulary_size},
          {"end_of_text", f.end_of_text},
          {"train", to_json(f.train)},
          {"val", to_json(f.val)}};
}

DataFingerprint data_fingerprint(const nlohmann::json& json) {
  return {json.at("vocabulary_size").get<std::int64_t>(), json.at("end_of_text").get<std::int64_t>(),
          split_fingerprint(json.at("train")), split_fingerprint(json.at("val"))};
}

}  // namespace warpwright
