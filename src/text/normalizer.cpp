#include "text/normalizer.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "core/error.hpp"
#include "text/canonical.hpp"

namespace warpwright::text {
namespace {

constexpr std::size_t kMostGrowth = 16;
constexpr std::size_t kLongestPattern = 64;  // bytes; limits the cost of one position in a text

}  // namespace

void replace_text(std::string_view text, std::string_view from, std::string_view to, std::string& out) {
  std::size_t begin = 0;
  for (std::size_t found; (found = text.find(from, begin)) != std::string_view::npos;
       begin = found + from.size()) {
    out.append(text, begin, found - begin).append(to);
  }
  out.append(text, begin, text.size() - begin);
}

Normalizer::Normalizer(std::vector<NormalizerStep> steps, const std::string& where)
    : steps_(std::move(steps)) {
  std::size_t growth = 1;
  for (const NormalizerStep& step : steps_) {
    if (step.kind == NormalizerStep::Kind::nfc) continue;
    const bool replaces = step.kind == NormalizerStep::Kind::replace;
    if (replaces && (step.from.empty() || step.from.size() > kLongestPattern)) {
      throw Error(fmt::format("a normalizer replaces a text of {} bytes, expected 1 to {}", step.from.size(),
                              kLongestPattern),
                  where, "use a normalizer such as Llama's");
    }
    // Prepending adds to a text of at least one byte.
    const std::size_t least = replaces ? step.from.size() : 1;
    growth *= replaces ? std::max<std::size_t>(1, (step.to.size() + least - 1) / least) : 1 + step.to.size();
    if (growth > kMostGrowth) {
      throw Error(fmt::format("the normalizer could make a text over {} times as long", kMostGrowth), where,
                  "use a normalizer such as Llama's");
    }
  }
}

std::string_view Normalizer::normalize(std::string_view text, bool continues, Buffers& buffers) const {
  std::string *next = &buffers.a, *other = &buffers.b;
  for (const NormalizerStep& step : steps_) {
    const std::string_view before = text;
    switch (step.kind) {
      case NormalizerStep::Kind::nfc:
        text = to_nfc(text, *next);
        break;
      case NormalizerStep::Kind::prepend:
        if (!text.empty() && !continues) text = next->assign(step.to).append(text);
        break;
      case NormalizerStep::Kind::replace:
        if (text.find(step.from) == std::string_view::npos) break;
        next->clear();
        replace_text(text, step.from, step.to, *next);
        text = *next;
        break;
    }
    if (text.data() != before.data()) std::swap(next, other);
  }
  return text;
}

}  // namespace warpwright::text
