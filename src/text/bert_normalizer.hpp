// BERT's normalization: control characters go, white space becomes a space, Chinese characters are set apart,
// accents are stripped, letters become small, as Hugging Face tokenizers 0.23.3 does it
// (normalizers/bert.rs).
//
// Almost every character maps to its own few bytes, whatever stands around it: a table of them is made once
// for each choice of options. Only marks that decomposition (NFD) keeps and may put in another order need the
// whole text; where one occurs, the text is decomposed, ordered, filtered and made small in four steps.
#pragma once

#include <cstddef>
#include <string_view>
#include <vector>

namespace warpwright::text {

class BertNormalizer {
 public:
  struct Options {
    bool clean_text = true;
    bool handle_chinese_chars = true;
    bool strip_accents = true;
    bool lowercase = true;
    bool operator==(const Options&) const = default;
  };

  explicit BertNormalizer(const Options& options);

  const Options& options() const { return options_; }

  // The normalized text, in `buffer`, which grows and is never shortened. A byte that is not part of
  // well-formed UTF-8 counts as U+FFFD.
  std::string_view normalize(std::string_view text, std::vector<char>& buffer) const;

 private:
  class CharMap;
  static const CharMap& map_for(const Options& options);
  std::string_view normalize_in_steps(std::string_view text, std::vector<char>& buffer) const;

  Options options_;
  const CharMap* map_;
};

}  // namespace warpwright::text
