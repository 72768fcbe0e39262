// NCCL, loaded on first use, so that the program starts without it.
#pragma once

#include <nccl.h>

#include <string_view>

namespace warpwright::nccl {

struct Library {
  decltype(&ncclGetUniqueId) unique_id;
  decltype(&ncclCommInitRank) init;
  decltype(&ncclCommDestroy) destroy;
  decltype(&ncclCommGetAsyncError) asynchronous_error;
  decltype(&ncclGetErrorString) error_string;
  decltype(&ncclGetLastError) last_error;
  decltype(&ncclGroupStart) group_start;
  decltype(&ncclGroupEnd) group_end;
  decltype(&ncclSend) send;
  decltype(&ncclRecv) receive;
  decltype(&ncclReduce) reduce;
};

// Throws Error if the library cannot be loaded.
const Library& library();

// Throws Error if a call has failed, and LossError if another rank is lost.
void check(ncclResult_t result, std::string_view doing);

}  // namespace warpwright::nccl
