#include "text/split_syntax.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <utility>

#include "core/error.hpp"
#include "text/json.hpp"
#include "text/unicode.hpp"

namespace warpwright::text {
namespace {

constexpr std::size_t kLongestExpression = std::size_t{16} << 10;  // bytes
constexpr std::size_t kMostSets = 1000;
constexpr int kDeepest = 50;  // groups or classes within each other
constexpr std::uint32_t kMostRepeats = 1000;
constexpr std::uint32_t kMostUnwatched = 16;  // repeats without a callout
constexpr std::uint32_t kUnlimited = std::numeric_limits<std::uint32_t>::max();
constexpr char32_t kLongS = 0x17f, kKelvin = 0x212a;  // their lower case is s and k

bool is_letter(char32_t c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
}

bool is_ascii_mark(char32_t c) {
  return c >= '!' && c <= '~' && !is_letter(c) && !(c >= '0' && c <= '9');
}

CharacterSet set_of(char32_t first, char32_t last) {
  return CharacterSet({{first, last}});
}

// The set, of ASCII alone, with both cases of its letters.
CharacterSet with_both_cases(const CharacterSet& set) {
  std::vector<CharacterSet::Range> ranges;
  for (const CharacterSet::Range& range : set.ranges()) {
    ranges.push_back(range);
    for (char32_t c = range.first; c <= range.last; ++c) {
      if (!is_letter(c)) continue;
      ranges.push_back({c ^ 0x20, c ^ 0x20});
      if ((c | 0x20) == 's') ranges.push_back({kLongS, kLongS});
      if ((c | 0x20) == 'k') ranges.push_back({kKelvin, kKelvin});
    }
  }
  return CharacterSet(std::move(ranges));
}

// True if a ligature is these two lower-case letters once its case is folded: U+FB00 to U+FB06 and U+00DF.
bool have_ligature(char32_t first, char32_t second) {
  return (first == 'f' && (second == 'f' || second == 'i' || second == 'l')) ||
         (first == 's' && (second == 's' || second == 't'));
}

class Parser {
 public:
  Parser(std::string_view expression, const std::string& name, const std::string& where)
      : text_(expression), name_(name), where_(where) {}

  SplitSyntax parse() {
    if (text_.size() > kLongestExpression) {
      throw Error(fmt::format("{} has {} bytes, more than {}", name_, text_.size(), kLongestExpression),
                  where_, "shorten it");
    }
    if (!is_utf8(text_)) throw Error(fmt::format("{} is not UTF-8", name_), where_, "correct it");
    alternatives(0);
    if (at_ < text_.size()) fail(at_, 1, "which has no matching \"(\"");
    return std::move(syntax_);
  }

 private:
  // The numbers of characters that a part of the expression may match, up to kUnlimited.
  struct Length {
    std::uint32_t least, most;

    Length operator+(const Length& next) const {
      return {bounded(std::uint64_t{least} + next.least), bounded(std::uint64_t{most} + next.most)};
    }
    Length operator|(const Length& other) const {
      return {std::min(least, other.least), std::max(most, other.most)};
    }
    Length times(const Length& count) const {
      return {bounded(std::uint64_t{least} * count.least), bounded(std::uint64_t{most} * count.most)};
    }
    static std::uint32_t bounded(std::uint64_t n) {
      return static_cast<std::uint32_t>(std::min<std::uint64_t>(n, kUnlimited));
    }
  };
  struct Atom {
    bool takes_characters;  // false: a place
    Length length;
  };

  [[noreturn]] void fail(std::size_t at, std::size_t size, std::string_view why) const {
    throw Error(fmt::format("{} is {}, with {} at byte {}, {}", name_, quote(text_),
                            quote(text_.substr(at, size)), at, why),
                where_, "see docs/tokenizer.md for the syntax that is supported, and rewrite it");
  }
  [[noreturn]] void fail_unsupported(std::size_t at, std::size_t size) const {
    fail(at, size, "which is not supported");
  }

  bool sees(std::string_view next) const { return text_.substr(at_).starts_with(next); }
  bool accept(std::string_view next) {
    if (!sees(next)) return false;
    at_ += next.size();
    return true;
  }

  void put(std::string syntax) {
    if (syntax != "(?:" && syntax != ")") folded_ = 0;
    syntax_.parts.push_back({std::move(syntax), std::nullopt});
  }
  void put(const CharacterSet& set) {
    folded_ = 0;
    const auto known = std::find(syntax_.sets.begin(), syntax_.sets.end(), set);
    syntax_.parts.push_back({"", static_cast<std::size_t>(known - syntax_.sets.begin())});
    if (known == syntax_.sets.end()) syntax_.sets.push_back(set);
    if (syntax_.sets.size() > kMostSets) {
      throw Error(fmt::format("{} has over {} different characters and sets", name_, kMostSets), where_,
                  "shorten it");
    }
  }

  void insert(const char* syntax, std::size_t part) {
    syntax_.parts.insert(syntax_.parts.begin() + static_cast<std::ptrdiff_t>(part), {syntax, std::nullopt});
  }

  // looks_behind: the alternatives of a look-behind, each of which must have one length. Newer versions of
  // PCRE2 would take others.
  Length alternatives(int depth, bool looks_behind = false) {
    if (accept("(?i)")) folds_ = true;
    const auto one = [&] {
      const std::size_t at = at_;
      const Length length = sequence(depth);
      if (looks_behind && length.least != length.most) {
        fail(at, at_ - at, "a look-behind of variable length");
      }
      return length;
    };
    Length length = one();
    while (accept("|")) {
      put("|");
      length = length | one();
    }
    return length;
  }
  Length sequence(int depth) {
    Length length = {0, 0};
    while (at_ < text_.size() && !sees("|") && !sees(")")) {
      const std::size_t part = syntax_.parts.size();
      const Atom atom = read_atom(depth);
      length = length + repeated(atom, part);
    }
    return length;
  }

  Atom read_atom(int depth) {
    constexpr Atom kCharacter = {true, {1, 1}}, kPlace = {false, {0, 0}};
    switch (text_[at_]) {
      case '(':
        return group(depth);
      case '[':
        put(character_class(depth));
        return kCharacter;
      case '.':
        ++at_;
        put(set_of('\n', '\n').complement());
        return kCharacter;
      case '\\':
        if (place_escape()) return kPlace;
        if (const std::optional<CharacterSet> set = set_escape()) {
          put(*set);
          return kCharacter;
        }
        break;
      case '^':  // of a line, but not after the last newline of a text
        ++at_;
        put("(?<!");
        put(set_of('\n', '\n').complement());
        put(")(?!\\z)");
        return kPlace;
      case '$':
        ++at_;
        put("(?!");
        put(set_of('\n', '\n').complement());
        put(")");
        return kPlace;
      case '*':
      case '+':
      case '?':
        fail(at_, 1, "which repeats nothing");
      case '{':
        fail(at_, 1, "which is not a repeat; write \\{ for the character");
      default:
        break;
    }
    literal();
    return kCharacter;
  }

  void literal() {
    const std::size_t at = at_;
    const char32_t c = character();
    if (!folds_) return put(set_of(c, c));
    if (c >= 0x80) fail(at, at_ - at, "whose case cannot be ignored here");
    const char32_t lower = is_letter(c) ? c | 0x20 : c;
    if (have_ligature(folded_, lower)) fail(at, 1, "which forms a ligature with the letter before it");
    put(with_both_cases(set_of(c, c)));
    folded_ = lower;
  }

  Atom group(int depth) {
    const std::size_t at = at_;
    const bool folds = folds_, behind = behind_;
    if (depth >= kDeepest) fail(at, 1, fmt::format("which is nested deeper than {} levels", kDeepest));
    const bool looks_behind = sees("(?<=") || sees("(?<!");
    const bool is_place = looks_behind || sees("(?=") || sees("(?!");
    if (is_place && behind) fail(at, 3, "which is not supported in a look-behind");
    behind_ = behind || looks_behind;
    put(group_start());
    const Length length = alternatives(depth + 1, looks_behind);
    if (!accept(")")) fail(at, 1, "which has no matching \")\"");
    put(")");
    folds_ = folds;
    behind_ = behind;
    if (is_place) return {false, {0, 0}};
    return {true, length};
  }

  std::string group_start() {
    for (const char* start : {"(?:", "(?>", "(?=", "(?!", "(?<=", "(?<!"}) {
      if (accept(start)) return start;
    }
    if (sees("(?i:") || sees("(?-i:")) {
      folds_ = accept("(?i:");
      if (!folds_) accept("(?-i:");
    } else if (sees("(?")) {
      fail_unsupported(at_, 3);
    } else {
      ++at_;
    }
    return "(?:";
  }

  // \A, \z, \Z, \b and \B.
  bool place_escape() {
    const CharacterSet newline = set_of('\n', '\n');
    if (accept("\\A")) {
      put("\\A");
    } else if (accept("\\z")) {
      put("\\z");
    } else if (accept("\\Z")) {
      put("(?=");
      put(newline);
      put("?\\z)");
    } else if (accept("\\b")) {
      put_word_edge("(?!", "(?=");
    } else if (accept("\\B")) {
      put_word_edge("(?=", "(?!");
    } else {
      return false;
    }
    return true;
  }
  // The assertions about the next character after a word's character, and after another.
  void put_word_edge(const char* after_word, const char* after_other) {
    const CharacterSet word = *CharacterSet::named("Word");
    for (const char* start : {"(?:(?<=", after_word, "|(?<!", after_other}) {
      put(start);
      put(word);
      put(")");
    }
    put(")");
  }

  // The set of an escape such as \d or \p{L}. Nothing if it is a character.
  std::optional<CharacterSet> set_escape() {
    const char c = at_ + 1 < text_.size() ? text_[at_ + 1] : '\\';
    const char lower = static_cast<char>(c | 0x20);
    if (lower == 'p') return property();
    CharacterSet set;
    if (lower == 'd') set = *CharacterSet::named("Nd");
    if (lower == 's') set = *CharacterSet::named("Space");
    if (lower == 'w') set = *CharacterSet::named("Word");
    if (lower == 'h') set = CharacterSet({{'0', '9'}, {'a', 'f'}, {'A', 'F'}});
    if (set.ranges().empty()) return std::nullopt;
    if (folds_ && (lower == 'w' || lower == 'h')) fail(at_, 2, "whose case cannot be ignored here");
    at_ += 2;
    return c == lower ? set : set.complement();
  }

  // \p{Name}, \p{^Name} and \P{Name}.
  CharacterSet property() {
    const std::size_t at = at_;
    const std::size_t end = std::min(text_.find('}', at), text_.size() - 1) + 1;
    bool inverted = text_[at + 1] == 'P';
    at_ += 2;
    if (!accept("{") || text_[end - 1] != '}') fail(at, 3, "without a name in {}");
    if (accept("^")) inverted = !inverted;
    const std::optional<CharacterSet> set = CharacterSet::named(text_.substr(at_, end - 1 - at_));
    if (!set) fail(at, end - at, "a set of characters that is not known");
    if (folds_) fail(at, end - at, "whose case cannot be ignored here");
    at_ = end;
    return inverted ? set->complement() : *set;
  }

  // One character, as it is or escaped.
  char32_t character() {
    if (!accept("\\")) {
      const Utf8Char c = first_char(text_.substr(at_));
      at_ += c.length;
      return c.code;
    }
    constexpr std::pair<char, char32_t> kControls[] = {{'t', '\t'}, {'n', '\n'}, {'r', '\r'}, {'f', '\f'},
                                                       {'v', '\v'}, {'a', '\a'}, {'e', 0x1b}};
    const std::size_t at = at_ - 1;
    const char c = at_ < text_.size() ? text_[at_++] : '\0';
    for (const auto& [name, code] : kControls) {
      if (c == name) return code;
    }
    if (c == 'x' && accept("{")) {
      const char32_t code = hexadecimal(at, 1, 6);
      if (!accept("}")) fail(at, 4, "which has no matching \"}\"");
      return code;
    }
    if (c == 'x') {
      const char32_t code = hexadecimal(at, 2, 2);
      if (code >= 0x80) fail(at, 4, "which is a byte and no character; write \\x{…}");
      return code;
    }
    if (c == 'u') return hexadecimal(at, 4, 4);
    if (c != ' ' && !is_ascii_mark(static_cast<unsigned char>(c))) fail_unsupported(at, 2);
    return static_cast<unsigned char>(c);
  }

  char32_t hexadecimal(std::size_t at, int least, int most) {
    char32_t code = 0;
    int digits = 0;
    for (; digits < most && at_ < text_.size(); ++digits, ++at_) {
      const char c = text_[at_], lower = static_cast<char>(c | 0x20);
      if (c >= '0' && c <= '9') {
        code = code * 16 + static_cast<char32_t>(c - '0');
      } else if (lower >= 'a' && lower <= 'f') {
        code = code * 16 + static_cast<char32_t>(lower - 'a' + 10);
      } else {
        break;
      }
    }
    if (digits < least || code > 0x10ffff || (code >= 0xd800 && code < 0xe000)) {
      fail(at, at_ - at, "which is not a character");
    }
    return code;
  }

  // A class in brackets. Its parts are joined, and && intersects what is on its two sides.
  CharacterSet character_class(int depth) {
    const std::size_t at = at_;
    if (depth >= kDeepest) fail(at, 1, fmt::format("which is nested deeper than {} levels", kDeepest));
    accept("[");
    const bool inverted = accept("^");
    const std::size_t first = at_;
    std::optional<CharacterSet> before;  // of all && so far
    CharacterSet members;
    while (!sees("]")) {
      if (at_ >= text_.size()) fail(at, 1, "which has no matching \"]\"");
      if (sees("&&")) {
        if (folds_ || members.ranges().empty()) fail_unsupported(at_, 2);
        before = before ? before->intersection(members) : members;
        members = {};
        at_ += 2;
      } else {
        members.add(class_member(first, depth));
      }
    }
    if (members.ranges().empty()) fail(at, at_ - at + 1, "which has no characters");
    accept("]");
    if (before) members = members.intersection(*before);
    return inverted ? members.complement() : members;
  }

  // A nested class, a set, a character or a range in a class whose members begin at `first`.
  CharacterSet class_member(std::size_t first, int depth) {
    if (sees("[")) {
      if (folds_ || sees("[:")) fail_unsupported(at_, 2);
      return character_class(depth + 1);
    }
    const std::size_t at = at_;
    // In a class, Oniguruma also matches what its members are in lower case, such as ss for U+00DF.
    if (folds_ && (sees("\\S") || sees("\\D"))) fail(at, 2, "whose case cannot be ignored here");
    if (sees("\\")) {
      if (const std::optional<CharacterSet> set = set_escape()) return *set;
    }
    const auto is_dash = [&] { return sees("-") && !sees("-]") && !sees("-&&"); };
    if (is_dash() && at != first) fail(at, 1, "which is not a range; write \\- for the character");
    const char32_t begin = character();
    char32_t end = begin;
    if (is_dash()) {
      if (begin == '-') fail(at, 2, "which is not a range; write \\- for the character");
      ++at_;
      if (sees("[") || at_ >= text_.size()) fail(at, at_ - at, "a range without an end");
      end = character();
    }
    if (begin > end) fail(at, at_ - at, "a range that ends before it begins");
    if (!folds_) return set_of(begin, end);
    if (end >= 0x80) fail(at, at_ - at, "whose case cannot be ignored here");
    return with_both_cases(set_of(begin, end));
  }

  // Reads the repeat of an atom, which begins at this part.
  Length repeated(const Atom& atom, std::size_t part) {
    const std::size_t at = at_;
    const char32_t folded = folded_;
    const bool may_be_empty = atom.length.least == 0;
    std::uint32_t least = 0, most = kUnlimited;
    const bool is_interval = sees("{");
    if (is_interval) {
      read_interval(least, most);
    } else if (accept("+")) {
      least = 1;
    } else if (accept("?")) {
      most = 1;
    } else if (!accept("*")) {
      return atom.length;
    }
    if (!atom.takes_characters) fail(at, at_ - at, "which repeats an assertion");
    if (may_be_empty && most > 1) fail(at, at_ - at, "which repeats what may match nothing");
    std::string repeat = is_interval ? interval(least, most) : std::string(text_.substr(at, 1));
    if (accept("?")) {
      if (least == most) fail(at, at_ - at, "which engines read differently");
      repeat += "?";
    } else if (accept("+")) {
      if (is_interval) {  // not possessive, but a repeat of the repeat
        if (least == 0) fail(at, at_ - at, "which repeats what may match nothing");
        insert("(?:", part);
        repeat += ")";
        most = kUnlimited;
      }
      repeat += "+";
    }
    if (sees("*") || sees("+") || sees("?") || sees("{")) fail(at, at_ - at + 1, "a repeat of a repeat");
    if (most > kMostUnwatched) insert("(?C)", syntax_.parts[part].set ? part : part + 1);
    put(std::move(repeat));
    if (is_interval && folds_ && (folded == 's' || folded == 'f')) {
      fail(at, at_ - at, "which may form a ligature");
    }
    return atom.length.times({least, most});
  }

  void read_interval(std::uint32_t& least, std::uint32_t& most) {
    const std::size_t at = at_;
    accept("{");
    const std::optional<std::uint32_t> first = number(), second = accept(",") ? number() : first;
    least = first.value_or(0);
    most = second.value_or(kUnlimited);
    if (!accept("}") || (!first && !second) || least > most) {
      fail(at, at_ - at, "which is not a repeat; write \\{ for the character");
    }
    if (least > kMostRepeats || (most > kMostRepeats && most != kUnlimited)) {
      fail(at, at_ - at, fmt::format("which repeats over {} times", kMostRepeats));
    }
  }

  std::optional<std::uint32_t> number() {
    std::optional<std::uint32_t> value;
    for (; at_ < text_.size() && text_[at_] >= '0' && text_[at_] <= '9'; ++at_) {
      value = std::min(value.value_or(0) * 10 + static_cast<std::uint32_t>(text_[at_] - '0'), 100000u);
    }
    return value;
  }

  static std::string interval(std::uint32_t least, std::uint32_t most) {
    return most == kUnlimited ? fmt::format("{{{},}}", least) : fmt::format("{{{},{}}}", least, most);
  }

  std::string_view text_;
  const std::string &name_, &where_;
  std::size_t at_ = 0;
  bool folds_ = false;   // ignores case
  bool behind_ = false;  // in a look-behind
  char32_t folded_ = 0;  // the lower case of a letter just read whose case is ignored; groups do not end it
  SplitSyntax syntax_;
};

}  // namespace

SplitSyntax parse_split(std::string_view expression, const std::string& name, const std::string& where) {
  return Parser(expression, name, where).parse();
}

}  // namespace warpwright::text
