#include "text/bert_normalizer.hpp"

#include <algorithm>
#include <array>
#include <cstdint>
#include <map>
#include <mutex>
#include <optional>
#include <string>

#include "text/bert_unicode.hpp"
#include "text/canonical.hpp"
#include "text/unicode.hpp"

namespace warpwright::text {
namespace {

constexpr char32_t kReplacement = 0xfffd;

bool is_surrogate(char32_t code) {
  return code >= 0xd800 && code < 0xe000;
}

void append_lowercase(std::u32string& text, char32_t code) {
  if (code == 0x130) {  // the only code point that becomes two
    text += U"i\u0307";
  } else {
    text += bert::lowercase(code);
  }
}

// True if NFD may reorder this character and stripping accents keeps it. The character must be fully
// decomposed.
bool is_movable(char32_t code) {
  return bert::combining_class(code) != 0 && !(bert::classes(code) & bert::kMark);
}

}  // namespace

// Maps each character on its own to its normalized form.
class BertNormalizer::CharMap {
 public:
  // An entry is one of these, or offset << 8 | length << 2 | kReplaced for bytes in the pool.
  static constexpr std::uint32_t kSame = 0, kDropped = 1, kMovable = 2, kReplaced = 3;
  static constexpr std::uint32_t kSetApart = 5;  // unchanged, with a space on both sides

  explicit CharMap(const Options& options) : options_(options) {
    std::map<Page, std::uint16_t> known;
    for (char32_t base = 0; base < kCodePoints; base += kPageSize) {
      Page page{};
      if (bert::any_listed(base, base + kPageSize - 1) || is_hangul_syllable(base)) {
        for (char32_t code = base; code < base + kPageSize; ++code) {
          if (!is_surrogate(code)) page[code - base] = make_entry(code);
        }
      }
      const auto [entry, is_new] = known.try_emplace(page, static_cast<std::uint16_t>(pages_.size()));
      if (is_new) pages_.push_back(page);
      page_of_[base / kPageSize] = entry->second;
    }
    for (unsigned char code = 0; code < 0x80; ++code) {
      const std::uint32_t entry = (*this)[code];
      ascii_[code] = entry == kSame      ? code
                     : entry == kDropped ? kDroppedAscii
                                         : static_cast<std::uint8_t>(replacement(entry)[0]);
    }
  }

  static constexpr std::uint8_t kDroppedAscii = 0x80;
  const std::array<std::uint8_t, 0x80>& ascii() const { return ascii_; }

  std::uint32_t operator[](char32_t code) const {
    return pages_[page_of_[code / kPageSize]][code % kPageSize];
  }
  std::string_view replacement(std::uint32_t entry) const { return {&pool_[entry >> 8], entry >> 2 & 63}; }

  // The most bytes that n input bytes can become.
  std::size_t bound(std::size_t n) const { return n * growth_; }

 private:
  std::uint32_t make_entry(char32_t code) {
    const std::uint8_t classes = bert::classes(code);
    if (options_.clean_text && (classes & bert::kControl)) return kDropped;
    if (options_.clean_text && (classes & bert::kWhite)) return add(code, U" ");
    std::u32string decomposed, text;
    if (options_.strip_accents) {
      append_decomposed(decomposed, code);
      if (std::any_of(decomposed.begin(), decomposed.end(), is_movable)) return kMovable;
      std::erase_if(decomposed, [](char32_t part) { return bert::classes(part) & bert::kMark; });
    } else {
      decomposed = code;
    }
    for (const char32_t part : decomposed) {
      options_.lowercase ? append_lowercase(text, part) : text.push_back(part);
    }
    const bool apart = options_.handle_chinese_chars && (classes & bert::kChinese);
    if (text == std::u32string_view(&code, 1)) {
      if (!apart) return kSame;
      grow(code, utf8_size(code) + 2);
      return kSetApart;
    }
    if (apart) text = U' ' + text + U' ';
    return text.empty() ? kDropped : add(code, text);
  }

  std::uint32_t add(char32_t code, std::u32string_view text) {
    const std::size_t offset = pool_.size();
    for (const char32_t part : text) append_utf8(part, pool_);
    const std::size_t length = pool_.size() - offset;
    grow(code, length);
    return static_cast<std::uint32_t>(offset << 8 | length << 2 | kReplaced);
  }

  void grow(char32_t code, std::size_t length) {
    growth_ = std::max(growth_, (length + utf8_size(code) - 1) / utf8_size(code));
  }

  static constexpr char32_t kPageSize = 256;
  using Page = std::array<std::uint32_t, kPageSize>;

  Options options_;
  std::array<std::uint16_t, kCodePoints / kPageSize> page_of_{};
  std::vector<Page> pages_;
  std::string pool_;
  std::size_t growth_ = 3;  // an invalid byte becomes U+FFFD
  std::array<std::uint8_t, 0x80> ascii_{};
};

const BertNormalizer::CharMap& BertNormalizer::map_for(const Options& options) {
  static std::mutex mutex;
  static std::array<std::optional<CharMap>, 16> maps;
  const std::size_t index = static_cast<std::size_t>(options.clean_text) | options.handle_chinese_chars << 1 |
                            options.strip_accents << 2 | options.lowercase << 3;
  const std::lock_guard lock(mutex);
  if (!maps[index]) maps[index].emplace(options);
  return *maps[index];
}

BertNormalizer::BertNormalizer(const Options& options) : options_(options), map_(&map_for(options)) {}

std::string_view BertNormalizer::normalize(std::string_view text, std::vector<char>& buffer) const {
  const CharMap& map = *map_;
  const std::array<std::uint8_t, 0x80>& ascii = map.ascii();
  if (buffer.size() < map.bound(text.size())) buffer.resize(map.bound(text.size()));
  char* out = buffer.data();
  const auto* p = reinterpret_cast<const unsigned char*>(text.data());
  const unsigned char* end = p + text.size();
  while (p < end) {
    if (*p < 0x80) {
      const std::uint8_t mapped = ascii[*p++];
      *out = static_cast<char>(mapped);
      out += mapped != CharMap::kDroppedAscii;
      continue;
    }
    const Utf8Char c = decode_utf8(p, end);
    const bool valid = c.code != kInvalidByte;
    const std::string_view source =
        valid ? std::string_view(reinterpret_cast<const char*>(p), c.length) : "\xef\xbf\xbd";
    const std::uint32_t entry = map[valid ? c.code : kReplacement];
    p += c.length;
    if (entry == CharMap::kDropped) continue;
    if (entry == CharMap::kMovable) return normalize_in_steps(text, buffer);
    if (entry == CharMap::kSetApart) *out++ = ' ';
    const std::string_view bytes =
        entry == CharMap::kSame || entry == CharMap::kSetApart ? source : map.replacement(entry);
    for (const char byte : bytes) *out++ = byte;
    if (entry == CharMap::kSetApart) *out++ = ' ';
  }
  return {buffer.data(), static_cast<std::size_t>(out - buffer.data())};
}

std::string_view BertNormalizer::normalize_in_steps(std::string_view text, std::vector<char>& buffer) const {
  std::u32string decomposed, lowered;
  const auto* p = reinterpret_cast<const unsigned char*>(text.data());
  for (const unsigned char* end = p + text.size(); p < end;) {
    const Utf8Char c = decode_utf8(p, end);
    p += c.length;
    const char32_t code = c.code == kInvalidByte ? kReplacement : c.code;
    const std::uint8_t classes = bert::classes(code);
    if (options_.clean_text && (classes & bert::kControl)) continue;
    const bool apart = options_.handle_chinese_chars && (classes & bert::kChinese);
    if (apart) decomposed += U' ';
    append_decomposed(decomposed, options_.clean_text && (classes & bert::kWhite) ? U' ' : code);
    if (apart) decomposed += U' ';
  }
  put_in_canonical_order(decomposed);
  std::erase_if(decomposed, [](char32_t code) { return bert::classes(code) & bert::kMark; });
  for (const char32_t code : decomposed) {
    options_.lowercase ? append_lowercase(lowered, code) : lowered.push_back(code);
  }
  std::string bytes;
  for (const char32_t code : lowered) append_utf8(code, bytes);
  if (buffer.size() < bytes.size()) buffer.resize(bytes.size());
  std::copy(bytes.begin(), bytes.end(), buffer.begin());
  return {buffer.data(), bytes.size()};
}

}  // namespace warpwright::text
