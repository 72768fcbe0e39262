// Ending: how ranks end that cannot go on. All of them end like the one that says why.
#pragma once

#include <sysexits.h>

#include <cstdint>
#include <optional>
#include <string>

#include "core/error.hpp"

namespace warpwright {

// The exit codes. A new start may mend a loss.
enum class Ending : std::uint8_t { error = 1, wrong_usage = 2, loss = EX_TEMPFAIL };

// Another rank is lost, or has not come.
class LossError : public Error {
 public:
  using Error::Error;
};

Ending ending_of(const std::exception& error);

// The end of a rank.
struct Verdict {
  struct Reason {
    std::string problem, remedy;
  };
  Ending ending = Ending::error;
  std::optional<Reason> reason{};  // for this rank to say; empty: another one says why
};

}  // namespace warpwright
