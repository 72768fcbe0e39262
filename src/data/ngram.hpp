// Baselines that a model must beat: n-gram models of the same tokens, fitted on the training split.
#pragma once

#include <cstdint>

#include "data/loader.hpp"

namespace warpwright {

struct NgramLoss {
  double unigram = 0;  // nats per token
  double bigram = 0;
};

// The losses on the targets of the first `samples` samples of T tokens that ValidationLoader yields for
// `val`. bigram: interpolated Kneser–Ney with one discount D = n1 / (n1 + 2·n2),
//   P(w|v) = max(c(v,w) − D, 0) / c(v) + D · N(v·) / c(v) · P(w).
// P(w) counts the distinct words before w. It is discounted in the same way and spreads the discounted mass
// evenly over the vocabulary. unigram: the token counts, discounted and spread in the same way. Source: S. F.
// Chen, J. Goodman, "An Empirical Study of Smoothing Techniques for Language Modeling", 1999, section 2.7.
NgramLoss ngram_loss(const TokenStream& train, const TokenStream& val, std::int64_t T, std::int64_t samples,
                     std::int64_t vocabulary);

}  // namespace warpwright
