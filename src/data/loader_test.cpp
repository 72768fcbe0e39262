#include "data/loader.hpp"

#include <gtest/gtest.h>

#include <map>
#include <numeric>
#include <set>

#include "data/permutation.hpp"
#include "data/shard_bytes.hpp"
#include "runtime/test_folder.hpp"

namespace warpwright {
namespace {

namespace fs = std::filesystem;

constexpr std::int64_t kManyTokens = 1000000;  // needs 32-bit ids, so a token can equal its own position

struct Batch {
  std::vector<std::int32_t> inputs, targets;
};

class LoaderTest : public TestFolder {
 protected:
  // Writes shards of the tokens 0, 1, 2, …
  TokenStream counting(std::int64_t tokens, std::int64_t tokens_per_shard = 1000) const {
    std::vector<std::int32_t> ids(static_cast<std::size_t>(tokens));
    std::iota(ids.begin(), ids.end(), 0);
    ShardWriter writer(folder, "train", kManyTokens, tokens_per_shard);
    writer.append(ids);
    writer.finish();
    return TokenStream(folder, Split::train, kManyTokens);
  }
};

template <class Load>
Batch load_batch(std::int64_t B, std::int64_t T, Load&& load) {
  Batch batch{std::vector<std::int32_t>(static_cast<std::size_t>(B * T), -1),
              std::vector<std::int32_t>(static_cast<std::size_t>(B * T), -1)};
  load(Tensor(batch.inputs.data(), DType::i32, {B, T}), Tensor(batch.targets.data(), DType::i32, {B, T}));
  return batch;
}

Batch load_step(const TrainingLoader& loader, std::int64_t step, std::int64_t first_row, std::int64_t B,
                std::int64_t T) {
  return load_batch(B, T, [&](const Tensor& x, const Tensor& y) { loader.load(step, first_row, x, y); });
}

TEST_F(LoaderTest, AWordOfAShardsNameSaysItsSplit) {
  for (const char* name : {"retrieval_train_000000.bin", "val.bin", "x-val-1.bin", "train00001.bin",
                           "validation_0.bin", "retraining_0.bin", "valley.bin", "train.txt"}) {
    put(name, "");
  }
  const auto names = [&](Split split) {
    std::vector<std::string> found;
    for (const fs::path& path : shard_paths(folder, split, std::nullopt)) found.push_back(path.filename());
    return found;
  };
  EXPECT_EQ(names(Split::train), (std::vector<std::string>{"retrieval_train_000000.bin", "train00001.bin"}));
  EXPECT_EQ(names(Split::val), (std::vector<std::string>{"val.bin", "validation_0.bin", "x-val-1.bin"}));
  put("train_of_val.bin", "");
  for (const Split split : {Split::train, Split::val}) {
    const std::string error = message_of([&] { names(split); });
    EXPECT_NE(error.find("train_of_val.bin: has both"), std::string::npos) << error;
  }
}

TEST(Permutation, VisitsEverythingOnce) {
  std::vector<std::uint64_t> sizes = {1000, 1024, 1025, 65537};
  for (std::uint64_t size = 1; size < 70; ++size) sizes.push_back(size);
  for (const std::uint64_t size : sizes) {
    const Permutation order(size, 1234, 1, 5);
    std::vector<bool> seen(size);
    for (std::uint64_t i = 0; i < size; ++i) {
      ASSERT_LT(order(i), size);
      ASSERT_FALSE(seen[order(i)]) << size;
      seen[order(i)] = true;
    }
  }
}

TEST(Permutation, StaysInRangeForLargeSizes) {
  const std::uint64_t size = (std::uint64_t{1} << 61) + 12345;
  const Permutation order(size, 1, 1);
  std::set<std::uint64_t> seen;
  for (std::uint64_t i = 0; i < 1000; ++i) seen.insert(order(size - 1 - i));
  EXPECT_EQ(seen.size(), 1000u);
  EXPECT_LT(*seen.rbegin(), size);
}

// Over many epochs, every element reaches every place about equally often. Chi-squared with 36 cells per
// table and (6 - 1)² = 25 degrees of freedom exceeds 60 with a probability of 1e-4.
TEST(Permutation, IsUniform) {
  constexpr std::uint64_t n = 6;
  constexpr std::uint32_t epochs = 6000;
  std::array<std::array<int, n>, n> hits{};
  for (std::uint32_t epoch = 0; epoch < epochs; ++epoch) {
    const Permutation order(n, 99, 3, epoch);
    for (std::uint64_t i = 0; i < n; ++i) ++hits[i][order(i)];
  }
  double chi_squared = 0;
  for (const auto& row : hits) {
    for (const int count : row) chi_squared += (count - 1000.0) * (count - 1000.0) / 1000.0;
  }
  EXPECT_LT(chi_squared, 60.0);
}

TEST_F(LoaderTest, TargetsAreTheNextTokens) {
  const TokenStream stream = counting(5000);
  const TrainingLoader loader(stream, 7, 16, 4);
  for (std::int64_t step = 0; step < 200; ++step) {
    const Batch batch = load_step(loader, step, 0, 4, 16);
    for (std::size_t i = 0; i < batch.inputs.size(); ++i) {
      ASSERT_EQ(batch.targets[i], batch.inputs[i] + 1);
      if (i % 16) {
        ASSERT_EQ(batch.inputs[i], batch.inputs[i - 1] + 1);
      }
    }
  }
}

TEST_F(LoaderTest, EverySampleOncePerEpoch) {
  const std::int64_t T = 16;
  for (const std::int64_t tokens : {17, 32, 33, 300, 5003}) {
    fs::remove_all(folder);
    fs::create_directories(folder);
    const TokenStream stream = counting(tokens, 101);
    const TrainingLoader loader(stream, 7, T, 1);
    const std::int64_t n = std::max<std::int64_t>(1, (tokens - T) / T);
    std::set<std::vector<std::int64_t>> orders;
    std::set<std::int64_t> offsets;
    for (std::int64_t epoch = 0; epoch < 4; ++epoch) {
      std::vector<std::int64_t> starts;
      for (std::int64_t i = 0; i < n; ++i)
        starts.push_back(load_step(loader, epoch * n + i, 0, 1, T).inputs[0]);
      const std::int64_t offset = *std::min_element(starts.begin(), starts.end());
      for (std::int64_t& start : starts) {
        ASSERT_EQ((start - offset) % T, 0);
        start = (start - offset) / T;
      }
      orders.insert(starts);
      offsets.insert(offset);
      std::sort(starts.begin(), starts.end());
      for (std::int64_t i = 0; i < n; ++i) ASSERT_EQ(starts[static_cast<std::size_t>(i)], i);
    }
    if (n > 10) {
      EXPECT_EQ(orders.size(), 4u) << "epochs have orders of their own";
      EXPECT_GT(offsets.size(), 1u) << "and offsets";
    }
  }
}

TEST_F(LoaderTest, AStepIsTheSameHoweverItIsSplit) {
  const TokenStream stream = counting(5000);
  const std::int64_t T = 8, rows = 8;
  const TrainingLoader loader(stream, 7, T, rows);
  for (const std::int64_t step : {0, 3, 77, 1000000}) {
    const Batch whole = load_step(loader, step, 0, rows, T);
    for (const std::int64_t B : {1, 2, 4}) {
      std::vector<std::int32_t> parts;
      for (std::int64_t slice = 0; slice < rows / B; ++slice) {
        const Batch part = load_step(loader, step, slice * B, B, T);
        parts.insert(parts.end(), part.inputs.begin(), part.inputs.end());
      }
      EXPECT_EQ(parts, whole.inputs);
    }
  }
}

TEST_F(LoaderTest, TheOrderDependsOnTheSeedButNotOnShardSizes) {
  const TokenStream stream = counting(5000, 5000);
  const Batch first = load_step(TrainingLoader(stream, 1, 8, 8), 0, 0, 8, 8);
  EXPECT_NE(load_step(TrainingLoader(stream, 2, 8, 8), 0, 0, 8, 8).inputs, first.inputs);
  const TokenStream cut = counting(5000, 13);
  EXPECT_EQ(load_step(TrainingLoader(cut, 1, 8, 8), 0, 0, 8, 8).inputs, first.inputs);
}

TEST_F(LoaderTest, ValidationGoesThroughInOrder) {
  const TokenStream stream = counting(100, 33);
  const ValidationLoader loader(stream, 8);
  EXPECT_EQ(loader.samples(), 12);
  const Batch last = load_batch(2, 8, [&](const Tensor& x, const Tensor& y) { loader.load(10, x, y); });
  EXPECT_EQ(last.inputs.front(), 80);
  EXPECT_EQ(last.targets.back(), 96);
  EXPECT_THROW(load_batch(3, 8, [&](const Tensor& x, const Tensor& y) { loader.load(10, x, y); }), Error);
}

TEST_F(LoaderTest, ReadsFoldersThatLlmCMade) {
  using Ids = std::vector<std::uint16_t>;
  put("fineweb_train_000002.bin", shard_bytes(20240520, 1, 3, Ids{3, 4, 5}));
  put("fineweb_train_000001.bin", shard_bytes(20240520, 1, 3, Ids{0, 1, 2}));
  put("fineweb_val_000000.bin", shard_bytes(20240520, 1, 2, Ids{9, 9}));
  put("notes.txt", "train");
  const TokenStream train(folder, Split::train, 50257);
  std::vector<std::int32_t> ids(6);
  train.read(0, ids);
  EXPECT_EQ(ids, (std::vector<std::int32_t>{0, 1, 2, 3, 4, 5}));
  EXPECT_EQ(TokenStream(folder, Split::val, 50257).tokens(), 2);
}

TEST_F(LoaderTest, TooLittleDataIsNamed) {
  EXPECT_NE(message_of([&] { TokenStream(folder, Split::val, 10); }).find("no tokens for the val split"),
            std::string::npos);
  EXPECT_NE(message_of([&] { TokenStream(folder / "none", Split::val, 10); }).find("none"),
            std::string::npos);
  const TokenStream stream = counting(100);
  EXPECT_NE(message_of([&] { TrainingLoader(stream, 1, 100, 1); }).find("a sequence of 100 needs 101"),
            std::string::npos);
  EXPECT_NE(message_of([&] {
              TrainingLoader(stream, 1, 10, 10);
            }).find("holds 9 samples of 10 tokens, but a step takes 10"),
            std::string::npos);
  EXPECT_THROW(TrainingLoader(stream, 1, 0, 1), UsageError);
  EXPECT_THROW(TrainingLoader(stream, 1, 10, 0), UsageError);
  EXPECT_NO_THROW(TrainingLoader(stream, 1, 99, 1));
  EXPECT_THROW(ValidationLoader(stream, 100), Error);
}

TEST_F(LoaderTest, ImpossibleRowsAndStepsAreRefused) {
  const TokenStream stream = counting(1000);
  const TrainingLoader loader(stream, 1, 10, 4);
  EXPECT_THROW(load_step(loader, 0, 3, 2, 10), Error);
  EXPECT_THROW(load_step(loader, 0, -1, 2, 10), Error);
  EXPECT_THROW(load_step(loader, -1, 0, 2, 10), Error);
  EXPECT_THROW(load_step(loader, std::numeric_limits<std::int64_t>::max() / 2, 0, 4, 10), Error);
  EXPECT_THROW(load_step(loader, 0, 0, 2, 9), Error);
}

// A split of 2^32 - 2 tokens in two shards, sparse on disk. It tests positions past 2^31 and a sample across
// the shards' border.
TEST_F(LoaderTest, PositionsPassTwoToTheThirtyOne) {
  const std::int64_t shard_tokens = 0x7fffffff;
  for (const char* name : {"train_0.bin", "train_1.bin"}) {
    const fs::path path = put(name, shard_bytes(20240520, 1, 0x7fffffff, std::vector<std::uint16_t>{}));
    fs::resize_file(path, 1024 + std::uintmax_t{0x7fffffff} * 2);
  }
  const auto mark = [&](const char* name, std::int64_t token, char id) {
    std::fstream file(folder / name, std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(1024 + token * 2);
    file.put(id);
  };
  mark("train_0.bin", shard_tokens - 1, 1);
  mark("train_1.bin", 0, 2);
  mark("train_1.bin", shard_tokens - 1, 3);
  const TokenStream stream(folder, Split::train, 256);
  EXPECT_EQ(stream.tokens(), 2 * shard_tokens);
  std::vector<std::int32_t> ids(3);
  stream.read(shard_tokens - 2, ids);
  EXPECT_EQ(ids, (std::vector<std::int32_t>{0, 1, 2}));
  const ValidationLoader loader(stream, 1);
  const Batch last =
      load_batch(1, 1, [&](const Tensor& x, const Tensor& y) { loader.load(loader.samples() - 1, x, y); });
  EXPECT_EQ(last.targets[0], 3);
}

// More shards than a process may map (65,530) or have open.
TEST_F(LoaderTest, SeventyThousandShardsAreAStream) {
  constexpr std::int64_t kShards = 70'000, kTokens = 2 * kShards;
  const TokenStream stream = counting(kTokens, 2);
  ASSERT_EQ(stream.tokens(), kTokens);
  std::vector<std::int32_t> ids(static_cast<std::size_t>(kTokens));
  stream.read(0, ids);
  for (std::int64_t i = 0; i < kTokens; ++i) ASSERT_EQ(ids[static_cast<std::size_t>(i)], i);
  stream.check(kTokens);
  std::vector<std::int32_t> few(5);
  stream.read(3, few);  // the first shards were closed by then
  EXPECT_EQ(few, (std::vector<std::int32_t>{3, 4, 5, 6, 7}));
  const auto open = std::distance(fs::directory_iterator("/proc/self/fd"), fs::directory_iterator());
  EXPECT_LT(open, 600);
}

TEST_F(LoaderTest, AShardThatChangesIsNamed) {
  const TokenStream stream = counting(4000, 2);  // more shards than stay open
  std::vector<std::int32_t> ids(4);
  const std::string other = read_file(folder / "train_000001.bin", 1 << 20);
  fs::remove(folder / "train_000000.bin");
  put("train_000000.bin", other);
  EXPECT_NE(message_of([&] { stream.read(0, ids); }).find("train_000000.bin: was replaced or changed"),
            std::string::npos);
  stream.read(3990, ids);
  fs::resize_file(folder / "train_001995.bin", 1026);  // this shard is open
  EXPECT_NE(message_of([&] { stream.read(3988, ids); }).find("train_001995.bin: shrank"), std::string::npos);
}

TEST_F(LoaderTest, CheckNamesAnIdBeyondTheVocabulary) {
  counting(30, 10);
  const TokenStream stream(folder, Split::train, 25);
  stream.check(25);
  EXPECT_NE(message_of([&] { stream.check(30); }).find("train_000002.bin: token 5 is 25"), std::string::npos);
}

}  // namespace
}  // namespace warpwright
