// Ranks: the processes that a launcher such as mpirun has started to train one model together.
//
// The library only moves bytes between them, in host memory. Every rank must make the same calls in the same
// order; a call returns when this rank's part is done.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace warpwright {

class Comm {
 public:
  Comm(const Comm&) = delete;
  Comm& operator=(const Comm&) = delete;
  virtual ~Comm() = default;

  int rank() const { return rank_; }
  int size() const { return size_; }

  // Bytes for a rank, or from one. Two ranks exchange their parts for each other in the order of the lists.
  struct Outgoing {
    int to;
    std::span<const std::byte> bytes;
  };
  struct Incoming {
    int from;
    std::span<std::byte> bytes;
  };
  virtual void all_to_all(const std::vector<Outgoing>& send, const std::vector<Incoming>& receive) const = 0;
  // The texts of all ranks, by rank. For small ones: every rank gets everything.
  virtual std::vector<std::string> all_gather(std::string_view mine) const = 0;
  // Waits until all ranks are here.
  void barrier() const { all_gather({}); }

 protected:
  Comm(int rank, int size) : rank_(rank), size_(size) {}

 private:
  int rank_, size_;
};

// The numbers of all ranks: those of rank 0 first, then those of rank 1, and so on.
std::vector<double> gathered(const Comm& comm, const std::vector<double>& mine);

// A process without others.
const Comm& single_rank();

// This process among those that its launcher has started. Without a launcher it is alone. Throws Error if
// there are others and they cannot be reached. One call per process: the ranks part when the object ends. If
// an exception ends it, all ranks end, and this one last: it can still say why.
std::unique_ptr<const Comm> connect_ranks();

}  // namespace warpwright
