#include "comm/ending.hpp"

namespace warpwright {

Ending ending_of(const std::exception& error) {
  if (dynamic_cast<const LossError*>(&error)) return Ending::loss;
  return dynamic_cast<const UsageError*>(&error) ? Ending::wrong_usage : Ending::error;
}

}  // namespace warpwright
