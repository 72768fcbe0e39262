// The ids in config.json of the tokens that begin and end a text.
#pragma once

#include <cstdint>
#include <optional>

namespace warpwright {

// nullopt: none, written as null.
struct BoundaryTokens {
  BoundaryTokens() = default;
  BoundaryTokens(std::int64_t both) : bos(both), eos(both) {}

  std::optional<std::int64_t> bos, eos;
};

}  // namespace warpwright
