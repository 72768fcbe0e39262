#include "cli/nearest.hpp"

#include <algorithm>
#include <cctype>
#include <vector>

namespace warpwright::cli {
namespace {

constexpr std::size_t kLongest = 64;  // longer than any name here

// Lower case, underscores as dashes, no leading dashes.
std::string bare(std::string_view word) {
  std::string text;
  for (const char c : word) {
    const char letter = c == '_' ? '-' : static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
    if (letter != '-' || !text.empty()) text += letter;
  }
  return text;
}

std::vector<std::string> words_of(const std::string& text) {
  std::vector<std::string> words(1);
  for (const char c : text) {
    if (c == '-') {
      words.emplace_back();
    } else {
      words.back() += c;
    }
  }
  return words;
}

// Edit distance: insertions, deletions, substitutions and swaps of neighbours ("optimal string alignment").
std::size_t edits(const std::string& a, const std::string& b) {
  std::vector<std::vector<std::size_t>> cost(a.size() + 1, std::vector<std::size_t>(b.size() + 1));
  for (std::size_t i = 0; i <= a.size(); ++i) {
    for (std::size_t j = 0; j <= b.size(); ++j) {
      if (i == 0 || j == 0) {
        cost[i][j] = i + j;
        continue;
      }
      const std::size_t replaced = cost[i - 1][j - 1] + (a[i - 1] == b[j - 1] ? 0 : 1);
      cost[i][j] = std::min({cost[i - 1][j] + 1, cost[i][j - 1] + 1, replaced});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1])
        cost[i][j] = std::min(cost[i][j], cost[i - 2][j - 2] + 1);
    }
  }
  return cost[a.size()][b.size()];
}

bool one_contains_the_other(const std::string& a, const std::string& b) {
  constexpr std::size_t kTelling = 3;  // letters
  const auto& [shorter, longer] =
      std::minmax(a, b, [](const auto& x, const auto& y) { return x.size() < y.size(); });
  return shorter.size() >= kTelling && longer.find(shorter) != std::string::npos;
}

// If all words of one are among the other's, the number of letters in the words they share; else 0.
std::size_t common_letters(const std::string& a, const std::string& b) {
  std::vector<std::string> fewer = words_of(a), more = words_of(b);
  if (fewer.size() > more.size()) std::swap(fewer, more);
  std::size_t letters = 0;
  for (const std::string& word : fewer) {
    const auto found = std::find_if(more.begin(), more.end(), [&](const std::string& other) {
      return word == other || one_contains_the_other(word, other);
    });
    if (found == more.end()) return 0;
    letters += std::min(word.size(), found->size());
  }
  return letters;
}

std::string initials(const std::string& text) {
  const std::vector<std::string> words = words_of(text);
  std::string letters;
  for (const std::string& word : words) letters += word.substr(0, 1);
  return words.size() > 1 ? letters : "";
}

constexpr double kLeastCommon = 0.3;  // --out is not much of --collective-timeout

// 0: not similar; 1: the same.
double similarity(const std::string& word, const std::string& candidate) {
  const auto shorter = static_cast<double>(std::min(word.size(), candidate.size()));
  const auto longer = static_cast<double>(std::max(word.size(), candidate.size()));
  const auto distance = static_cast<double>(edits(word, candidate));
  const double allowed = shorter < 3 ? 0 : std::max(1.0, shorter / 3);
  if (distance <= allowed) return 1 - distance / longer;
  if (initials(word) == candidate) return 0.5;
  const double common = static_cast<double>(common_letters(word, candidate)) / longer;
  return common >= kLeastCommon ? 0.5 * common : 0;
}

}  // namespace

std::optional<std::string> nearest(std::string_view word, std::span<const std::string> candidates) {
  if (word.size() > kLongest) return {};
  const std::string meant = bare(word);
  std::optional<std::string> best;
  double most = 0;
  for (const std::string& candidate : candidates) {
    const double s = similarity(meant, bare(candidate));
    if (s <= most) continue;
    most = s;
    best = candidate;
  }
  return best;
}

}  // namespace warpwright::cli
