// The three products of a linear layer y = x·Wᵀ, with x (M, K) and W (N, K).
#pragma once

#include <cstdint>
#include <string_view>

namespace warpwright::roofline {

enum class Direction : std::uint8_t { forward, dx, dw };
inline constexpr Direction kDirections[] = {Direction::forward, Direction::dx, Direction::dw};
constexpr std::string_view name_of(Direction direction) {
  constexpr std::string_view kNames[] = {"forward", "dx", "dw"};
  return kNames[static_cast<int>(direction)];
}
Direction direction_named(std::string_view name);  // throws UsageError for an unknown name

}  // namespace warpwright::roofline
