// ByteTransformer as the fifth document shows it. Each test shows a mistake or a limit of the kernels or of
// the text that docs/errata.md lists.
#include <gtest/gtest.h>

#include <cmath>
#include <numeric>

#include "core/dtype.hpp"
#include "tests/documents/block.hpp"

namespace warpwright::documents {
namespace {

constexpr int kMostThreads = 1024;  // of a block

TEST(ByteTransformer, LengthIsTheFirstRowsOnes) {
  const auto length = [](const std::vector<float>& mask, int S) {
    return std::count_if(mask.begin(), mask.begin() + S, [](float m) { return m >= 0.5f; });
  };
  const auto nonzero = [](const std::vector<float>& mask, int S) {
    return std::count_if(mask.begin(), mask.begin() + S, [](float m) { return m != 0; });
  };
  EXPECT_EQ(length({1, 1, 0, 1, 1, 0, 0, 0, 0}, 3), 2);
  EXPECT_EQ(length({1, 0, 0, 1, 1, 0, 1, 1, 1}, 3), 1);  // causal: one token of three is kept
  const std::vector<float> soft{1, 0.25f, 0, 0};
  EXPECT_EQ(length(soft, 4), 1);
  EXPECT_EQ(nonzero(soft, 4), 2);  // the text counts these
}

// The offsets of texts as the kernel makes them, with a warp's sums over the lanes before each lane, its own
// included or not.
std::vector<int> text_offsets(const std::vector<int>& lengths, bool inclusive) {
  std::vector<int> offsets(lengths.size() + 1);
  int sum = 0;
  for (std::size_t i = 0; i < lengths.size(); ++i) {
    offsets[i] = (inclusive ? sum + lengths[i] : sum) - lengths[i];
    sum += lengths[i];
  }
  offsets.back() = inclusive ? sum : sum - lengths.back();
  return offsets;
}

TEST(ByteTransformer, ThePrefixSumIsInclusive) {
  EXPECT_EQ(text_offsets({2, 4, 5}, true), (std::vector<int>{0, 2, 6, 11}));
  EXPECT_EQ(text_offsets({2, 4, 5}, false), (std::vector<int>{-2, -2, 1, 6}));  // as the text has it
}

// A fused block for texts of up to S tokens and heads of 64: a warp per 16 × 16 tile of the larger result.
int fused_threads(int S) {
  const int tiles = (S + 15) / 16;
  return 32 * tiles * std::max(tiles, 64 / 16);
}
constexpr int kSkew = 8;  // halves; the least that wmma's loads take
int fused_bytes(int S) {
  return 2 * (2 * S * (64 + kSkew) + S * (S + kSkew));
}
int long_bytes(int S, int split) {
  return 2 * ((S + split) * (64 + kSkew) + split * (S + kSkew));
}

TEST(ByteTransformer, EightyIsTheLimitOfThreads) {
  EXPECT_EQ(fused_threads(80), 800);
  EXPECT_EQ(fused_threads(96), 1152);
  EXPECT_GT(fused_threads(81), kMostThreads);
  EXPECT_LE(fused_bytes(96), 48 * 1024);  // shared memory would allow 96
}

TEST(ByteTransformer, ThreeHundredAndFiftyTwoIsTheLimitOfSharedMemory) {
  EXPECT_EQ(long_bytes(352, 16), 64512);
  EXPECT_LE(long_bytes(352, 16), 64 * 1024);
  EXPECT_GT(long_bytes(368, 16), 64 * 1024);
  EXPECT_GT(long_bytes(352, 32), 64 * 1024);  // so the queries come by 16
  EXPECT_LE(32 * (368 / 16), kMostThreads);   // threads would allow more
}

TEST(ByteTransformer, OtherLimitsOfItsLaunches) {
  EXPECT_GT(33 * 32, kMostThreads);          // softmax: 32 threads for each head
  EXPECT_GT(2112 / 2, kMostThreads);         // bias: a thread for two of H = 33 · 64 columns
  EXPECT_LE((2 * 6143 + 1) * 4, 48 * 1024);  // offsets of 6,143 texts
  EXPECT_GT((2 * 6144 + 1) * 4, 48 * 1024);
}

// A matrix fragment is read in groups of eight rows of 16 bytes, all at the same column.
TEST(ByteTransformer, TheSkewPreventsBankConflicts) {
  const auto passes = [](int halves_per_row) {
    std::vector<int> words;
    for (int row = 0; row < 8; ++row) {
      for (int word = 0; word < 4; ++word) words.push_back(row * halves_per_row / 2 + word);
    }
    return bank_passes(words);
  };
  EXPECT_EQ(passes(64), 8);  // the text: no conflicts
  EXPECT_EQ(passes(64 + kSkew), 1);
}

// The probabilities of a row of S masked scores, in the registers of a warp: lane · count numbers, of which
// those past S hold −10,000.
TEST(ByteTransformer, AMaskedRowAlsoCountsTheRegistersPadding) {
  constexpr int S = 66, kRegisters = 128;
  std::vector<float> scores(kRegisters, -10000.0f);
  for (int i = 0; i < S; ++i) scores[static_cast<std::size_t>(i)] = 0 + (1 - 0.0f) * -10000.0f;
  float sum = 0;
  for (const float score : scores) sum += std::exp(score - -10000.0f);
  const float probability = 1 / (sum + 1e-6f);
  EXPECT_NEAR(probability, 1.0f / kRegisters, 1e-6f);
  EXPECT_LT(S * probability, 0.52f);  // the row's probabilities add up to 66/128
}

TEST(ByteTransformer, ScoresOverflowBeforeTheyAreScaled) {
  float score = 0;
  for (int i = 0; i < 64; ++i) score = static_cast<float>(f16(score + 32.0f * 32.0f));
  EXPECT_TRUE(std::isinf(score));  // scaled by 1/√64 it is 8,192
}

}  // namespace
}  // namespace warpwright::documents
