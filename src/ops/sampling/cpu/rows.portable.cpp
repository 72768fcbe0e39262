// Sampling on a CPU: the threads share the rows. Tokens are sorted only where a cut needs it.
#include <omp.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <span>

#include "ops/sampling/kernels.hpp"
#include "runtime/context.hpp"

namespace warpwright::ops::sampling {
namespace {

constexpr std::size_t kBytesPerToken = sizeof(std::uint64_t) + sizeof(float) + sizeof(std::int32_t);

// A row in a thread's part of the scratch.
struct Row {
  std::span<std::uint64_t> weights;
  std::span<float> logits;
  std::span<std::int32_t> kept;  // tokens

  Row(void* scratch, std::size_t V) {
    auto* const bytes = static_cast<std::byte*>(scratch);
    weights = {reinterpret_cast<std::uint64_t*>(bytes), V};
    logits = {reinterpret_cast<float*>(bytes + weights.size_bytes()), V};
    kept = {reinterpret_cast<std::int32_t*>(bytes + weights.size_bytes() + logits.size_bytes()), V};
  }
  bool likelier(std::int32_t a, std::int32_t b) const {
    const float x = logits[static_cast<std::size_t>(a)], y = logits[static_cast<std::size_t>(b)];
    return x != y ? x > y : a < b;
  }
  std::uint64_t weight_of(std::int32_t token) const { return weights[static_cast<std::size_t>(token)]; }
  std::uint64_t kept_weight() const {
    return std::accumulate(kept.begin(), kept.end(), std::uint64_t{0},
                           [&](std::uint64_t sum, std::int32_t token) { return sum + weight_of(token); });
  }
};

// False if a logit is not finite. The loop uses vectors, which the standard library's do not.
bool read_logits(const Sampling& a, std::int64_t m, const Row& row) {
  float sum = 0;  // NaN if any is not finite
  visit_dtype(a.logits.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    const T* const from = a.logits.as<T>() + m * a.logits.strides[0];
    float* const to = row.logits.data();
#pragma omp simd reduction(+ : sum)
    for (std::size_t v = 0; v < row.logits.size(); ++v) {
      to[v] = static_cast<float>(from[v]);
      sum += to[v] * 0;
    }
  });
  return sum == 0;
}

void penalize(const Sampling& a, std::int64_t m, float penalty, const Row& row) {
  if (!a.seen || penalty == 1) return;
  const std::uint32_t* const seen = static_cast<const std::uint32_t*>(a.seen.data) + m * a.seen.shape[1];
  for (std::size_t v = 0; v < row.logits.size(); ++v) {
    if (is_seen(seen, static_cast<std::int64_t>(v))) row.logits[v] = penalized(row.logits[v], penalty);
  }
}

void weigh(const Row& row, double temperature) {
  const float largest = *std::ranges::max_element(row.logits), scale = bounded_factor(1 / temperature);
  for (std::size_t v = 0; v < row.logits.size(); ++v) {
    row.weights[v] =
        static_cast<std::uint64_t>(std::exp((row.logits[v] - largest) * scale) * static_cast<float>(kOne));
  }
}

void keep_top_k(Row& row, std::int64_t k) {
  if (k <= 0 || k >= std::ssize(row.kept)) return;
  std::ranges::nth_element(row.kept, row.kept.begin() + (k - 1),
                           [&](std::int32_t a, std::int32_t b) { return row.likelier(a, b); });
  row.kept = row.kept.first(static_cast<std::size_t>(k));
}

void keep_top_p(Row& row, double p) {
  if (!(p < 1)) return;
  std::ranges::sort(row.kept, [&](std::int32_t a, std::int32_t b) { return row.likelier(a, b); });
  const std::uint64_t wanted = least_weight(p, row.kept_weight());
  std::size_t count = 0;
  for (std::uint64_t sum = 0; sum < wanted && count < row.kept.size(); ++count) {
    sum += row.weight_of(row.kept[count]);
  }
  row.kept = row.kept.first(count);
}

void keep_min_p(Row& row, double p) {
  const auto weighs_less = [&](std::int32_t token) {
    return static_cast<double>(row.weight_of(token)) < p * kOne;
  };
  const auto end = std::remove_if(row.kept.begin(), row.kept.end(), weighs_less);
  row.kept = row.kept.first(static_cast<std::size_t>(end - row.kept.begin()));
}

std::int32_t draw(Row& row, const Options& o) {
  if (o.temperature == 0) {
    return static_cast<std::int32_t>(std::ranges::max_element(row.logits) - row.logits.begin());
  }
  weigh(row, o.temperature);
  std::iota(row.kept.begin(), row.kept.end(), 0);
  keep_top_k(row, o.top_k);
  keep_top_p(row, o.top_p);
  keep_min_p(row, o.min_p);
  if (o.top_k > 0 || o.top_p < 1) std::ranges::sort(row.kept);
  std::uint64_t rest = drawn_weight(o.random, row.kept_weight());
  for (const std::int32_t token : row.kept) {
    if (rest < row.weight_of(token)) return token;
    rest -= row.weight_of(token);
  }
  return -1;  // not reached: the likeliest token stays
}

std::size_t bytes_of_row(std::int64_t V) {
  return round_up(static_cast<std::size_t>(V) * kBytesPerToken);
}

std::size_t workspace(const SamplingProblem& p, const DeviceInfo& device) {
  return static_cast<std::size_t>(device.threads) * bytes_of_row(p.V);
}

void forward(const Context& context, const Sampling& a) {
  const std::int64_t V = a.logits.shape[1];
  auto* const scratch = static_cast<std::byte*>(context.scratch());
#pragma omp parallel for schedule(dynamic) num_threads(context.threads())
  for (std::int64_t m = 0; m < a.logits.shape[0]; ++m) {
    Row row(scratch + static_cast<std::size_t>(omp_get_thread_num()) * bytes_of_row(V),
            static_cast<std::size_t>(V));
    const Options options = Options::of_row(a, m);
    std::int32_t token = -1;
    if (read_logits(a, m, row)) {
      penalize(a, m, options.penalty, row);
      token = draw(row, options);
    }
    store_token(a, m, token);
  }
}

}  // namespace
}  // namespace warpwright::ops::sampling

namespace warpwright::ops {

WARPWRIGHT_KERNEL(Sampling, "cpu.rows"_kernel) = {.needs = Needs::cpu,
                                                  .dtypes = kFloatingDTypes,
                                                  .run = sampling::forward,
                                                  .workspace = sampling::workspace};

}  // namespace warpwright::ops
