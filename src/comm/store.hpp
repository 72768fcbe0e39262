// Store: small texts between ranks, over TCP. MPI's ranks use it only to notice a lost one.
//
// Rank 0 listens, and every rank, rank 0 included, connects to it. The store carries texts and signs of life,
// and tells every rank when another one ends. One rank then says why: the first that fails, or rank 0 if a
// rank is lost. If rank 0 is lost, one rank of each host says so (floor.hpp). The others end silently, and
// all with one exit code. The store never carries a tensor.
#pragma once

#include <chrono>
#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "comm/ending.hpp"

namespace warpwright {

struct StoreOptions {
  int rank = 0, ranks = 1;
  std::string address;  // of rank 0: a host's name or an IP address
  int port = 0;
  std::string session{};                       // of the run: ranks of another one are refused
  std::string job{};                           // the launcher's name of the run on this host. "": none
  std::string command{};                       // what this rank does: rank 0 compares it. "": unknown
  std::chrono::milliseconds patience{60'000};  // until all ranks have connected
  std::chrono::milliseconds greeting{10'000};  // until a connection says which rank it is
  std::chrono::milliseconds heartbeat{5'000};  // between signs of life
  std::chrono::milliseconds silence{15'000};   // after which a rank counts as lost
  // Tells all ranks rank 0's port. Rank 0 passes the port at which it listens, the others 0. If null, all use
  // `port`.
  std::function<int(int port)> agree{};
  std::function<bool()> is_waiting{};  // whether this rank waits for others
};

// The most bytes of a text.
inline constexpr std::size_t kMostText = std::size_t{1} << 20;

inline constexpr const char* kSeeThatRank =
    "see the output of that rank, and start again (train: with --resume)";

class Store {
 public:
  // Called from the store's thread when the ranks cannot go on. May be called again. If it returns,
  // all_gather() fails from then on.
  using Lost = std::function<void(const Verdict& verdict)>;

  // Returns when all ranks have connected. Throws Error if rank 0 cannot listen or refuses this rank, and
  // LossError if a rank does not come or ends before.
  Store(const StoreOptions& options, Lost lost);
  Store(const Store&) = delete;
  Store& operator=(const Store&) = delete;
  // Leaves the other ranks. If an exception ends this object, the others end, too.
  ~Store();

  // The texts of all ranks, by rank: at most kMostText bytes of each. Every rank must make the same calls.
  std::vector<std::string> all_gather(std::string_view mine);
  // The same on rank 0, and nothing elsewhere.
  std::vector<std::string> gather(std::string_view mine);

  // Ends the other ranks because of an error of this one, which says why. If another rank says why, returns
  // that rank's ending; every rank then ends with it.
  std::optional<Ending> fail(Ending ending);
  // Ends all ranks because this one has waited for `limit`. Rank 0 names those that do not wait.
  void wait_too_long(std::chrono::seconds limit);
  // fail() for a process with an error before it has a store. Rank 0 waits for the others to tell them.
  static std::optional<Ending> fail_at_once(const StoreOptions& options, Ending ending);

 private:
  class Network;  // with the library's types
  std::unique_ptr<Network> network_;
};

// A port of this machine that no process uses, for ranks that all run here.
int free_local_port();

}  // namespace warpwright
