#include "text/stop_texts.hpp"

#include <algorithm>
#include <utility>

namespace warpwright::text {
namespace {

// The number of bytes at the end of the text that could begin this stop text.
std::size_t begun_bytes(std::string_view text, std::string_view stop) {
  for (std::size_t size = std::min(text.size(), stop.size() - 1); size > 0; --size) {
    if (text.ends_with(stop.substr(0, size))) return size;
  }
  return 0;
}

}  // namespace

StopTexts::StopTexts(std::vector<std::string> stops) : stops_(std::move(stops)) {}

std::string StopTexts::push(std::string_view piece) {
  if (found_) return {};
  held_ += piece;
  std::size_t first = std::string::npos, begun = 0;
  for (const std::string& stop : stops_) {
    first = std::min(first, held_.find(stop));
    begun = std::max(begun, begun_bytes(held_, stop));
  }
  found_ = first != std::string::npos;
  const std::size_t ready = found_ ? first : held_.size() - begun;
  std::string out = held_.substr(0, ready);
  held_ = found_ ? std::string() : held_.substr(ready);
  return out;
}

std::string StopTexts::finish() {
  return std::exchange(held_, {});
}

}  // namespace warpwright::text
