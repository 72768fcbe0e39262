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
  std::span<std::int32_t> all;   // room for every token
  std::span<std::int32_t> kept;  // the tokens that remain, at the front of `all`

  Row(void* scratch, std::size_t V) {
    auto* const bytes = static_cast<std::byte*>(scratch);
    weights = {reinterpret_cast<std::uint64_t*>(bytes), V};
    logits = {reinterpret_cast<float*>(bytes + weights.size_bytes()), V};
    all = {reinterpret_cast<std::int32_t*>(bytes + weights.size_bytes() + logits.size_bytes()), V};
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

// The weights of the kept tokens.
void weigh(const Row& row, float largest, double temperature) {
  const float scale = bounded_factor(1 / temperature);
  for (const std::int32_t token : row.kept) {
    const auto v = static_cast<std::size_t>(token);
    row.weights[v] =
        static_cast<std::uint64_t>(std::exp((row.logits[v] - largest) * scale) * static_cast<float>(kOne));
  }
}

// Keeps the `count` likeliest tokens of all, the likeliest first.
void keep_likeliest(Row& row, std::size_t count) {
  const auto likelier = [&](std::int32_t a, std::int32_t b) { return row.likelier(a, b); };
  const auto end = row.all.begin() + static_cast<std::ptrdiff_t>(count);
  row.kept = row.all.first(count);
  std::iota(row.all.begin(), row.all.end(), 0);
  if (count < row.all.size() / 8) {
    std::ranges::partial_sort(row.all, end, likelier);
  } else {
    if (count < row.all.size()) std::ranges::nth_element(row.all, end - 1, likelier);
    std::ranges::sort(row.kept, likelier);
  }
}

// Cuts the kept tokens, the likeliest of them first, to the fewest with this weight. False if they have less.
bool cut(Row& row, std::uint64_t wanted) {
  std::size_t count = 0;
  std::uint64_t sum = 0;
  for (; sum < wanted && count < row.kept.size(); ++count) sum += row.weight_of(row.kept[count]);
  row.kept = row.kept.first(count);
  return sum >= wanted;
}

// All tokens are kept so far. A few usually have most of the weight. It sorts those, and more only if they
// have too little.
void keep_top_p_of_all(Row& row, double p) {
  constexpr std::size_t kFirst = 64, kMore = 8;
  const std::uint64_t wanted = least_weight(p, row.kept_weight());
  const std::size_t V = row.all.size();
  for (std::size_t count = std::min(kFirst, V);; count = count < V / (kMore * kMore) ? count * kMore : V) {
    keep_likeliest(row, count);
    if (cut(row, wanted) || count == V) return;
  }
}

void keep_min_p(Row& row, double p) {
  const auto weighs_less = [&](std::int32_t token) {
    return static_cast<double>(row.weight_of(token)) < p * kOne;
  };
  const auto end = std::remove_if(row.kept.begin(), row.kept.end(), weighs_less);
  row.kept = row.kept.first(static_cast<std::size_t>(end - row.kept.begin()));
}

// The tokens that the cuts leave, with their weights.
void keep(Row& row, const Options& o) {
  if (o.top_k > 0 && o.top_k < std::ssize(row.logits)) {
    keep_likeliest(row, static_cast<std::size_t>(o.top_k));
    weigh(row, row.logits[static_cast<std::size_t>(row.kept.front())], o.temperature);
    if (o.top_p < 1) cut(row, least_weight(o.top_p, row.kept_weight()));
  } else {
    row.kept = row.all;
    std::iota(row.kept.begin(), row.kept.end(), 0);
    weigh(row, *std::ranges::max_element(row.logits), o.temperature);
    if (o.top_p < 1) keep_top_p_of_all(row, o.top_p);
  }
  if (o.min_p > 0) keep_min_p(row, o.min_p);
}

std::int32_t draw(Row& row, const Options& o) {
  if (o.temperature == 0) {
    return static_cast<std::int32_t>(std::ranges::max_element(row.logits) - row.logits.begin());
  }
  keep(row, o);
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
