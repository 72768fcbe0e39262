#include "data/fingerprint.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <nlohmann/json.hpp>

#include "data/build.hpp"
#include "data/shard.hpp"
#include "runtime/file.hpp"
#include "runtime/test_folder.hpp"

namespace warpwright {
namespace {

namespace fs = std::filesystem;

class FingerprintTest : public TestFolder {
 protected:
  void write_shards(const std::string& name, const std::string& split, std::int64_t tokens,
                    std::int64_t tokens_per_shard) const {
    fs::create_directories(folder / name);
    std::vector<std::int32_t> ids(static_cast<std::size_t>(tokens));
    for (std::size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<std::int32_t>(i * i % 251);
    ShardWriter writer(folder / name, split, 256, tokens_per_shard);
    writer.append(ids);
    writer.finish();
  }

  void flip(const fs::path& path, std::uint64_t offset) const {
    std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
    file.seekg(static_cast<std::streamoff>(offset));
    const int byte = file.get();
    file.seekp(static_cast<std::streamoff>(offset));
    file.put(static_cast<char>(byte ^ 1));
  }

  std::string changes(const DataFingerprint& before, const fs::path& data) const {
    return difference(before, fingerprint_of_data(data), data);
  }

  // Writes a shard of this many tokens that takes no space on disk.
  void write_sparse_shard(const fs::path& path, std::int32_t tokens) const {
    std::int32_t header[256] = {kShardMagic, 1, tokens};
    std::ofstream(path, std::ios::binary).write(reinterpret_cast<const char*>(header), sizeof header);
    fs::resize_file(path, static_cast<std::uint64_t>(kShardHeaderBytes) + 2u * static_cast<unsigned>(tokens));
  }

  void build() const {
    std::string text;
    for (int i = 0; i < 500; ++i) text += "line " + std::to_string(i) + "\n";
    put("a.txt", text);
    BuildOptions options;
    options.inputs = {folder / "a.txt"};
    options.out = folder / "out";
    options.val_fraction = 0.1;
    options.tokens_per_shard = 1000;
    options.vocabulary_size = 257;
    options.end_of_text = 256;
    options.before_commit = [](const fs::path& out) { write_file_atomically(out / "merges.txt", "a b"); };
    build_shards(options,
                 [](std::string_view bytes, bool, std::vector<std::int32_t>& ids) {
                   for (const char c : bytes) ids.push_back(static_cast<unsigned char>(c));
                 },
                 {});
  }
};

TEST_F(FingerprintTest, EveryBitOfASmallSplitCounts) {
  write_shards("data", "train", 3000, 1000);
  write_shards("data", "val", 100, 1000);
  const fs::path data = folder / "data", shard = data / "train_000001.bin";
  const DataFingerprint before = fingerprint_of_data(data);
  EXPECT_EQ(before.train.tokens, 3000);
  EXPECT_EQ(before.vocabulary_size, 0);
  EXPECT_EQ(before.end_of_text, -1);
  for (std::uint64_t offset = kShardHeaderBytes; offset < fs::file_size(shard); offset += 2) {
    flip(shard, offset);
    EXPECT_EQ(changes(before, data), "shard train_000001.bin of the train split has other contents");
    flip(shard, offset);
  }
  EXPECT_EQ(changes(before, data), "");
  flip(data / "val_000000.bin", 1100);
  EXPECT_EQ(changes(before, data), "shard val_000000.bin of the val split has other contents");
}

TEST_F(FingerprintTest, NamesDoNotCountAndOrderDoes) {
  write_shards("data", "train", 3000, 1000);
  const fs::path data = folder / "data";
  const DataFingerprint before = fingerprint_of_data(data);
  EXPECT_EQ(before, fingerprint_of_data(data));
  for (const int i : {0, 1, 2}) {
    const std::string end = std::to_string(i) + ".bin";
    fs::rename(data / ("train_00000" + end), data / ("other_train_" + end));
  }
  EXPECT_EQ(changes(before, data), "");
  fs::rename(data / "other_train_0.bin", data / "other_train_9.bin");
  EXPECT_EQ(changes(before, data), "shard other_train_1.bin of the train split has other contents");
  fs::remove(data / "other_train_9.bin");
  EXPECT_EQ(changes(before, data), "the train split has 2 shards, it had 3");
}

TEST_F(FingerprintTest, TheRecordSurvivesTheRoundTrip) {
  write_shards("data", "train", 3000, 1000);
  const DataFingerprint before = fingerprint_of_data(folder / "data");
  EXPECT_EQ(data_fingerprint(nlohmann::json::parse(to_json(before).dump())), before);
}

TEST_F(FingerprintTest, TheRecordOfManyShardsStaysSmall) {
  write_shards("data", "train", 5000, 1);
  const DataFingerprint before = fingerprint_of_data(folder / "data");
  EXPECT_EQ(before.train.shards, 5000);
  EXPECT_LE(before.train.sums.size(), 4096u);
  flip(folder / "data" / "train_003001.bin", kShardHeaderBytes);
  EXPECT_EQ(changes(before, folder / "data"),
            "one of 2 shards from train_003000.bin of the train split has other contents");
}

TEST_F(FingerprintTest, DataJsonsChecksumsAreCompared) {
  build();
  const fs::path data = folder / "out";
  const auto manifest = read_manifest(data);
  ASSERT_TRUE(manifest);
  EXPECT_EQ(manifest->train.checksums.size(), manifest->train.shards.size());
  const DataFingerprint before = fingerprint_of_data(data);
  EXPECT_EQ(before.end_of_text, 256);
  for (const char* name : {"train_000001.bin", "val_000000.bin", "merges.txt"}) {
    flip(data / name, fs::file_size(data / name) - 1);
    const std::string error = message_of([&] { fingerprint_of_data(data); });
    EXPECT_NE(error.find(name), std::string::npos) << error;
    EXPECT_NE(error.find("--allow-data-change"), std::string::npos) << error;
    std::vector<std::string> changed;
    fingerprint_of_data(data, &changed);
    ASSERT_EQ(changed.size(), 1u) << name;
    EXPECT_NE(changed[0].find(name), std::string::npos) << changed[0];
    flip(data / name, fs::file_size(data / name) - 1);
  }
  EXPECT_EQ(fingerprint_of_data(data), before);
  fs::remove(data / "merges.txt");
  EXPECT_NE(message_of([&] { fingerprint_of_data(data); }).find("merges.txt: is missing"), std::string::npos);
  std::vector<std::string> changed;
  EXPECT_EQ(fingerprint_of_data(data, &changed), before);
  ASSERT_EQ(changed.size(), 1u);
}

TEST_F(FingerprintTest, AFolderOfAnOlderBuildStillReads) {
  build();
  const fs::path path = folder / "out" / "data.json";
  nlohmann::json json = nlohmann::json::parse(read_file(path, 1 << 20));
  const DataFingerprint before = fingerprint_of_data(folder / "out");
  for (const char* split : {"train", "val"}) EXPECT_EQ(json["splits"][split].erase("checksums"), 1u);
  write_file_atomically(path, json.dump());
  EXPECT_EQ(fingerprint_of_data(folder / "out"), before);
  for (const nlohmann::json& bad :
       {nlohmann::json("x"), nlohmann::json::array({1}), nlohmann::json::array()}) {
    json["splits"]["train"]["checksums"] = bad;
    write_file_atomically(path, json.dump());
    EXPECT_NE(message_of([&] { read_manifest(folder / "out"); }).find("\"checksums\""), std::string::npos);
  }
}

// The split has 1.5 GB in two shards. The fingerprint reads 4,096 blocks, the 1 KiB header and the size of
// each shard.
TEST_F(FingerprintTest, ALargeSplitIsSampled) {
  fs::create_directories(folder / "data");
  const fs::path data = folder / "data", shard = data / "train_1.bin";
  write_sparse_shard(data / "train_0.bin", 400'000'000);
  write_sparse_shard(shard, 350'000'000);
  const DataFingerprint before = fingerprint_of_data(data);
  EXPECT_EQ(before.train.tokens, 750'000'000);
  const std::uint64_t size = fs::file_size(shard), last = size - 4096;
  for (const std::uint64_t offset : {std::uint64_t{1030}, last / 4095, last, size - 1}) {
    flip(shard, offset);
    EXPECT_EQ(changes(before, data), "shard train_1.bin of the train split has other contents") << offset;
    flip(shard, offset);
  }
  EXPECT_EQ(changes(before, data), "");
  flip(shard, 4096 + 2000);  // between two blocks, which sampling cannot see
  EXPECT_EQ(changes(before, data), "");
  write_sparse_shard(shard, 350'000'001);
  EXPECT_EQ(changes(before, data),
            "shard train_1.bin of the train split has other contents (750000000 tokens in the split, now "
            "750000001)");
}

}  // namespace
}  // namespace warpwright
