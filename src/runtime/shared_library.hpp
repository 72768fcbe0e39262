// A library that is loaded on first use, so that the program starts without it.
#pragma once

#include <dlfcn.h>
#include <fmt/format.h>

#include <initializer_list>
#include <string>

namespace warpwright {

class SharedLibrary {
 public:
  // The first of these files that can be loaded. It is never closed: a library that has launched kernels
  // cannot be unloaded safely.
  explicit SharedLibrary(std::initializer_list<const char*> names) {
    std::string failures;
    for (const char* name : names) {
      file_ = dlopen(name_ = name, RTLD_NOW | RTLD_LOCAL);
      if (file_) return;
      failures += fmt::format("{}{}", failures.empty() ? "" : "; ", dlerror());  // names the file
    }
    reason_ = fmt::format("cannot be loaded: {}", failures);
  }

  template <class Function>
  void find(const char* name, Function& function) {
    if (!file_) return;
    function = reinterpret_cast<Function>(dlsym(file_, name));
    if (!function && reason_.empty()) reason_ = fmt::format("{} has no {}", name_, name);
  }

  // Why no file could be loaded, or which function it lacks; or "".
  const std::string& reason() const { return reason_; }

 private:
  void* file_ = nullptr;
  const char* name_ = "";
  std::string reason_;
};

}  // namespace warpwright
