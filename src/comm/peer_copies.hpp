// Exchanges between the GPUs of one machine by their copy engines. NCCL's kernels would take multiprocessors
// from what is computed meanwhile.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "comm/comm.hpp"
#include "runtime/memory.hpp"

namespace warpwright {

class PeerCopies {
 public:
  // Null if a rank's GPU cannot write to the memory of all others, or if the user wants NCCL alone. `texts`
  // must outlive the result. Every rank makes this call.
  static std::unique_ptr<PeerCopies> connect(const Comm& texts, Device device);
  PeerCopies(const PeerCopies&) = delete;
  PeerCopies& operator=(const PeerCopies&) = delete;
  ~PeerCopies();

  // As Comm::prepare(). Each part is within one allocation.
  std::unique_ptr<const Comm::Exchange> prepare(const std::vector<Comm::Outgoing>& send,
                                                const std::vector<Comm::Incoming>& receive);

  struct Copy {
    std::byte* to;
    const std::byte* from;
    std::size_t bytes;
  };

 private:
  PeerCopies(const Comm& texts, Device device);
  // The address here of memory at a rank, whose allocation the handle names.
  std::byte* mapped(int rank, const std::string& handle);
  bool map_flags();
  std::vector<Copy> copies_to(int rank, const std::vector<Comm::Outgoing>& send, const std::string& places);

  const Comm& texts_;
  const Device device_;
  Buffer flags_;                            // the others write to them
  std::vector<std::byte*> flags_of_ranks_;  // by rank
  std::map<std::pair<int, std::string>, std::byte*> mapped_;
  std::size_t exchanges_ = 0;
};

}  // namespace warpwright
