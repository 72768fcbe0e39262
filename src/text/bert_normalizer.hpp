// BERT's normalization. It removes control characters, turns white space into spaces, sets Chinese characters
// apart, strips accents and lowercases, as Hugging Face tokenizers 0.23.3 does (normalizers/bert.rs).
//
// Almost every character maps to a fixed sequence of bytes, whatever its neighbours are. A table of these is
// made once per set of options. The exceptions are marks that decomposition (NFD) keeps and may reorder. If
// one occurs, the whole text is decomposed, ordered, filtered and lowercased in four steps.
#pragma once

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

  // Returns the normalized text. It lies in `buffer`, which only grows. A byte outside well-formed UTF-8
  // counts as U+FFFD.
  std::string_view normalize(std::string_view text, std::vector<char>& buffer) const;

 private:
  class CharMap;
  static const CharMap& map_for(const Options& options);
  std::string_view normalize_in_steps(std::string_view text, std::vector<char>& buffer) const;

  Options options_;
  const CharMap* map_;
};

}  // namespace warpwright::text
