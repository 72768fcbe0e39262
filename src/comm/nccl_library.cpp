#include "comm/nccl_library.hpp"

#include <fmt/format.h>

#include <cstdlib>
#include <string>

#include "comm/ending.hpp"
#include "core/error.hpp"
#include "runtime/shared_library.hpp"

namespace warpwright::nccl {
namespace {

SharedLibrary load() {
  // Nothing here needs multicast, and setting it up fails in some containers.
  ::setenv("NCCL_NVLS_ENABLE", "0", 0);
  return SharedLibrary{"libnccl.so.2"};
}

struct Loaded {
  SharedLibrary file = load();
  Library library{};

  Loaded() {
    file.find("ncclGetUniqueId", library.unique_id);
    file.find("ncclCommInitRank", library.init);
    file.find("ncclCommDestroy", library.destroy);
    file.find("ncclCommGetAsyncError", library.asynchronous_error);
    file.find("ncclGetErrorString", library.error_string);
    file.find("ncclGetLastError", library.last_error);
    file.find("ncclGroupStart", library.group_start);
    file.find("ncclGroupEnd", library.group_end);
    file.find("ncclSend", library.send);
    file.find("ncclRecv", library.receive);
    file.find("ncclReduce", library.reduce);
  }
};

}  // namespace

const Library& library() {
  static const Loaded once;
  if (const std::string& reason = once.file.reason(); !reason.empty()) {
    throw Error(
        reason, "NCCL",
        "install NCCL (Debian and Ubuntu: libnccl2; or the Python package nvidia-nccl-cu13) and see that "
        "its folder is in LD_LIBRARY_PATH");
  }
  return once.library;
}

void check(ncclResult_t result, std::string_view doing) {
  if (result == ncclSuccess) return;
  const std::string_view details = library().last_error(nullptr);
  const std::string problem =
      fmt::format("NCCL: {}{}{}", library().error_string(result), details.empty() ? "" : ": ", details);
  if (result == ncclRemoteError) {
    throw LossError(problem, std::string(doing),
                    "see which rank has ended, and start again (train: with --resume)");
  }
  throw Error(problem, std::string(doing),
              "NCCL_DEBUG=INFO says more; see whether the GPUs are in order with nvidia-smi");
}

}  // namespace warpwright::nccl
