// The one error type of the library: what went wrong, where, and what to do about it.
#pragma once

#include <stdexcept>
#include <string>

namespace warpwright {

class Error : public std::runtime_error {
 public:
  // what: the fact ("holds 12 bytes, a header needs 1024"). where: the file, flag, tensor or operation that
  // it concerns. remedy: what the user can do. what() reads "where: what; remedy".
  Error(std::string what, std::string where, std::string remedy);

  const std::string& problem() const { return problem_; }
  const std::string& where() const { return where_; }
  const std::string& remedy() const { return remedy_; }

 private:
  std::string problem_, where_, remedy_;
};

// Wrong usage, such as flags that exclude each other. The command line then exits with 2 instead of 1.
class UsageError : public Error {
 public:
  using Error::Error;
};

// Throws an Error for the current errno: "where: cannot ACTION: No space left on device; remedy".
[[noreturn]] void throw_system_error(const std::string& action, const std::string& where,
                                     const std::string& remedy);

// The remedy for a path that cannot be read or written.
inline constexpr const char* kCheckPath = "check the path and its permissions";

}  // namespace warpwright
