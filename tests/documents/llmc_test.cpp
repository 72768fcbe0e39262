// llm.c's fp32 kernels as the first two documents show them. Each test shows a mistake that docs/errata.md
// lists, and that the kernel is right without it.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <numeric>

#include "tests/documents/block.hpp"

namespace warpwright::documents {
namespace {

constexpr int kGarbage = 1 << 20;  // what uncleared shared memory holds

// The bias gradient of N rows of ones: a warp has a row, a block 16 rows and its columns' sums. A block's
// threads clear and store the sums in steps of 512. If threads return early, those of rows past the end do
// neither.
std::vector<int> layernorm_bias_gradient(int N, int C, bool return_early) {
  constexpr int kThreads = 512, kRows = kThreads / 32;
  std::vector<int> dbias(static_cast<std::size_t>(C), 0);
  for (int first = 0; first < N; first += kRows) {
    const int rows = std::min(kRows, N - first);
    const int threads = return_early ? rows * 32 : kThreads;
    std::vector<int> sums(static_cast<std::size_t>(C), kGarbage);
    const auto for_each_column = [&](auto&& f) {
      for (int thread = 0; thread < threads; ++thread) {
        for (int c = thread; c < C; c += kThreads) f(static_cast<std::size_t>(c));
      }
    };
    for_each_column([&](std::size_t c) { sums[c] = 0; });
    for (int& sum : sums) sum += rows;
    for_each_column([&](std::size_t c) { dbias[c] += sums[c]; });
  }
  return dbias;
}

TEST(Llmc, LayerNormBackwardLosesRowsIfThreadsReturnEarly) {
  const auto published = layernorm_bias_gradient(1000, 320, true);
  EXPECT_EQ(std::count(published.begin(), published.begin() + 256, 1000), 256);
  EXPECT_EQ(std::count(published.begin() + 256, published.end(), 992), 64);  // the last 8 rows are missing
  const auto wide = layernorm_bias_gradient(1000, 768, true);
  EXPECT_EQ(std::count(wide.begin(), wide.end(), 992), 256);
  const auto corrected = layernorm_bias_gradient(1000, 320, false);
  EXPECT_EQ(std::count(corrected.begin(), corrected.end(), 1000), 320);
}

// The rows that the softmax's backward writes: block b has the rows T−1−4b to T−4−4b.
std::set<int> softmax_backward_rows(int T, int blocks) {
  std::set<int> rows;
  for (int block = 0; block < blocks; ++block) {
    for (int i = 0; i < 4; ++i) {
      if (const int t = T - 1 - 4 * block - i; t >= 0) rows.insert(t);
    }
  }
  return rows;
}

TEST(Llmc, SoftmaxBackwardLeavesOutTheFirstRows) {
  EXPECT_EQ(softmax_backward_rows(8, 8 / 4).size(), 8u);
  const auto rows = softmax_backward_rows(6, 6 / 4);
  EXPECT_EQ(rows, (std::set<int>{2, 3, 4, 5}));
  EXPECT_EQ(softmax_backward_rows(6, (6 + 3) / 4).size(), 6u);
  EXPECT_TRUE(softmax_backward_rows(3, 3 / 4).empty());
}

// The sums of two rows over the warps of a block, as the last warp to read sees them. Warp w contributes
// 10^row · (w + 1). The first warp clears the buffer.
std::vector<int> row_sums(const std::vector<int>& order, bool barrier_after_clear, bool barrier_after_read) {
  const int warps = static_cast<int>(order.size());
  std::vector<int> buffer(32, kGarbage), seen(2);
  std::vector<Phase> phases{{[&](int warp) {
                               if (warp == 0) std::fill(buffer.begin(), buffer.end(), 0);
                             },
                             barrier_after_clear}};
  for (const int row : {0, 1}) {
    const int unit = row == 0 ? 1 : 10;
    phases.push_back({[&, unit](int warp) { buffer[static_cast<std::size_t>(warp)] = unit * (warp + 1); }});
    phases.push_back({[&, row, warps](int warp) {
                        if (warp == warps - 1) {
                          seen[static_cast<std::size_t>(row)] =
                              std::accumulate(buffer.begin(), buffer.end(), 0);
                        }
                      },
                      barrier_after_read});
  }
  run_block(order, phases);
  return seen;
}

TEST(Llmc, SoftmaxBackwardNeedsTwoMoreBarriers) {
  const std::vector<int> ascending{0, 1, 2, 3, 4, 5, 6, 7}, first_warp_last{1, 2, 3, 4, 5, 6, 7, 0};
  const std::vector<int> right{36, 360};
  EXPECT_EQ(row_sums(ascending, true, true), right);
  EXPECT_EQ(row_sums(first_warp_last, true, true), right);
  // A warp that is ahead writes the next row's part before the last warp has read this row's.
  EXPECT_NE(row_sums(ascending, true, false), right);
  // The first warp is late and clears the parts of the others.
  EXPECT_NE(row_sums(first_warp_last, false, true), right);
}

// The loss of the token at logits[target], and the gradients in place of the logits. Warp 0 takes the loss.
double classifier_loss(const std::vector<int>& order, bool barrier) {
  constexpr int V = 64, kTarget = 40;
  std::vector<double> logits(V);
  for (int i = 0; i < V; ++i) logits[static_cast<std::size_t>(i)] = 0.1 * i;
  double sum = 0;
  for (const double logit : logits) sum += std::exp(logit);
  double loss = 0;
  run_block(order, {{[&](int warp) {
                       if (warp == 0) loss = -std::log(std::exp(logits[kTarget]) / sum);
                     },
                     barrier},
                    {[&](int warp) {
                      for (int lane = 0; lane < 32; ++lane) {
                        const int i = 32 * warp + lane;
                        double& logit = logits[static_cast<std::size_t>(i)];
                        logit = (std::exp(logit) / sum - (i == kTarget)) / 8;
                      }
                    }}});
  return loss;
}

TEST(Llmc, ClassifierRacesOnTheTargetsLogit) {
  const double right = classifier_loss({0, 1}, false);
  EXPECT_GT(std::abs(classifier_loss({1, 0}, false) - right), 1) << "the target's warp was faster";
  EXPECT_DOUBLE_EQ(classifier_loss({1, 0}, true), right);
}

TEST(Llmc, LossIsLogSumExpMinusLogit) {
  const auto published = [](const std::vector<float>& logits, std::size_t target) {
    const float most = *std::max_element(logits.begin(), logits.end());
    float sum = 0;
    for (const float logit : logits) sum += std::exp(logit - most);
    return -std::log(std::exp(logits[target] - most) * (1 / sum));
  };
  const float lse = std::log(std::exp(1.0f) + std::exp(2.0f) + std::exp(3.0f));
  EXPECT_NEAR(published({1, 2, 3}, 1), lse - 2, 1e-6);
  EXPECT_GT(std::abs(published({1, 2, 3}, 1) - -lse), 1);  // the comment: −logsumexp
  // The probability of a logit that is 104 lower is 0 in fp32, and its loss infinite. logsumexp − logit =
  // 104.
  const auto corrected = [](float target, float most) {
    return most + std::log(std::exp(target - most) + 1.0f) - target;
  };
  EXPECT_EQ(published({0, 104}, 0), std::numeric_limits<float>::infinity());
  EXPECT_FLOAT_EQ(corrected(0, 104), 104);
}

TEST(Llmc, BiasGradientHasOnlyWholeGroupsOf32Columns) {
  constexpr int kOC = 50;
  const auto columns = [](int blocks) { return blocks * 32 < kOC ? blocks * 32 : kOC; };
  EXPECT_EQ(columns(kOC / 32), 32);  // 18 columns keep what they held
  EXPECT_EQ(columns((kOC + 31) / 32), kOC);
}

// The elements of out, by address, that tiles of 128 × 128 write without a guard.
TEST(Llmc, MatmulWritesPastRowsAndColumns) {
  constexpr int kRows = 100, kOC = 200;
  int outside = 0, other_rows = 0;
  for (int r = 0; r < 128; ++r) {
    for (int c = 0; c < 256; ++c) {
      const int address = r * kOC + c;
      outside += address >= kRows * kOC;
      other_rows += c >= kOC && address < kRows * kOC;
    }
  }
  EXPECT_EQ(outside, 28 * 256 + 56);
  EXPECT_EQ(other_rows, 99 * 56);  // they land on the next row's first 56 results
}

// The product att · v reads the scores above the diagonal, which the softmax never writes.
TEST(Llmc, UpperTriangleMustBeZeroBefore) {
  constexpr int T = 4;
  const auto rows_that_are_finite = [](double before) {
    std::vector<double> att(T * T, before);
    for (int t = 0; t < T; ++t) {
      for (int t2 = 0; t2 <= t; ++t2) att[static_cast<std::size_t>(t * T + t2)] = 1.0 / (t + 1);
    }
    int finite = 0;
    for (int t = 0; t < T; ++t) {
      finite += std::isfinite(std::accumulate(att.begin() + t * T, att.begin() + (t + 1) * T, 0.0));
    }
    return finite;
  };
  EXPECT_EQ(rows_that_are_finite(0), T);
  EXPECT_EQ(rows_that_are_finite(std::numeric_limits<double>::quiet_NaN()), 1);
}

// C = op(A)·B in column-major order, with A transposed, as for the scores: A = k, B = q, both (HS, T).
TEST(Llmc, RowsOfTheColumnMajorScoresAreKeys) {
  constexpr int T = 3, HS = 2;
  const std::vector<int> q{1, 2, 3, 5, 7, 11}, k{13, 17, 19, 23, 29, 31};
  std::vector<int> scores(T * T);
  const auto at = [](const std::vector<int>& x, int t, int h) {
    return x[static_cast<std::size_t>(t * HS + h)];
  };
  for (int n = 0; n < T; ++n) {
    for (int m = 0; m < T; ++m) {
      scores[static_cast<std::size_t>(m + n * T)] = at(k, m, 0) * at(q, n, 0) + at(k, m, 1) * at(q, n, 1);
    }
  }
  // In row-major order, as the softmax reads them, row 1 has the scores of query 1 with every key.
  EXPECT_EQ((std::vector<int>(scores.begin() + T, scores.begin() + 2 * T)),
            (std::vector<int>{3 * 13 + 5 * 17, 3 * 19 + 5 * 23, 3 * 29 + 5 * 31}));
}

TEST(Llmc, ScoresDoNotFitTheirInputsBuffer) {
  const auto fits = [](std::int64_t T, std::int64_t C, std::int64_t NH) { return NH * T * T <= 3 * T * C; };
  EXPECT_FALSE(fits(1024, 768, 12));
  EXPECT_TRUE(fits(192, 768, 12));  // T ≤ 3 times the head size
  EXPECT_FALSE(fits(193, 768, 12));
}

TEST(Llmc, AdamWOfStepZeroIsNaN) {
  const auto parameter = [](int t) {
    const float beta1 = 0.9f, beta2 = 0.999f, gradient = 0.5f;
    const float m = (1 - beta1) * gradient / (1 - std::pow(beta1, static_cast<float>(t)));
    const float v = (1 - beta2) * gradient * gradient / (1 - std::pow(beta2, static_cast<float>(t)));
    return 1 - 1e-3f * (m / (std::sqrt(v) + 1e-8f));
  };
  EXPECT_TRUE(std::isnan(parameter(0)));
  EXPECT_NEAR(parameter(1), 1 - 1e-3f, 1e-6);
}

constexpr float kGeluScale = 0.7978845608f;

TEST(Llmc, GeluCancelsFarLeft) {
  const auto error = [](float x) {
    const float published = 0.5f * x * (1.0f + std::tanh(kGeluScale * (x + 0.044715f * x * x * x)));
    const double u = std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x), exact = x / (1 + std::exp(-2 * u));
    return std::abs(published / exact - 1);
  };
  EXPECT_LT(error(-1), 1e-5);
  EXPECT_GT(error(-4.5f), 1e-3);
  EXPECT_GT(error(-5), 0.05);
}

TEST(Llmc, GeluBackwardIsNaNForHugeInputs) {
  const auto derivative = [](float x) {
    const float u = kGeluScale * (x + 0.044715f * x * x * x), cosh_u = std::cosh(u);
    const float sech2 = 1.0f / (cosh_u * cosh_u);
    return 0.5f * (1.0f + std::tanh(u)) + x * 0.5f * sech2 * kGeluScale * (1.0f + 3.0f * 0.044715f * x * x);
  };
  EXPECT_NEAR(derivative(1), 1.08296f, 1e-4);
  EXPECT_EQ(derivative(5.03e19f), 1);
  EXPECT_TRUE(std::isnan(derivative(5.04e19f)));
}

}  // namespace
}  // namespace warpwright::documents
