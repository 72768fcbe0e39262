// Apex's layer normalization as the third document shows it. Each test shows a mistake of the kernels, of
// their comments or of the text that docs/errata.md lists.
#include <gtest/gtest.h>

#include <cmath>

#include "core/dtype.hpp"
#include "tests/documents/block.hpp"

namespace warpwright::documents {
namespace {

struct Welford {
  double mu = 0, sigma2 = 0, count = 0;

  void add(double x) {
    count += 1;
    const double delta = x - mu;
    mu += delta / count;
    sigma2 += delta * (x - mu);
  }
};

TEST(Apex, WelfordsSigma2IsASumOfSquares) {
  Welford state;
  for (const double x : {1, 2, 3, 4}) state.add(x);
  EXPECT_DOUBLE_EQ(state.mu, 2.5);
  EXPECT_DOUBLE_EQ(state.sigma2, 5);                        // the comments: the variance
  EXPECT_DOUBLE_EQ(state.sigma2 / 4, 1.25);                 // the variance
  EXPECT_DOUBLE_EQ(1 / std::sqrt(1.25), 2 / std::sqrt(5));  // invvar is 1/deviation, not 1/variance = 0.8
}

// The sum of part_size partial gradients of one column: a thread adds part_size / warps of them, and the
// warps' sums are halved over shared memory until one warp has all of them.
int second_stage(int part_size, int warps, bool reduce) {
  std::vector<int> sums(static_cast<std::size_t>(warps), part_size / warps);
  for (int offset = warps / 2; reduce && offset >= 1; offset /= 2) {
    for (int w = 0; w < offset; ++w) {
      sums[static_cast<std::size_t>(w)] += sums[static_cast<std::size_t>(w + offset)];
    }
  }
  return sums[0];
}

TEST(Apex, SecondStageReducesBetweenEightWarps) {
  EXPECT_EQ(second_stage(16, 8, true), 16);
  EXPECT_EQ(second_stage(16, 8, false), 2);  // the text: the reduction does nothing. It would lose 14 parts.
}

// Threads of a block of 32 × 8 that skip the barriers of the second stage.
TEST(Apex, SecondStageHasItsBarriersInACondition) {
  const auto skipping = [](int n2) {
    int threads = 0;
    for (int i2 = 0; i2 < (n2 + 31) / 32 * 32; ++i2) threads += i2 < n2 ? 0 : 8;
    return threads;
  };
  EXPECT_EQ(skipping(768), 0);
  EXPECT_EQ(skipping(100), 28 * 8);
}

TEST(Apex, SizesOfTheSharedBuffers) {
  // First stage of the gradients, 32 × 4 threads: where a thread writes, per k.
  constexpr int kX = 32, kY = 4, kStride = kX + 1;
  int last = 0, last_column = 0, last_row = 0;
  for (int y = 0; y < kY; ++y) {
    for (int x = 0; x < kX; ++x) {
      const int column = x * kY & (kX - 1), row = x * kY / kX + y * kY;
      last_column = std::max(last_column, column);
      last_row = std::max(last_row, row);
      last = std::max(last, row * kStride + column + kY - 1);
    }
  }
  EXPECT_EQ(last_column, 28);  // the text: 31
  EXPECT_EQ(last_row, 15);
  EXPECT_EQ(kY * kY * kStride, 528);  // elements of either buffer; the text: 496 and 24
  EXPECT_LT(last, kY * kY * kStride);
  EXPECT_LT(kX * kY * kY + (kY - 1) * (kX / kY), 2 * kY * kY * kStride);  // 536, the comment's "at least"
  // Forward: mean and sum of squares of half of the warps, and their counts after all warps' places.
  int floats = 0;
  for (int y = 0; y < kY / 2; ++y) floats = std::max({floats, 2 * y + 2, kY + y + 1});
  EXPECT_EQ(floats * 4, kY * 4 + kY / 2 * 4);  // 24 bytes, as launched
  EXPECT_EQ(2 * kY * 4 + kY * 4, 48);          // the comment's precondition
}

// The padding of shared memory's rows is for the strided writes. The sums read consecutive words.
TEST(Apex, PaddingIsForTheWrites) {
  const auto passes = [](int stride, bool write) {
    std::vector<int> words;
    for (int x = 0; x < 32; ++x) words.push_back(write ? x / 8 * stride + 4 * (x % 8) : x);
    return bank_passes(words);
  };
  EXPECT_EQ(passes(32, true), 4);
  EXPECT_EQ(passes(33, true), 1);
  EXPECT_EQ(passes(32, false), 1);  // the text: the padding makes these free of conflicts
}

float rounded(float x) {
  return static_cast<float>(bf16(x));
}

TEST(Apex, RoundsBeforeItMultiplies) {
  const float x_hat = 1 + 1.0f / 150, gamma = 1, beta = -1;
  const float published = rounded(rounded(gamma * rounded(x_hat)) + beta);
  const float once = rounded(gamma * x_hat + beta);
  EXPECT_LT(std::abs(once * 150 - 1), 0.004f);
  EXPECT_NEAR(published * 150 - 1, 0.172f, 0.001f);
}

// The largest error of x̂ that is recovered from a bf16 output.
float recovery_error(float gamma, float beta) {
  float most = 0;
  for (float x_hat = -2; x_hat < 2; x_hat += 0.01f) {
    const float out = rounded(gamma * x_hat + beta);
    most = std::max(most, std::abs((out - beta) / gamma - x_hat));
  }
  return most;
}

TEST(Apex, MemoryEfficiencyIsNotLossless) {
  EXPECT_LT(recovery_error(1, 0), 0.005f);
  EXPECT_GT(recovery_error(1, 100), 0.2f);
}

// Σ dout·x̂ of three rows, with x̂ from the output and the clamped weight.
TEST(Apex, GradientOfAZeroWeightIsLost) {
  const float x_hats[] = {-1, 0.5f, 0.5f}, douts[] = {1, 2, 3}, beta = 0.25f, clamped = 1e-5f;
  float published = 0, right = 0;
  for (int row = 0; row < 3; ++row) {
    const float out = 0 * x_hats[row] + beta;
    published += douts[row] * (out - beta) / clamped;
    right += douts[row] * x_hats[row];
  }
  EXPECT_EQ(published, 0);
  EXPECT_EQ(right, 1.5f);
}

}  // namespace
}  // namespace warpwright::documents
