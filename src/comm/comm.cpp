#include "comm/comm.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <optional>
#include <thread>
#include <utility>

#include "comm/floor.hpp"
#include "comm/mpi.hpp"
#include "comm/rank_store.hpp"
#include "core/error.hpp"

namespace warpwright {
namespace {

class Single final : public Comm {
 public:
  Single() : Comm(0, 1, nullptr) {}
  void all_to_all(const std::vector<Outgoing>& send, const std::vector<Incoming>& receive,
                  const Stream&) const override {
    const auto fits = [](const Outgoing& out, const Incoming& in) {
      return out.to == 0 && in.from == 0 && out.bytes.size() == in.bytes.size();
    };
    if (!std::ranges::equal(send, receive, fits)) {
      throw Error("a single rank sends and receives different parts", "exchange between ranks",
                  "this is a bug worth reporting");
    }
    for (std::size_t i = 0; i < send.size(); ++i) {
      std::ranges::copy(send[i].bytes, receive[i].bytes.begin());
    }
  }
  void reduce(const std::vector<Summed>&, const Stream&) const override {}

 private:
  std::vector<std::string> all_gather_piece(std::string_view mine) const override {
    return {std::string(mine)};
  }
  std::vector<std::string> gather_piece(std::string_view mine) const override { return {std::string(mine)}; }
};

class Imagined final : public Comm {
 public:
  Imagined(int rank, int ranks) : Comm(rank, ranks, nullptr) {}
  void all_to_all(const std::vector<Outgoing>&, const std::vector<Incoming>&, const Stream&) const override {
    refuse();
  }
  void reduce(const std::vector<Summed>&, const Stream&) const override { refuse(); }

 private:
  std::vector<std::string> all_gather_piece(std::string_view) const override { refuse(); }
  std::vector<std::string> gather_piece(std::string_view) const override { refuse(); }
  [[noreturn]] static void refuse() {
    throw Error("a planned rank cannot exchange anything", "exchange between ranks",
                "this is a bug worth reporting");
  }
};

// Ranks that a store connects.
class Stored final : public Comm {
 public:
  Stored(const Launch& launch, const std::string& command, const std::shared_ptr<Watchdog>& watchdog)
      : Comm(launch.rank, launch.ranks, watchdog), store_(store_options(launch, command), watchdog) {}
  std::optional<Ending> fail(Ending ending) const override { return store_.fail(ending); }
  void all_to_all(const std::vector<Outgoing>&, const std::vector<Incoming>&, const Stream&) const override {
    refuse();
  }
  void reduce(const std::vector<Summed>&, const Stream&) const override { refuse(); }

 private:
  std::vector<std::string> all_gather_piece(std::string_view mine) const override {
    const auto operation = watched("exchange of texts");
    return store_.all_gather(mine);
  }
  std::vector<std::string> gather_piece(std::string_view mine) const override {
    const auto operation = watched("exchange of texts");
    return store_.gather(mine);
  }
  [[noreturn]] static void refuse() {
    throw Error("ranks without MPI cannot exchange tensors of CPUs", "exchange between ranks",
                "start them with mpirun, or train on GPUs");
  }

  mutable RankStore store_;
};

class Repeated final : public Comm::Exchange {
 public:
  explicit Repeated(std::function<void(const Stream&)> call) : call_(std::move(call)) {}
  void run(const Stream& stream) const override { call_(stream); }

 private:
  std::function<void(const Stream&)> call_;
};

}  // namespace

std::unique_ptr<const Comm::Exchange> Comm::prepare(std::vector<Outgoing> send,
                                                    std::vector<Incoming> receive) const {
  return std::make_unique<Repeated>([this, send = std::move(send), receive = std::move(receive)](
                                        const Stream& stream) { all_to_all(send, receive, stream); });
}

std::unique_ptr<const Comm::Exchange> Comm::prepare_reduce(std::vector<Summed> places) const {
  return std::make_unique<Repeated>(
      [this, places = std::move(places)](const Stream& stream) { reduce(places, stream); });
}

std::vector<std::string> Comm::all_gather(std::string_view mine) const {
  if (mine.size() > kMostText) {
    throw Error(fmt::format("has {} bytes, and at most {} can be sent", mine.size(), kMostText),
                "text for other ranks", "this is a bug worth reporting");
  }
  return all_gather_piece(mine);
}

std::vector<std::string> Comm::gather(std::string_view mine) const {
  std::vector<std::string> all(rank_ == 0 ? static_cast<std::size_t>(size_) : 0);
  const double most = std::ranges::max(gathered(*this, {static_cast<double>(mine.size())}));
  for (std::size_t at = 0; static_cast<double>(at) < most; at += kMostText) {
    const std::vector<std::string> pieces = gather_piece(mine.substr(std::min(at, mine.size()), kMostText));
    for (std::size_t r = 0; r < all.size(); ++r) all[r] += pieces[r];
  }
  return all;
}

std::vector<double> gathered(const Comm& comm, const std::vector<double>& mine) {
  std::vector<double> all;
  const char* bytes = reinterpret_cast<const char*>(mine.data());
  for (const std::string& part : comm.all_gather({bytes, mine.size() * sizeof(double)})) {
    if (part.size() % sizeof(double) != 0) {
      throw Error("another rank has sent a part of a number", "exchange between ranks",
                  "start all ranks with one program");
    }
    const std::size_t before = all.size();
    all.resize(before + part.size() / sizeof(double));
    if (!part.empty()) std::memcpy(all.data() + before, part.data(), part.size());
  }
  return all;
}

const Comm& single_rank() {
  static const Single single;
  return single;
}

std::unique_ptr<const Comm> imagined_rank(int rank, int ranks) {
  return std::make_unique<Imagined>(rank, ranks);
}

std::unique_ptr<const Comm> connect_ranks(const Launch& launch, const RankOptions& options) {
  switch (launch.by) {
    case Launch::By::nobody:
      return std::make_unique<Single>();
    case Launch::By::mpi:
      return connect_by_mpi(launch, options);
    case Launch::By::store:
      break;
  }
  return std::make_unique<Stored>(launch, options.command,
                                  std::make_shared<Watchdog>(launch.rank, options.limit, options.lost));
}

std::optional<Ending> fail_before_connecting(const Launch& launch, Ending ending) {
  // If another rank has the same error, its launcher ends this one meanwhile, or that rank says it.
  constexpr std::chrono::seconds kOthersFirst(10), kForOthers(5);
  if (launch.by == Launch::By::nobody) return std::nullopt;
  if (launch.by == Launch::By::mpi) {
    const Floor floor = floor_of_launcher(launch.job);
    const auto late = std::chrono::steady_clock::now() + kOthersFirst;
    while (launch.rank != 0 && !floor.taken() && std::chrono::steady_clock::now() < late)
      std::this_thread::sleep_for(std::chrono::milliseconds(100));
    return floor.take(ending);
  }
  StoreOptions options = store_options(launch, "");
  options.patience = launch.rank == 0 ? kForOthers : kOthersFirst;
  return Store::fail_at_once(options, ending);
}

}  // namespace warpwright
