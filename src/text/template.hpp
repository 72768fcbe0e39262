// The template around one text or two: the special tokens before, between and after them. Tokenizer files
// call it the post-processor.
#pragma once

#include <cstdint>
#include <vector>

#include "text/bpe.hpp"

namespace warpwright::text {

class JsonField;

// A piece of the template around one or two texts: a text's place or special tokens, and a token type.
struct TemplatePiece {
  enum class Kind : std::uint8_t { first, second, special };
  Kind kind = Kind::first;
  std::vector<TokenId> ids;  // only in a special piece
  std::uint32_t type = 0;
  bool operator==(const TemplatePiece&) const = default;
};

struct Template {
  std::vector<TemplatePiece> single{{}};
  std::vector<TemplatePiece> pair{{}, {TemplatePiece::Kind::second, {}, 1}};
  bool operator==(const Template&) const = default;
};

// BERT: [CLS] a [SEP] b [SEP].
Template bert_template(TokenId cls, TokenId sep);

// RoBERTa: <s> a </s></s> b </s>, all of type 0.
Template roberta_template(TokenId cls, TokenId sep);

// Reads a tokenizer.json's "post_processor" into `post`. One that does not change ids leaves `post`
// unchanged.
void read_post_processor(const JsonField& field, Template& post);

}  // namespace warpwright::text
