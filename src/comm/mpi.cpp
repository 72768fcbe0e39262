#include "comm/mpi.hpp"

#include <fmt/format.h>
#include <mpi.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <exception>
#include <limits>
#include <numeric>
#include <random>
#include <utility>

#include "comm/floor.hpp"
#include "comm/host.hpp"
#include "comm/rank_store.hpp"
#include "core/error.hpp"

namespace warpwright {
namespace {

using Clock = std::chrono::steady_clock;

// The longest start, and how long before its end the store says which rank is missing.
constexpr std::chrono::seconds kStart(60), kFirst(1);

// A count in MPI is an int, so larger parts travel in pieces.
constexpr std::size_t kLargestMessage = std::size_t{1} << 30;

void check(int code, const char* call) {
  if (code == MPI_SUCCESS) return;
  char text[MPI_MAX_ERROR_STRING] = "";
  int length = 0;
  MPI_Error_string(code, text, &length);
  throw Error(fmt::format("{} failed: {}", call, std::string_view(text, static_cast<std::size_t>(length))),
              "exchange between ranks",
              "see why another rank has ended, and start again (train: with --resume)");
}

int world_rank() {
  int rank = 0;
  check(MPI_Comm_rank(MPI_COMM_WORLD, &rank), "MPI_Comm_rank");
  return rank;
}

int world_size() {
  int size = 0;
  check(MPI_Comm_size(MPI_COMM_WORLD, &size), "MPI_Comm_size");
  return size;
}

template <class T, class F>
void for_each_message(std::span<T> part, const F& f) {
  constexpr std::size_t kMost = kLargestMessage / sizeof(T);
  for (std::size_t at = 0; at < part.size(); at += kMost) {
    const std::span<T> message = part.subspan(at, std::min(kMost, part.size() - at));
    f(message.data(), static_cast<int>(message.size()));
  }
}

void wait_for(std::vector<MPI_Request>& requests) {
  check(MPI_Waitall(static_cast<int>(requests.size()), requests.data(), MPI_STATUSES_IGNORE), "MPI_Waitall");
}

class Mpi final : public Comm {
 public:
  explicit Mpi(std::shared_ptr<Watchdog> watchdog) : Comm(world_rank(), world_size(), std::move(watchdog)) {}
  // After an exception the launcher ends the others.
  ~Mpi() override {
    if (std::uncaught_exceptions() == 0) MPI_Finalize();
  }

  // Connects the store, by which the ranks note a lost one.
  void connect_store(const Launch& launch, const std::string& command, Clock::time_point deadline,
                     const std::shared_ptr<Watchdog>& watchdog) {
    const std::vector<std::string> machines = all_gather(machine_id() + host_name());  // not two containers
    const bool is_one = std::ranges::count(machines, machines.front()) == size();
    const std::string address = launch.address.empty() ? host_name() : launch.address;
    StoreOptions options = store_options(launch, command);
    options.patience = std::max<std::chrono::milliseconds>(
        std::chrono::duration_cast<std::chrono::milliseconds>(deadline - Clock::now()) - kFirst, kFirst);
    options.address = is_one ? "127.0.0.1" : all_gather(address).front();
    std::random_device random;  // so that nobody else can greet as a rank
    options.session = all_gather(fmt::format("{:08x}{:08x}", random(), random())).front();
    options.agree = [this](int port) { return static_cast<int>(gathered(*this, {double(port)}).front()); };
    store_ = std::make_unique<RankStore>(std::move(options), watchdog);
  }
  std::optional<Ending> fail(Ending ending) const override { return store_->fail(ending); }

  void all_to_all(const std::vector<Outgoing>& send, const std::vector<Incoming>& receive,
                  const Stream&) const override {
    const auto operation = watched("exchange of tensors");
    std::vector<MPI_Request> requests;
    for (const Incoming& part : receive) {
      for_each_message(part.bytes, [&](std::byte* bytes, int count) {
        check(MPI_Irecv(bytes, count, MPI_BYTE, part.from, 0, MPI_COMM_WORLD, &requests.emplace_back()),
              "MPI_Irecv");
      });
    }
    for (const Outgoing& part : send) {
      for_each_message(part.bytes, [&](const std::byte* bytes, int count) {
        check(MPI_Isend(bytes, count, MPI_BYTE, part.to, 0, MPI_COMM_WORLD, &requests.emplace_back()),
              "MPI_Isend");
      });
    }
    wait_for(requests);
  }

  void reduce(const std::vector<Summed>& places, const Stream&) const override {
    const auto operation = watched("sum of tensors");
    std::vector<MPI_Request> requests;
    for (const Summed& place : places) {
      for_each_message(place.values, [&](float* values, int count) {
        const bool owns = place.owner == rank();
        check(MPI_Ireduce(owns ? MPI_IN_PLACE : values, owns ? values : nullptr, count, MPI_FLOAT, MPI_SUM,
                          place.owner, MPI_COMM_WORLD, &requests.emplace_back()),
              "MPI_Ireduce");
      });
    }
    wait_for(requests);
  }

 private:
  std::vector<std::string> all_gather_piece(std::string_view mine) const override {
    const auto operation = watched("exchange of texts");
    const auto ranks = static_cast<std::size_t>(size());
    std::vector<int> counts(ranks), starts(ranks);
    const int count = static_cast<int>(mine.size());
    check(MPI_Allgather(&count, 1, MPI_INT, counts.data(), 1, MPI_INT, MPI_COMM_WORLD), "MPI_Allgather");
    const auto bytes = std::accumulate(counts.begin(), counts.end(), std::int64_t{0});
    if (bytes > std::numeric_limits<int>::max()) {
      throw Error(fmt::format("the texts of all ranks have {} bytes, more than MPI can count", bytes),
                  "exchange between ranks", "start fewer ranks");
    }
    std::exclusive_scan(counts.begin(), counts.end(), starts.begin(), 0);
    std::string all(static_cast<std::size_t>(bytes), '\0');
    check(MPI_Allgatherv(mine.data(), count, MPI_BYTE, all.data(), counts.data(), starts.data(), MPI_BYTE,
                         MPI_COMM_WORLD),
          "MPI_Allgatherv");
    std::vector<std::string> texts;
    for (std::size_t r = 0; r < ranks; ++r) {
      texts.push_back(all.substr(static_cast<std::size_t>(starts[r]), static_cast<std::size_t>(counts[r])));
    }
    return texts;
  }

  std::vector<std::string> gather_piece(std::string_view mine) const override {
    const auto operation = watched("exchange of texts");
    const std::size_t ranks = rank() == 0 ? static_cast<std::size_t>(size()) : 0;
    std::vector<int> counts(ranks);
    const int count = static_cast<int>(mine.size());
    check(MPI_Gather(&count, 1, MPI_INT, counts.data(), 1, MPI_INT, 0, MPI_COMM_WORLD), "MPI_Gather");
    std::vector<std::string> texts;
    for (const int bytes : counts) texts.emplace_back(static_cast<std::size_t>(bytes), '\0');
    std::vector<MPI_Request> requests;
    for (std::size_t r = 0; r < ranks; ++r) {
      check(MPI_Irecv(texts[r].data(), counts[r], MPI_BYTE, static_cast<int>(r), 0, MPI_COMM_WORLD,
                      &requests.emplace_back()),
            "MPI_Irecv");
    }
    check(MPI_Isend(mine.data(), count, MPI_BYTE, 0, 0, MPI_COMM_WORLD, &requests.emplace_back()),
          "MPI_Isend");
    wait_for(requests);
    return texts;
  }

  std::unique_ptr<RankStore> store_;
};

}  // namespace

std::unique_ptr<const Comm> connect_by_mpi(const Launch& launch, const RankOptions& options) {
  auto watchdog = std::make_shared<Watchdog>(launch.rank, options.limit, options.lost);
  watchdog->set_others({.fail = [job = launch.job] { return floor_of_launcher(job).take(Ending::loss); },
                        .wait_too_long = {}});
  const std::chrono::seconds limit = options.limit.count() == 0 ? kStart : std::min(options.limit, kStart);
  const Clock::time_point deadline = Clock::now() + limit;
  const Watchdog::Operation start(watchdog.get(), "start of MPI", limit,
                                  "see which rank has not started, and start all ranks again");
  int provided = 0;
  check(MPI_Init_thread(nullptr, nullptr, MPI_THREAD_FUNNELED, &provided), "MPI_Init_thread");
  check(MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN), "MPI_Comm_set_errhandler");
  auto comm = std::make_unique<Mpi>(watchdog);
  if (comm->size() != launch.ranks) {
    throw Error(fmt::format("{} ranks were started, but MPI connects {}", launch.ranks, comm->size()),
                "launcher", "start them with the mpirun of the MPI that this build uses");
  }
  comm->connect_store(launch, options.command, deadline, watchdog);
  return comm;
}

}  // namespace warpwright
