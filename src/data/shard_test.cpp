#include "data/shard.hpp"

#include <gtest/gtest.h>

#include <numeric>

#include "data/shard_bytes.hpp"
#include "runtime/test_folder.hpp"

namespace warpwright {
namespace {

namespace fs = std::filesystem;
using ShardTest = TestFolder;
using Ids16 = std::vector<std::uint16_t>;

std::vector<std::int32_t> ids_of(const fs::path& path, std::int64_t vocabulary) {
  Shard shard(path);
  std::vector<std::int32_t> ids(static_cast<std::size_t>(shard.tokens()));
  shard.read(0, vocabulary, ids);
  return ids;
}

TEST_F(ShardTest, ReadsWhatLlmCWrites) {
  const fs::path path = put("a.bin", shard_bytes(20240520, 1, 3, Ids16{7, 65535, 0}));
  EXPECT_EQ(ids_of(path, 65536), (std::vector<std::int32_t>{7, 65535, 0}));
}

TEST_F(ShardTest, WritesLlmCsBytesForSmallVocabularies) {
  ShardWriter writer(folder, "train", 65536, 100);
  writer.append(std::vector<std::int32_t>{7, 65535, 0});
  writer.finish();
  EXPECT_EQ(read_file(folder / "train_000000.bin", 4096), shard_bytes(20240520, 1, 3, Ids16{7, 65535, 0}));
}

TEST_F(ShardTest, LargeVocabulariesTake32Bits) {
  ShardWriter writer(folder, "val", 65537, 100);
  writer.append(std::vector<std::int32_t>{65536, 1});
  writer.finish();
  EXPECT_EQ(read_file(folder / "val_000000.bin", 4096),
            shard_bytes(20240520, 2, 2, std::vector<std::uint32_t>{65536, 1}));
  EXPECT_EQ(ids_of(folder / "val_000000.bin", 65537), (std::vector<std::int32_t>{65536, 1}));
}

TEST_F(ShardTest, RollsOverInOrder) {
  std::vector<std::int32_t> ids(25);
  std::iota(ids.begin(), ids.end(), 0);
  ShardWriter writer(folder, "train", 100, 10);
  writer.append(std::span(ids).first(4));
  writer.append(std::span(ids).subspan(4));
  writer.finish();
  EXPECT_EQ(writer.tokens(), 25);
  ASSERT_EQ(writer.shards(),
            (std::vector<std::string>{"train_000000.bin", "train_000001.bin", "train_000002.bin"}));
  std::vector<std::int32_t> read;
  for (const std::string& name : writer.shards()) {
    const auto part = ids_of(folder / name, 100);
    read.insert(read.end(), part.begin(), part.end());
  }
  EXPECT_EQ(read, ids);
}

TEST_F(ShardTest, WriterRefusesIdsOutsideTheVocabulary) {
  ShardWriter writer(folder, "train", 100, 10);
  EXPECT_THROW(writer.append(std::vector<std::int32_t>{100}), Error);
  EXPECT_THROW(writer.append(std::vector<std::int32_t>{-1}), Error);
  EXPECT_THROW(ShardWriter(folder, "train", 100, 0), UsageError);
  EXPECT_THROW(ShardWriter(folder, "train", 100, std::int64_t{1} << 31), UsageError);
}

TEST_F(ShardTest, NamesWhatIsWrongWithAFile) {
  const std::string good = shard_bytes(20240520, 1, 3, Ids16{1, 2, 3});
  const auto error_for = [&](const std::string& content) {
    const fs::path path = put("a.bin", content);
    return message_of([&] { Shard{path}; });
  };
  EXPECT_EQ(error_for(good), "no error");
  EXPECT_NE(error_for("").find("holds 0 bytes"), std::string::npos);
  EXPECT_NE(error_for(good.substr(0, 1023)).find("header of a token shard needs 1024"), std::string::npos);
  EXPECT_NE(error_for(good.substr(0, good.size() - 1)).find("truncated"), std::string::npos);
  EXPECT_NE(error_for(good + "x").find("followed by something else"), std::string::npos);
  EXPECT_NE(error_for(shard_bytes(20240326, 1, 3, Ids16{1, 2, 3})).find("begins with 20240326"),
            std::string::npos);
  EXPECT_NE(error_for(shard_bytes(20240520, 3, 3, Ids16{1, 2, 3})).find("version 3"), std::string::npos);
  EXPECT_NE(error_for(shard_bytes(20240520, 2, 3, Ids16{1, 2, 3})).find("truncated"), std::string::npos);
  EXPECT_NE(error_for(shard_bytes(20240520, 1, -1, Ids16{1, 2, 3})).find("declares -1"), std::string::npos);
  EXPECT_NE(error_for(shard_bytes(20240520, 1, 0x7fffffff, Ids16{1, 2, 3})).find("truncated"),
            std::string::npos);
  EXPECT_NE(message_of([&] { Shard{folder / "none.bin"}; }).find("No such file"), std::string::npos);
}

TEST_F(ShardTest, NamesTheFirstIdBeyondTheVocabulary) {
  Shard shard(put("a.bin", shard_bytes(20240520, 1, 4, Ids16{1, 2, 300, 400})));
  std::vector<std::int32_t> ids(3);
  EXPECT_NE(message_of([&] { shard.read(1, 256, ids); }).find("token 2 is 300, but the vocabulary has 256"),
            std::string::npos);
  Shard wide(put("b.bin", shard_bytes(20240520, 2, 1, std::vector<std::uint32_t>{4294967295u})));
  EXPECT_NE(message_of([&] { wide.read(0, 256, std::span(ids).first(1)); }).find("is 4294967295"),
            std::string::npos);
}

TEST_F(ShardTest, ChecksTheRangeOfAReading) {
  Shard shard(put("a.bin", shard_bytes(20240520, 1, 3, Ids16{1, 2, 3})));
  std::vector<std::int32_t> ids(2);
  EXPECT_THROW(shard.read(2, 256, ids), Error);
  EXPECT_THROW(shard.read(-1, 256, ids), Error);
  EXPECT_THROW(shard.read(std::numeric_limits<std::int64_t>::max(), 256, ids), Error);
}

// A shard of 2^31 - 1 tokens (4 GiB), sparse on disk. It is the largest that the format can describe.
TEST_F(ShardTest, ReadsTheEndOfTheLargestShard) {
  const fs::path path = put("large.bin", shard_bytes(20240520, 1, 0x7fffffff, Ids16{}));
  fs::resize_file(path, 1024 + std::uintmax_t{0x7fffffff} * 2);
  {
    std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(-2, std::ios::end);
    file.write("\x2a", 2);
  }
  Shard shard(path);
  EXPECT_EQ(shard.tokens(), 0x7fffffff);
  std::vector<std::int32_t> ids(2);
  shard.read(0x7fffffff - 2, 256, ids);
  EXPECT_EQ(ids, (std::vector<std::int32_t>{0, 42}));
}

}  // namespace
}  // namespace warpwright
