// Reads the regular expression of a Split as Hugging Face tokenizers 0.23.3 does: Oniguruma's Ruby syntax on
// UTF-8, without options.
//
// Only syntax on the following list is read. Anything else is an Error that names it, since engines differ in
// what they make of it.
//   characters   any but \ [ ( ) * + ? { | . ^ $; \ before one of ASCII's marks; \t \n \r \f \v \a \e,
//                \xHH below 80, \x{H…}, \uHHHH
//   sets         . (all but \n), \d \s \w \h (a hexadecimal digit) and \D \S \W \H, \p{Name}, \p{^Name} and
//                \P{Name} (CharacterSet::named), [a-z] and [^a-z] with all of these, [a[b-c]], [a-z&&[^b]]
//   groups       (…) and (?:…), (?>…), (?=…), (?!…), (?<=…), (?<!…), (?i:…), (?-i:…), and (?i) at the start
//                of the expression or of a group; alternatives with |. Each alternative of a look-behind has
//                one length, and no group in it looks around.
//   repeats      * + ? {n} {n,} {n,m} {,m}; lazy with ? after it; possessive with + after *, + or ?.
//                {n,m}+ repeats the repeat, as in Oniguruma. A group that may match nothing is not repeated.
//   places       ^ and $ (of any line), \A, \z, \Z, \b, \B
// Ignoring case is for ASCII letters, with U+017F for s and U+212A for k. Pairs of letters that have a
// ligature, such as ff and st, are refused there, because Oniguruma also matches the ligature.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "text/character_set.hpp"

namespace warpwright::text {

// An expression as PCRE2 reads it, if each set of characters is replaced by a class of symbols. It has a
// callout, (?C), before each round of a group that may be repeated often, and before a set repeated so.
struct SplitSyntax {
  struct Part {
    std::string syntax;              // as it is, if `set` is nothing
    std::optional<std::size_t> set;  // an index into `sets`
  };
  std::vector<Part> parts;
  std::vector<CharacterSet> sets;  // all different
};

// Throws an Error at `where` that begins with `name` and quotes the expression.
SplitSyntax parse_split(std::string_view expression, const std::string& name, const std::string& where);

}  // namespace warpwright::text
