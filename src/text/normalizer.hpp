// The normalizers of decoders' tokenizers: NFC, Prepend and Replace, one after the other.
//
// The results are those of Hugging Face tokenizers 0.23.3 (normalizers/unicode.rs, prepend.rs, replace.rs).
// Bytes outside well-formed UTF-8 remain as they are.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace warpwright::text {

struct NormalizerStep {
  enum class Kind : std::uint8_t { nfc, prepend, replace } kind = Kind::nfc;
  std::string from = {};  // replace: what is replaced, 1 to 64 bytes
  std::string to = {};    // replace: by what; prepend: what comes before a text that is not empty
  bool operator==(const NormalizerStep&) const = default;
};

// Appends the text to `out` with each `from`, which is not empty, replaced.
void replace_text(std::string_view text, std::string_view from, std::string_view to, std::string& out);

class Normalizer {
 public:
  Normalizer() = default;
  // Throws an Error that names `where` if the steps could make a text more than 16 times as long.
  Normalizer(std::vector<NormalizerStep> steps, const std::string& where);

  bool empty() const { return steps_.empty(); }

  struct Buffers {
    std::string a, b;
  };
  // Returns the normalized text: the text itself or one in the buffers. A text that `continues` another gets
  // nothing prepended.
  std::string_view normalize(std::string_view text, bool continues, Buffers& buffers) const;

 private:
  std::vector<NormalizerStep> steps_;
};

}  // namespace warpwright::text
