// Ranks: the processes that a launcher such as mpirun has started to train one model together.
//
// Libraries move bytes between them: MPI for CPUs, and NCCL for GPUs. Only reduce() lets them add. Texts go
// through MPI or a store (store.hpp). Every rank must make the same calls in the same order. A watchdog ends
// a rank that waits too long, or for a rank that has died (watchdog.hpp).
#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "comm/launch.hpp"
#include "comm/store.hpp"
#include "comm/watchdog.hpp"
#include "runtime/stream.hpp"

namespace warpwright {

// One thread of a rank makes these calls (MPI_THREAD_FUNNELED). If another rank is lost, a call throws
// LossError, or the watchdog ends the process.
class Comm {
 public:
  Comm(const Comm&) = delete;
  Comm& operator=(const Comm&) = delete;
  virtual ~Comm() = default;

  int rank() const { return rank_; }
  int size() const { return size_; }

  // Bytes for a rank, or from one. The n-th part that A sends to B fills the n-th part that B receives
  // from A; both have the same size, which may be 0. Over several GPUs, a part for the rank itself is not
  // copied.
  struct Outgoing {
    int to;
    std::span<const std::byte> bytes;
  };
  struct Incoming {
    int from;
    std::span<std::byte> bytes;
  };
  // The bytes are in the memory of the stream's device. On a CPU the call returns when this rank's part is
  // done. On a GPU it returns before, and the exchange comes in the stream's order.
  virtual void all_to_all(const std::vector<Outgoing>& send, const std::vector<Incoming>& receive,
                          const Stream& stream) const = 0;
  // Numbers to be added up over the ranks. The owner's place gets the sum, and the others keep what they
  // have.
  struct Summed {
    int owner;
    std::span<float> values;
  };
  // Adds up each place over all ranks, in the library's own order: the bits of a sum may depend on the number
  // of ranks and on the machine. Every rank gives places of the same owners and sizes in the same order.
  // Memory and stream as in all_to_all().
  virtual void reduce(const std::vector<Summed>& places, const Stream& stream) const = 0;
  // An exchange between places that stay the same. It may be run any number of times; every rank must run it
  // equally often.
  class Exchange {
   public:
    virtual ~Exchange() = default;
    // As all_to_all() or reduce().
    virtual void run(const Stream& stream) const = 0;
  };
  // Every rank makes this call. The memory and this object must outlive the result.
  virtual std::unique_ptr<const Exchange> prepare(std::vector<Outgoing> send,
                                                  std::vector<Incoming> receive) const;
  std::unique_ptr<const Exchange> prepare_reduce(std::vector<Summed> places) const;
  // The texts of all ranks, by rank. Throws Error for more than kMostText bytes, since every rank gets
  // everything.
  std::vector<std::string> all_gather(std::string_view mine) const;
  // The texts of all ranks, by rank, on rank 0, and nothing elsewhere. They may be of any size.
  std::vector<std::string> gather(std::string_view mine) const;
  // Returns when all ranks have called it.
  void barrier() const { all_gather({}); }
  // The watchdog times how long the stream takes to reach this point.
  virtual void watch(const Stream&) const {}
  // As Store::fail().
  virtual std::optional<Ending> fail(Ending) const { return std::nullopt; }

  // Seconds of the host's time that exchanges have taken so far. Most of it is spent waiting for other ranks.
  double seconds_in_exchanges() const { return watchdog_ ? watchdog_->seconds_in_operations() : 0; }

  // The step that this rank works on, for the watchdog's line.
  void at_step(std::int64_t step) const {
    if (watchdog_) watchdog_->set_step(step);
  }

 protected:
  Comm(int rank, int size, std::shared_ptr<Watchdog> watchdog)
      : rank_(rank), size_(size), watchdog_(std::move(watchdog)) {}
  // A Comm over the same ranks as another.
  explicit Comm(const Comm* ranks) : rank_(ranks->rank_), size_(ranks->size_), watchdog_(ranks->watchdog_) {}

  // As all_gather() and gather(), with at most kMostText bytes.
  virtual std::vector<std::string> all_gather_piece(std::string_view mine) const = 0;
  virtual std::vector<std::string> gather_piece(std::string_view mine) const = 0;

  // While the result lives, the watchdog times how long this call takes.
  Watchdog::Operation watched(const char* operation) const { return {watchdog_.get(), operation}; }
  Watchdog* watchdog() const { return watchdog_.get(); }

 private:
  int rank_, size_;
  std::shared_ptr<Watchdog> watchdog_;  // null: a single rank
};

// The numbers of all ranks: those of rank 0 first, then those of rank 1, and so on.
std::vector<double> gathered(const Comm& comm, const std::vector<double>& mine);

// The only rank of a process that no launcher started.
const Comm& single_rank();
// A rank of a run that does not exist, to plan what it would hold. An exchange with the others is an Error.
std::unique_ptr<const Comm> imagined_rank(int rank, int ranks);

struct RankOptions {
  std::chrono::seconds limit{600};  // of an exchange; 0: none
  Watchdog::Lost lost = [](const std::string&, Ending) {};
  std::string command{};  // the same for all ranks
};

// This process among those that its launcher has started. Throws Error if they have another command, and
// LossError if they cannot be reached or one is lost. One call per process: destroying the object disconnects
// the ranks.
std::unique_ptr<const Comm> connect_ranks(const Launch& launch, const RankOptions& options = {});

// For a process with an error before connect_ranks(): as Store::fail(). Rank 0 says why before it makes this
// call, which waits for the others.
std::optional<Ending> fail_before_connecting(const Launch& launch, Ending ending);

}  // namespace warpwright
