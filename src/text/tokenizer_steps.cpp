#include "text/tokenizer_steps.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "text/template.hpp"
#include "text/tokenizer_json.hpp"
#include "text/unicode.hpp"

namespace warpwright::text {
namespace {

using nlohmann::json;
using nlohmann::ordered_json;
using Kind = NormalizerStep::Kind;
using Prepend = Metaspace::Prepend;
using FirstSpace = CharacterSpec::FirstSpace;

constexpr std::size_t kMostSteps = 16;
constexpr std::pair<const char*, Prepend> kPrependSchemes[] = {
    {"always", Prepend::always}, {"first", Prepend::first}, {"never", Prepend::never}};

[[noreturn]] void refuse_type(const JsonField& step, const char* what) {
  const JsonField type = step.member("type");
  type.fail(fmt::format("is {}, which is not a supported {}", quote(type.string()), what));
}

// The text of {"String": text}. Regular expressions are refused.
const std::string& read_pattern_text(const JsonField& field) {
  field.require_object({"String", "Regex"});
  const JsonField expression = field.member("Regex");
  if (!expression.value().is_null()) {
    expression.fail(fmt::format("is {}, and only a String is supported here", quote(expression.string())));
  }
  return field.member("String").string();
}

NormalizerStep read_normalizer_step(const JsonField& step) {
  const std::string& type = step.member("type").string();
  if (type == "NFC") {
    step.require_object({"type"});
    return {};
  }
  if (type == "Prepend") {
    step.require_object({"type", "prepend"});
    const JsonField prepend = step.member("prepend");
    if (prepend.string().empty()) prepend.fail("is empty");
    return {Kind::prepend, "", prepend.string()};
  }
  if (type == "Replace") {
    step.require_object({"type", "pattern", "content"});
    const std::string& from = read_pattern_text(step.member("pattern"));
    return {Kind::replace, from, step.member("content").string()};
  }
  refuse_type(step, "normalizer");
}

// The known patterns leave nothing between their matches. So isolating matches and removing all else agree.
Cut read_split(const JsonField& step) {
  step.require_object({"type", "pattern", "behavior", "invert"});
  const JsonField pattern = step.member("pattern");
  pattern.require_object({"String", "Regex"});
  if (pattern.member("Regex").value().is_null()) pattern.fail("is not a Regex, and not supported");
  const JsonField regex = pattern.member("Regex");
  const bool inverted = step.member("invert").boolean();
  const JsonField behavior = step.member("behavior");
  const bool removes = behavior.string() == "Removed" && inverted;
  if (behavior.string() != "Isolated" && !removes) {
    behavior.fail(
        fmt::format("is {}, with invert {}, and not supported", quote(behavior.string()), inverted));
  }
  if (const std::optional<Pattern> known = pattern_of(regex.string())) return *known;
  const Uncovered uncovered = removes ? Uncovered::error : Uncovered::piece;
  return SplitExpression(regex.string(), uncovered, regex.path(), regex.where());
}

struct ReadMetaspace {
  std::string mark;
  Metaspace rules;
};

ReadMetaspace read_metaspace(const JsonField& step) {
  step.require_object({"type", "replacement", "prepend_scheme", "split", "add_prefix_space", "str_rep"});
  ReadMetaspace read{step.member("replacement").string(), {}};
  if (read.mark.empty() || first_char(read.mark).length != read.mark.size()) {
    step.member("replacement").fail(fmt::format("is {}, not one character", quote(read.mark)));
  }
  const JsonField scheme = step.member("prepend_scheme");
  if (!scheme.value().is_null()) {
    const auto* known = std::find_if(std::begin(kPrependSchemes), std::end(kPrependSchemes),
                                     [&](const auto& entry) { return entry.first == scheme.string(); });
    if (known == std::end(kPrependSchemes)) {
      scheme.fail(fmt::format("is {}, expected always, first or never", quote(scheme.string())));
    }
    read.rules.prepend = known->second;
  }
  // Old files have add_prefix_space, which must not contradict the scheme.
  const bool prefix = step.member("add_prefix_space").boolean_or(true);
  if (!prefix && read.rules.prepend != Prepend::never) {
    step.member("add_prefix_space").fail("is false, which contradicts prepend_scheme");
  }
  read.rules.split = step.member("split").boolean_or(true);
  return read;
}

// Returns Metaspace's mark, or nothing.
std::string read_pre_tokenizer(const JsonField& field, TokenizerSpec& spec) {
  spec.use_regex = false;
  std::string mark;
  bool byte_level = false;
  std::optional<Metaspace> metaspace;
  for (const JsonField& step : steps_of(field, "pretokenizers")) {
    const std::string& type = step.member("type").string();
    if (byte_level) step.fail("follows ByteLevel, which is not supported");
    if (type == "ByteLevel") {
      require_byte_level(step);
      byte_level = true;
      if (metaspace) step.fail("follows Metaspace, which is not supported");
      spec.use_regex = step.member("use_regex").boolean_or(true);
      spec.add_prefix_space = step.member("add_prefix_space").boolean();
      if (spec.add_prefix_space && !spec.patterns.empty()) {
        step.member("add_prefix_space").fail("is true after a step that cuts, which is not supported");
      }
    } else if (type == "Split") {
      spec.patterns.push_back(read_split(step));
    } else if (type == "Digits") {
      step.require_object({"type", "individual_digits"});
      const bool each = step.member("individual_digits").boolean();
      spec.patterns.emplace_back(each ? Pattern::each_digit : Pattern::digits);
    } else if (type == "Metaspace") {
      if (metaspace || !spec.patterns.empty()) step.fail("follows a step that cuts, which is not supported");
      ReadMetaspace read = read_metaspace(step);
      mark = std::move(read.mark);
      metaspace = read.rules;
    } else {
      refuse_type(step, "pre-tokenizer");
    }
  }
  if (byte_level) return mark;
  spec.characters.emplace();
  spec.characters->metaspace = metaspace;
  return mark;
}

// The steps of a character model's decoder that have been read.
struct DecoderState {
  bool bytes = false, fused = false, stripped = false;
};

void read_character_decoder_step(const JsonField& step, CharacterSpec& rules, DecoderState& state) {
  const std::string& type = step.member("type").string();
  if (state.stripped) step.fail("follows Strip, which is not supported");
  if (type == "Replace" || type == "Metaspace") {
    if (!rules.mark.empty() || state.bytes || state.fused) {
      step.fail("follows another step that changes tokens, which is not supported");
    }
    if (type == "Metaspace") {
      const ReadMetaspace read = read_metaspace(step);
      rules.mark = read.mark;
      if (read.rules.prepend != Prepend::never) rules.first_space = FirstSpace::strip_marks;
      return;
    }
    step.require_object({"type", "pattern", "content"});
    rules.mark = read_pattern_text(step.member("pattern"));
    if (rules.mark.empty()) step.member("pattern").fail("is empty");
    if (step.member("content").string() != " ") step.member("content").fail("is not a space");
  } else if (type == "ByteFallback") {
    step.require_object({"type"});
    state.bytes = true;
  } else if (type == "Fuse") {
    step.require_object({"type"});
    state.fused = true;
  } else if (type == "Strip") {
    step.require_object({"type", "content", "start", "stop"});
    if (step.member("content").string() != " ") step.member("content").fail("is not a space");
    if (step.member("stop").count() != 0) step.member("stop").fail("is not 0, and not supported");
    if (step.member("start").count() > 1) step.member("start").fail("is over 1, and not supported");
    if (!state.fused) step.fail("does not follow Fuse, which is not supported");
    if (rules.first_space != FirstSpace::keep) step.fail("follows Metaspace, which is not supported");
    if (step.member("start").count() == 1) rules.first_space = FirstSpace::strip;
    state.stripped = true;
  } else {
    refuse_type(step, "decoder");
  }
}

void read_decoder(const JsonField& field, TokenizerSpec& spec) {
  const std::vector<JsonField> steps = steps_of(field, "decoders");
  if (!spec.characters) {
    if (steps.size() != 1) field.fail("is not ByteLevel, as the pre_tokenizer is");
    return require_byte_level(steps[0]);
  }
  DecoderState state;
  for (const JsonField& step : steps) read_character_decoder_step(step, *spec.characters, state);
  if (!state.bytes) field.fail("has no step ByteFallback, and the pre_tokenizer has no ByteLevel");
}

void read_template(const JsonField& field, TokenizerSpec& spec) {
  Template post;
  read_post_processor(field, post);
  std::vector<TokenId>* ids = &spec.before;
  std::size_t texts = 0;
  for (const TemplatePiece& piece : post.single) {
    if (piece.kind == TemplatePiece::Kind::special) {
      ids->insert(ids->end(), piece.ids.begin(), piece.ids.end());
    } else {
      ids = &spec.after;
      texts += piece.kind == TemplatePiece::Kind::first ? 1 : 2;  // "B" is not part of a single text
    }
  }
  if (texts != 1) field.fail("has a template that does not hold the text exactly once");
}

ordered_json sequence(const char* key, ordered_json steps) {
  return {{"type", "Sequence"}, {key, std::move(steps)}};
}

ordered_json byte_level(bool add_prefix_space, bool use_regex) {
  return {{"type", "ByteLevel"},
          {"add_prefix_space", add_prefix_space},
          {"trim_offsets", true},
          {"use_regex", use_regex}};
}

ordered_json format_metaspace(const std::string& mark, const Metaspace& rules) {
  const auto* scheme = std::find_if(std::begin(kPrependSchemes), std::end(kPrependSchemes),
                                    [&](const auto& entry) { return entry.second == rules.prepend; });
  return {{"type", "Metaspace"},
          {"replacement", mark},
          {"prepend_scheme", scheme->first},
          {"split", rules.split}};
}

ordered_json format_split(std::string_view expression, bool removes) {
  return {{"type", "Split"},
          {"pattern", {{"Regex", expression}}},
          {"behavior", removes ? "Removed" : "Isolated"},
          {"invert", removes}};
}

ordered_json format_cut(const Cut& cut) {
  if (const auto* split = std::get_if<SplitExpression>(&cut)) {
    return format_split(split->expression(), split->uncovered() == Uncovered::error);
  }
  const Pattern pattern = std::get<Pattern>(cut);
  if (pattern == Pattern::digits || pattern == Pattern::each_digit) {
    return {{"type", "Digits"}, {"individual_digits", pattern == Pattern::each_digit}};
  }
  return format_split(expression_of(pattern), false);
}

}  // namespace

std::vector<JsonField> steps_of(const JsonField& field, const char* key) {
  if (field.value().is_null()) return {};
  if (!field.value().is_object()) field.fail("is not an object");
  if (field.member("type").string() != "Sequence") return {field};
  field.require_object({"type", key});
  const JsonField list = field.member(key);
  list.require_array();
  if (list.value().size() > kMostSteps) list.fail(fmt::format("has over {} steps", kMostSteps));
  std::vector<JsonField> steps;
  for (std::size_t i = 0; i < list.value().size(); ++i) {
    steps.push_back(list.element(i));
    if (!steps.back().value().is_object()) steps.back().fail("is not an object");
  }
  return steps;
}

void require_byte_level(const JsonField& field) {
  field.require_object({"type", "add_prefix_space", "trim_offsets", "use_regex"}).require_type("ByteLevel");
  for (const char* flag : {"add_prefix_space", "trim_offsets"}) field.member(flag).boolean();
  field.member("use_regex").boolean_or(true);
}

void read_steps(const JsonField& root, TokenizerSpec& spec) {
  for (const JsonField& step : steps_of(root.member("normalizer"), "normalizers")) {
    spec.normalizer.push_back(read_normalizer_step(step));
  }
  const JsonField pre_tokenizer = root.member("pre_tokenizer");
  const std::string mark = read_pre_tokenizer(pre_tokenizer, spec);
  const json& decoder = root.member("decoder").value();
  if (spec.characters && decoder.is_object() && decoder.value("type", json()) == "ByteLevel") {
    pre_tokenizer.fail("has no step ByteLevel, as the decoder has");
  }
  read_decoder(root.member("decoder"), spec);
  if (!mark.empty() && spec.characters->mark != mark) {
    pre_tokenizer.fail(
        fmt::format("has the replacement {}, the decoder {}", quote(mark), quote(spec.characters->mark)));
  }
  read_template(root.member("post_processor"), spec);
}

ordered_json format_normalizer(const TokenizerSpec& spec) {
  if (spec.normalizer.empty()) return nullptr;
  ordered_json steps = ordered_json::array();
  for (const NormalizerStep& step : spec.normalizer) {
    switch (step.kind) {
      case Kind::nfc:
        steps.push_back({{"type", "NFC"}});
        break;
      case Kind::prepend:
        steps.push_back({{"type", "Prepend"}, {"prepend", step.to}});
        break;
      case Kind::replace:
        steps.push_back({{"type", "Replace"}, {"pattern", {{"String", step.from}}}, {"content", step.to}});
        break;
    }
  }
  return steps.size() == 1 ? steps[0] : sequence("normalizers", std::move(steps));
}

ordered_json format_pre_tokenizer(const TokenizerSpec& spec) {
  ordered_json steps = ordered_json::array();
  if (spec.characters && spec.characters->metaspace) {
    steps.push_back(format_metaspace(spec.characters->mark, *spec.characters->metaspace));
  }
  for (const Cut& cut : spec.patterns) steps.push_back(format_cut(cut));
  if (!spec.characters) steps.push_back(byte_level(spec.add_prefix_space, spec.use_regex));
  if (steps.empty()) return nullptr;
  return steps.size() == 1 ? steps[0] : sequence("pretokenizers", std::move(steps));
}

ordered_json format_decoder(const TokenizerSpec& spec) {
  if (!spec.characters) return byte_level(true, true);
  const CharacterSpec& rules = *spec.characters;
  ordered_json steps = ordered_json::array();
  if (rules.first_space == FirstSpace::strip_marks) {
    steps.push_back(format_metaspace(rules.mark, {}));
  } else if (!rules.mark.empty()) {
    steps.push_back({{"type", "Replace"}, {"pattern", {{"String", rules.mark}}}, {"content", " "}});
  }
  steps.push_back({{"type", "ByteFallback"}});
  steps.push_back({{"type", "Fuse"}});
  if (rules.first_space == FirstSpace::strip) {
    steps.push_back({{"type", "Strip"}, {"content", " "}, {"start", 1}, {"stop", 0}});
  }
  return sequence("decoders", std::move(steps));
}

ordered_json format_post_processor(const TokenizerSpec& spec) {
  if (spec.before.empty() && spec.after.empty()) {
    return spec.characters ? ordered_json(nullptr) : byte_level(true, true);
  }
  const std::vector<std::string> spelled = spell_tokens(spec);
  ordered_json single = ordered_json::array(), special = ordered_json::object();
  const auto add = [&](const std::vector<TokenId>& ids) {
    for (const TokenId id : ids) {
      const std::string& token = spelled[id];
      single.push_back({{"SpecialToken", {{"id", token}, {"type_id", 0}}}});
      special[token] = {{"id", token}, {"ids", {id}}, {"tokens", {token}}};
    }
  };
  add(spec.before);
  single.push_back({{"Sequence", {{"id", "A"}, {"type_id", 0}}}});
  add(spec.after);
  ordered_json pair = single;
  for (ordered_json piece : single) {
    for (auto& [kind, what] : piece.items()) what["type_id"] = 1;
    if (piece.contains("Sequence")) piece["Sequence"]["id"] = "B";
    pair.push_back(std::move(piece));
  }
  const ordered_json post = {{"type", "TemplateProcessing"},
                             {"single", std::move(single)},
                             {"pair", std::move(pair)},
                             {"special_tokens", std::move(special)}};
  if (spec.characters) return post;
  return sequence("processors", ordered_json::array({byte_level(true, true), post}));
}

}  // namespace warpwright::text
