#include "text/template.hpp"

#include <fmt/format.h>

#include <string>
#include <utility>

#include "text/json_field.hpp"
#include "text/tokenizer_steps.hpp"

namespace warpwright::text {
namespace {

constexpr std::size_t kMostPieces = 64;    // per template
constexpr std::size_t kMostPieceIds = 64;  // per special token of a template

using Kind = TemplatePiece::Kind;

TemplatePiece special_piece(TokenId id, std::uint32_t type) {
  return {Kind::special, {id}, type};
}

std::uint32_t read_type(const JsonField& field) {
  const TokenId type = field.id();
  if (type > 0xffff) field.fail("is not a token type below 65,536");
  return type;
}

std::vector<TemplatePiece> read_template(const JsonField& field, const JsonField& special_tokens) {
  std::vector<TemplatePiece> pieces;
  field.require_array();
  if (field.value().size() > kMostPieces) field.fail(fmt::format("has over {} pieces", kMostPieces));
  for (std::size_t i = 0; i < field.value().size(); ++i) {
    const JsonField piece = field.element(i);
    piece.require_object({"SpecialToken", "Sequence"});
    const bool special = !piece.member("SpecialToken").value().is_null();
    const JsonField what = piece.member(special ? "SpecialToken" : "Sequence");
    what.require_object({"id", "type_id"});
    const std::string& id = what.member("id").string();
    TemplatePiece read{Kind::special, {}, read_type(what.member("type_id"))};
    if (special) {
      if (!special_tokens.value().is_object() || !special_tokens.value().contains(id)) {
        what.member("id").fail("is not among special_tokens");
      }
      const JsonField ids = special_tokens.foreign_member(id).member("ids");
      ids.require_array();
      if (ids.value().size() > kMostPieceIds) ids.fail(fmt::format("has over {} ids", kMostPieceIds));
      for (std::size_t k = 0; k < ids.value().size(); ++k) read.ids.push_back(ids.element(k).id());
    } else if (id == "A" || id == "B") {
      read.kind = id == "A" ? Kind::first : Kind::second;
    } else {
      what.member("id").fail("is neither \"A\" nor \"B\"");
    }
    pieces.push_back(std::move(read));
  }
  return pieces;
}

// The id in ["[SEP]", 102].
TokenId read_token_pair(const JsonField& field) {
  field.require_array();
  if (field.value().size() != 2) field.fail("is not a token and its id");
  field.element(0).string();
  return field.element(1).id();
}

}  // namespace

Template bert_template(TokenId cls, TokenId sep) {
  Template post;
  post.single = {special_piece(cls, 0), {Kind::first, {}, 0}, special_piece(sep, 0)};
  post.pair = post.single;
  post.pair.push_back({Kind::second, {}, 1});
  post.pair.push_back(special_piece(sep, 1));
  return post;
}

Template roberta_template(TokenId cls, TokenId sep) {
  Template post;
  post.single = {special_piece(cls, 0), {Kind::first, {}, 0}, special_piece(sep, 0)};
  post.pair = post.single;
  post.pair.push_back(special_piece(sep, 0));
  post.pair.push_back({Kind::second, {}, 0});
  post.pair.push_back(special_piece(sep, 0));
  return post;
}

void read_post_processor(const JsonField& field, Template& post) {
  if (field.value().is_null()) return;
  const std::string& type = field.member("type").string();
  if (type == "TemplateProcessing") {
    field.require_object({"type", "single", "pair", "special_tokens"});
    post.single = read_template(field.member("single"), field.member("special_tokens"));
    post.pair = read_template(field.member("pair"), field.member("special_tokens"));
  } else if (type == "BertProcessing") {
    field.require_object({"type", "sep", "cls"});
    post = bert_template(read_token_pair(field.member("cls")), read_token_pair(field.member("sep")));
  } else if (type == "RobertaProcessing") {
    field.require_object({"type", "sep", "cls", "trim_offsets", "add_prefix_space"});
    post = roberta_template(read_token_pair(field.member("cls")), read_token_pair(field.member("sep")));
  } else if (type == "Sequence") {
    const Template untouched = post;
    for (const JsonField& processor : steps_of(field, "processors")) {
      if (post != untouched) processor.fail("follows a template, which is not supported");
      read_post_processor(processor, post);
    }
  } else if (type == "ByteLevel") {
    require_byte_level(field);
  } else {
    field.member("type").fail("is not a supported post-processor");
  }
}

}  // namespace warpwright::text
