// An allocation that failed: an Error of its own kind, so that the C ABI can report it as such.
#pragma once

#include "core/error.hpp"

namespace warpwright {

class OutOfMemory : public Error {
 public:
  using Error::Error;
};

}  // namespace warpwright
