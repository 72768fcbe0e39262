#include "cli/plan_links.hpp"

#include <algorithm>
#include <chrono>
#include <string>
#include <vector>

#include "comm/host.hpp"
#include "runtime/memory.hpp"
#include "train/shards.hpp"

namespace warpwright::cli {
namespace {

constexpr std::int64_t kBytes = std::int64_t{64} << 20;  // that a rank sends at a time
constexpr int kTimes = 5;                                // the first makes the connections

// Bytes a second between this rank and its peers; 0 without any.
double measured_speed(Context& context, const Comm& comm, const std::vector<int>& peers) {
  HeapAllocator memory(context.device().device);
  const std::int64_t each = peers.empty() ? 0 : kBytes / static_cast<std::int64_t>(peers.size());
  std::vector<Comm::Outgoing> send;
  std::vector<Comm::Incoming> receive;
  for (const int peer : peers) {
    send.push_back({peer, bytes_of(memory.allocate("sent", DType::u8, {each}, Category::batch))});
    receive.push_back({peer, bytes_of(memory.allocate("received", DType::u8, {each}, Category::batch))});
  }
  double best = 0;
  for (int i = 0; i < kTimes; ++i) {
    comm.barrier();
    const auto start = std::chrono::steady_clock::now();
    if (!peers.empty()) comm.all_to_all(send, receive, context.stream());
    context.synchronize();
    const std::chrono::duration<double> time = std::chrono::steady_clock::now() - start;
    const double sent = static_cast<double>(each) * static_cast<double>(peers.size());
    if (i > 0) best = std::max(best, sent / time.count());
  }
  return best;
}

// The least of all ranks that have peers.
std::optional<double> slowest(const Comm& comm, double mine) {
  std::optional<double> least;
  for (const double speed : gathered(comm, {mine})) {
    if (speed > 0 && (!least || speed < *least)) least = speed;
  }
  return least;
}

}  // namespace

LinkSpeeds measured_links(Context& context, const Comm& comm) {
  const std::vector<std::string> machines = comm.all_gather(machine_id());
  std::vector<int> of_node, of_others;
  for (int r = 0; r < comm.size(); ++r) {
    if (r == comm.rank()) continue;
    const bool same =
        machines[static_cast<std::size_t>(r)] == machines[static_cast<std::size_t>(comm.rank())];
    (same ? of_node : of_others).push_back(r);
  }
  LinkSpeeds speeds;
  speeds.node = slowest(comm, measured_speed(context, comm, of_node));
  speeds.network = slowest(comm, measured_speed(context, comm, of_others));
  return speeds;
}

}  // namespace warpwright::cli
