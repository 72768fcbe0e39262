// An Error that the operating system reported.
#pragma once

#include <string>

#include "core/error.hpp"

namespace warpwright {

// Thrown by throw_system_error().
class SystemError : public Error {
 public:
  SystemError(int code, std::string what, std::string where, std::string remedy);

  int code() const { return code_; }  // of errno

 private:
  int code_;
};

}  // namespace warpwright
