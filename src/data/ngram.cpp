#include "data/ngram.hpp"

#include <algorithm>
#include <cmath>
#include <unordered_map>
#include <vector>

#include "core/tensor.hpp"

namespace warpwright {
namespace {

std::uint64_t pair_key(std::int32_t v, std::int32_t w) {
  return (static_cast<std::uint64_t>(static_cast<std::uint32_t>(v)) << 32) | static_cast<std::uint32_t>(w);
}

// D = n1 / (n1 + 2·n2), where n1 and n2 are how many counts equal 1 and 2. 0.5 if no count is 1.
template <class Counts>
double discount(const Counts& counts) {
  double n1 = 0, n2 = 0;
  for (const std::int64_t count : counts) {
    n1 += count == 1;
    n2 += count == 2;
  }
  return n1 > 0 ? n1 / (n1 + 2 * n2) : 0.5;
}

// A distribution over the vocabulary from counts. The discounted mass is spread evenly.
std::vector<double> smooth(const std::vector<std::int64_t>& counts) {
  const double D = discount(counts), V = static_cast<double>(counts.size());
  double total = 0, kinds = 0;
  for (const std::int64_t count : counts) {
    total += static_cast<double>(count);
    kinds += count > 0;
  }
  std::vector<double> p(counts.size(), 1 / V);
  if (total == 0) return p;
  for (std::size_t w = 0; w < counts.size(); ++w) {
    p[w] = std::max(static_cast<double>(counts[w]) - D, 0.0) / total + D * kinds / total / V;
  }
  return p;
}

class Bigrams {
 public:
  Bigrams(const TokenStream& train, std::int64_t vocabulary)
      : counts_(static_cast<std::size_t>(vocabulary)),
        successors_(static_cast<std::size_t>(vocabulary)),
        context_counts_(static_cast<std::size_t>(vocabulary)) {
    count_pairs(train);
    std::vector<std::int64_t> predecessors(counts_.size()), pair_counts;
    pair_counts.reserve(pairs_.size());
    for (const auto& [key, count] : pairs_) {
      ++successors_[key >> 32];
      ++predecessors[key & 0xffffffffu];
      pair_counts.push_back(count);
    }
    discount_ = discount(pair_counts);
    unigram_ = smooth(counts_);
    continuation_ = smooth(predecessors);
  }

  double unigram(std::int32_t w) const { return unigram_[static_cast<std::size_t>(w)]; }

  double bigram(std::int32_t v, std::int32_t w) const {
    const double lower = continuation_[static_cast<std::size_t>(w)];
    const double context = static_cast<double>(context_counts_[static_cast<std::size_t>(v)]);
    if (context == 0) return lower;
    const auto found = pairs_.find(pair_key(v, w));
    const double count = found == pairs_.end() ? 0 : static_cast<double>(found->second);
    const double kinds = static_cast<double>(successors_[static_cast<std::size_t>(v)]);
    return std::max(count - discount_, 0.0) / context + discount_ * kinds / context * lower;
  }

 private:
  void count_pairs(const TokenStream& train) {
    constexpr std::int64_t kBlock = 1 << 16;
    std::vector<std::int32_t> block;
    std::int32_t previous = -1;
    for (std::int64_t first = 0; first < train.tokens(); first += kBlock) {
      block.resize(static_cast<std::size_t>(std::min(kBlock, train.tokens() - first)));
      train.read(first, block);
      for (const std::int32_t token : block) {
        ++counts_[static_cast<std::size_t>(token)];
        if (previous >= 0) {
          ++pairs_[pair_key(previous, token)];
          ++context_counts_[static_cast<std::size_t>(previous)];
        }
        previous = token;
      }
    }
  }

  std::unordered_map<std::uint64_t, std::int64_t> pairs_;
  std::vector<std::int64_t> counts_, successors_, context_counts_;
  std::vector<double> unigram_, continuation_;
  double discount_ = 0;
};

}  // namespace

NgramLoss ngram_loss(const TokenStream& train, const TokenStream& val, std::int64_t T, std::int64_t samples,
                     std::int64_t vocabulary) {
  const Bigrams model(train, vocabulary);
  const ValidationLoader loader(val, T);
  std::vector<std::int32_t> inputs(static_cast<std::size_t>(T)), targets(inputs.size());
  NgramLoss loss;
  for (std::int64_t sample = 0; sample < samples; ++sample) {
    loader.load(sample, Tensor(inputs.data(), DType::i32, {1, T}),
                Tensor(targets.data(), DType::i32, {1, T}));
    for (std::size_t t = 0; t < inputs.size(); ++t) {
      loss.unigram -= std::log(model.unigram(targets[t]));
      loss.bigram -= std::log(model.bigram(inputs[t], targets[t]));
    }
  }
  const double tokens = static_cast<double>(samples * T);
  return {loss.unigram / tokens, loss.bigram / tokens};
}

}  // namespace warpwright
