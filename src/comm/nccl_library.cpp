#include "comm/nccl_library.hpp"

#include <dlfcn.h>
#include <fmt/format.h>

#include <cstdlib>
#include <string>

#include "core/error.hpp"

namespace warpwright::nccl {
namespace {

constexpr const char* kName = "libnccl.so.2";

struct Loaded {
  Library library{};
  std::string reason;  // why the library is not loaded, or ""

  Loaded() {
    // Sends and receives need no multicast, and setting it up fails in some containers.
    ::setenv("NCCL_NVLS_ENABLE", "0", 0);
    // The file is never closed: a library that has launched kernels cannot be unloaded safely.
    void* file = dlopen(kName, RTLD_NOW | RTLD_LOCAL);
    if (!file) {
      reason = fmt::format("{} is not found", kName);
      return;
    }
    find(file, "ncclGetUniqueId", library.unique_id);
    find(file, "ncclCommInitRank", library.init);
    find(file, "ncclCommDestroy", library.destroy);
    find(file, "ncclCommAbort", library.abort);
    find(file, "ncclCommGetAsyncError", library.asynchronous_error);
    find(file, "ncclGetErrorString", library.error_string);
    find(file, "ncclGetLastError", library.last_error);
    find(file, "ncclGroupStart", library.group_start);
    find(file, "ncclGroupEnd", library.group_end);
    find(file, "ncclSend", library.send);
    find(file, "ncclRecv", library.receive);
  }

 private:
  template <class Function>
  void find(void* file, const char* name, Function& function) {
    function = reinterpret_cast<Function>(dlsym(file, name));
    if (!function && reason.empty()) reason = fmt::format("{} has no {}", kName, name);
  }
};

}  // namespace

const Library& library() {
  static const Loaded once;
  if (!once.reason.empty()) {
    throw Error(
        once.reason, "NCCL",
        "install NCCL (Debian and Ubuntu: libnccl2; or the Python package nvidia-nccl-cu13) and see that "
        "its folder is in LD_LIBRARY_PATH");
  }
  return once.library;
}

void check(ncclResult_t result, std::string_view doing) {
  if (result == ncclSuccess) return;
  const std::string_view details = library().last_error(nullptr);
  throw Error(
      fmt::format("NCCL: {}{}{}", library().error_string(result), details.empty() ? "" : ": ", details),
      std::string(doing), "NCCL_DEBUG=INFO says more; see whether the GPUs are in order with nvidia-smi");
}

}  // namespace warpwright::nccl
