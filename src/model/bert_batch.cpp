#include "model/bert_batch.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <string>

#include "core/error.hpp"

namespace warpwright {

void PackedBatch::clear() {
  tokens.clear();
  types.clear();
  cu_seqlens.assign(1, 0);
}

void PackedBatch::append(std::span<const std::int32_t> ids, std::span<const std::int32_t> type_ids) {
  if (!type_ids.empty() && type_ids.size() != ids.size()) {
    throw Error(fmt::format("{} tokens and {} types", ids.size(), type_ids.size()), "a batch's sequence",
                "give a type for each token, or none");
  }
  if (!type_ids.empty()) types.resize(tokens.size(), 0);
  if (!type_ids.empty() || !types.empty()) {
    types.insert(types.end(), type_ids.begin(), type_ids.end());
    types.resize(tokens.size() + ids.size(), 0);
  }
  tokens.insert(tokens.end(), ids.begin(), ids.end());
  cu_seqlens.push_back(static_cast<std::int32_t>(tokens.size()));
}

void check_batch(const BertConfig& config, const BatchLimits& limits, const PackedBatch& batch) {
  const auto fail = [](const std::string& what, const std::string& where, const std::string& remedy) {
    throw Error(what, where, remedy);
  };
  const auto N = static_cast<std::int64_t>(batch.tokens.size());
  const std::int64_t S = batch.sequences();
  if (S < 0 || batch.cu_seqlens.front() != 0 || batch.cu_seqlens.back() != N ||
      (!batch.types.empty() && batch.types.size() != batch.tokens.size())) {
    fail("its sequences do not make up its tokens", "the batch", "append sequences one after the other");
  }
  if (N > limits.tokens || S > limits.sequences) {
    fail(fmt::format("{} tokens in {} sequences", N, S), "the batch",
         fmt::format("give at most {} in {}, or raise the limits of the arena", limits.tokens,
                     limits.sequences));
  }
  for (std::int64_t s = 0; s < S; ++s) {
    const auto first = batch.cu_seqlens[static_cast<std::size_t>(s)],
               last = batch.cu_seqlens[static_cast<std::size_t>(s) + 1];
    const std::string text = "text " + std::to_string(s) + " of the batch";
    if (last < first || last > N) {
      fail("ends before it begins, or after the last token", text, "append sequences one after the other");
    }
    if (last - first > config.max_length()) {
      fail(fmt::format("has {} tokens", last - first), text,
           fmt::format("cut it to the model's {}", config.max_length()));
    }
    for (auto n = static_cast<std::size_t>(first); n < static_cast<std::size_t>(last); ++n) {
      if (batch.tokens[n] < 0 || batch.tokens[n] >= config.vocab) {
        fail(fmt::format("has the token {}", batch.tokens[n]), text,
             fmt::format("use the tokenizer of this model, whose vocabulary has {} tokens", config.vocab));
      }
      if (!batch.types.empty() && (batch.types[n] < 0 || batch.types[n] >= config.types)) {
        fail(fmt::format("has the token type {}", batch.types[n]), text,
             fmt::format("the model has {} token types", config.types));
      }
    }
  }
}

void write_batch(const BertConfig& config, const PackedBatch& batch, const BertActivations& host) {
  const std::size_t N = batch.tokens.size(), S = batch.cu_seqlens.size() - 1;
  auto* cu_seqlens = host.cu_seqlens.as<std::int32_t>();
  host.rows.as<std::int32_t>()[0] = static_cast<std::int32_t>(N);
  std::copy(batch.cu_seqlens.begin(), batch.cu_seqlens.end(), cu_seqlens);
  std::fill(cu_seqlens + S + 1, cu_seqlens + host.cu_seqlens.shape[0], static_cast<std::int32_t>(N));
  std::copy(batch.tokens.begin(), batch.tokens.end(), host.tokens.as<std::int32_t>());
  auto* types = host.types.as<std::int32_t>();
  batch.types.empty() ? void(std::fill_n(types, N, 0))
                      : void(std::copy(batch.types.begin(), batch.types.end(), types));
  auto* positions = host.positions.as<std::int32_t>();
  const auto padding = static_cast<std::int32_t>(config.padding_token);
  for (std::size_t s = 0; s < S; ++s) {
    auto next = static_cast<std::int32_t>(config.first_position());
    for (auto n = static_cast<std::size_t>(batch.cu_seqlens[s]);
         n < static_cast<std::size_t>(batch.cu_seqlens[s + 1]); ++n) {
      // RoBERTa counts the tokens that are no padding, and gives the padding its own row.
      const bool is_padding = config.family == BertConfig::Family::roberta && batch.tokens[n] == padding;
      positions[n] = is_padding ? padding : next++;
    }
  }
}

}  // namespace warpwright
