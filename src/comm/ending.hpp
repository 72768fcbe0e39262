// Ending: how ranks end that cannot go on. All of them end like the one that says why.
#pragma once

#include <sysexits.h>

#include <cstdint>
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

// Why a rank ends. It says so unless the problem is "": then another rank does.
struct Verdict {
  Ending ending = Ending::error;
  std::string problem{}, remedy{};
};

}  // namespace warpwright
