#include "comm/store.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <asio/connect.hpp>
#include <asio/executor_work_guard.hpp>
#include <asio/io_context.hpp>
#include <asio/post.hpp>
#include <asio/steady_timer.hpp>
#include <condition_variable>
#include <exception>
#include <mutex>
#include <optional>
#include <stdexcept>
#include <thread>
#include <utility>

#include "comm/floor.hpp"
#include "comm/host.hpp"
#include "comm/store_connection.hpp"
#include "comm/store_server.hpp"
#include "core/error.hpp"

namespace warpwright {

using asio::error_code;
using asio::ip::tcp;
using store::Clock;
using store::Connection;
using store::Greeting;
using store::Kind;

// join() and fail_at_once() run the io_context until they return. After join() a thread does.
class Store::Network {
 public:
  Network(const StoreOptions& options, Lost lost)
      : options_(options),
        lost_(std::move(lost)),
        work_(io_.get_executor()),
        timer_(io_),
        farewell_(io_),
        listening_(io_) {
    options_.session.resize(std::min(options_.session.size(), store::kMostSession));
  }

  // Returns when all ranks have connected.
  void join() {
    try {
      open();
      connect();
      // Rank 0 ends the wait. Another program may not.
      const auto deadline = server_ ? Clock::time_point::max() : start_ + 2 * options_.patience;
      if (!wait_until(deadline, [this] { return welcomed_; })) throw not_rank_0();
    } catch (const Error& error) {
      refuse(error);  // it hears of no other error from here on
      if (!told_) told_ = ending_of_host(ending_of(error));
      if (server_ && told_) {
        server_->end_all(*told_);
        run_until(Clock::now() + kForLateRanks, [this] { return server_->connected() == options_.ranks; });
      }
      if (!server_ && is_taken_ && told_) {  // rank 0 may not have heard of it
        connection_->send(Kind::failed, store::packed({*told_}));
        run_until(Clock::now() + kRetry, [this] { return has_ended_; });
      }
      let_others_hear();
      if (told_) lost_({*told_});
      throw;
    }
    thread_ = std::thread([this] { io_.run(); });
  }

  std::optional<Ending> fail_at_once(Ending ending) {
    try {
      open();
      server_ ? tell_others(ending) : ask_rank_0(ending);
    } catch (const Error&) {  // the process has an error of its own to report
    }
    if (!told_) told_ = ending_of_host(ending);
    return options_.rank == 0 ? std::nullopt : told_;
  }

  // Tells the others that this rank cannot go on. The first thread that calls it says why, unless another
  // rank does.
  std::optional<Ending> fail(Ending ending) {
    std::unique_lock lock(mutex_);
    const bool is_first = !failing_;
    if (is_first) {
      failing_ = ending;
      asio::post(io_, [this, ending] { connection_->send(Kind::failed, store::packed({ending})); });
    }
    changed_.wait_for(lock, kMostFarewell, [this] { return may_speak_ || verdict_; });
    if (verdict_) return verdict_->ending;
    return is_first ? std::nullopt : failing_;
  }

  void wait_too_long(std::chrono::seconds limit) {
    asio::post(io_, [this, limit] { connection_->send(Kind::waits, std::to_string(limit.count())); });
  }

  void leave(bool failed) {
    asio::post(io_, [this, failed] {
      leaving_ = true;
      failed ? connection_->send(Kind::failed, store::packed({Ending::error})) : connection_->send(Kind::bye);
      leave_by_ = Clock::now() + (failed ? kMostFarewell : options_.silence);
      failed_ = failed;
      timer_.cancel();  // the next tick is now
    });
    thread_.join();
  }

  // kind: text for the parts on every rank, gathered for those on rank 0.
  std::vector<std::string> exchange(Kind kind, std::string_view mine) {
    std::unique_lock lock(mutex_);
    texts_.reset();
    asio::post(io_, [this, kind, text = std::string(mine)] { connection_->send(kind, text); });
    changed_.wait(lock, [this] { return texts_ || verdict_; });
    if (!texts_)
      throw Error(verdict_->reason ? verdict_->reason->problem : kEnded, "exchange between ranks",
                  kSeeThatRank);
    return *std::exchange(texts_, std::nullopt);
  }

 private:
  static constexpr std::chrono::milliseconds kMostFarewell{1000}, kFarewell{5}, kRetry{200};
  static constexpr std::chrono::seconds kForLateRanks{5};

  // Rank 0 listens from here on.
  void open() {
    if (options_.rank == 0) listen();
    if (options_.agree) options_.port = options_.agree(server_ ? server_->port() : 0);
    start_ = Clock::now();
  }

  // If the port belongs to rank 0 of a run that cannot be told from this one, that run must not end with it.
  void listen() {
    try {
      server_.emplace(io_, options_);
    } catch (const Error&) {
      run_until(Clock::now() + kRetry, [this] { return rank_0s().taken().has_value(); });
      is_second_ = rank_0s().taken().has_value();
      throw;
    }
    rank_0s().take(Ending::error);
  }

  // On rank 0, which has said why.
  void tell_others(Ending ending) {
    server_->end_all(ending);
    run_until(start_ + options_.patience, [this] { return server_->connected() == options_.ranks - 1; });
    let_others_hear();
  }

  void ask_rank_0(Ending ending) {
    connect();
    connection_->send(Kind::failed, store::packed({ending}));
    run_until(start_ + options_.patience, [this] { return has_ended_; });
  }

  // Returns when rank 0 has taken this rank. Throws Error if it cannot be reached, or if this process is not
  // to be a rank.
  void connect() {
    const auto deadline = start_ + options_.patience;
    listen_to_host();
    // Rank 0 listens already.
    const auto reached_by = server_ ? std::min(deadline, start_ + options_.greeting) : deadline;
    connection_ = std::make_shared<Connection>(connected(reached_by));
    connection_->read([this](Kind kind, std::string text) { receive(kind, std::move(text)); },
                      [this](Ending ending, const std::string& reason) { end(ending, reason); });
    seen_ = deadline;  // rank 0 may accept that late
    ticked_ = Clock::now();
    const Greeting greeting{options_.rank, options_.ranks, host_name(), options_.session, options_.command};
    connection_->send(Kind::hello, greeting.text());
    tick();
    if (!wait_until(deadline, [this] { return is_taken_; })) throw not_rank_0();
  }

  // Before all ranks have connected, one may have an error that only the ranks of its host can hear.
  void listen_to_host() {
    if (welcomed_ || refusal_) return;
    if (const auto ending = floor().taken()) return lose({*ending});
    listening_.expires_after(kRetry);
    listening_.async_wait([this](error_code) { listen_to_host(); });
  }

  // Tries until rank 0 listens.
  tcp::socket connected(Clock::time_point deadline) {
    error_code failed = asio::error::timed_out;  // of the last attempt that has ended
    while (true) {
      tcp::socket socket(io_);
      error_code unknown;
      const auto ends = tcp::resolver(io_).resolve(options_.address, std::to_string(options_.port), unknown);
      if (unknown) {
        failed = unknown;
      } else if (const auto result = attempted(socket, ends, deadline)) {
        failed = *result;
      }
      if (!failed) {
        socket.set_option(tcp::no_delay(true), failed);  // reading notes the failure
        return socket;
      }
      if (Clock::now() >= deadline) not_reached(failed.message(), bool(unknown));
      wait_until(std::min(deadline, Clock::now() + kRetry), [] { return false; });
    }
  }

  // Nothing if the attempt has not ended at the deadline.
  std::optional<error_code> attempted(tcp::socket& socket, const tcp::resolver::results_type& ends,
                                      Clock::time_point deadline) {
    std::optional<error_code> result;
    asio::async_connect(socket, ends, [&](error_code reason, const tcp::endpoint&) { result = reason; });
    if (run_until(deadline, [&] { return result || refusal_; }) && result) return result;
    socket.close();
    run_until(Clock::time_point::max(), [&] { return result.has_value(); });
    if (refusal_) std::rethrow_exception(refusal_);
    return std::nullopt;
  }

  // is_unknown: the address has no host.
  [[noreturn]] void not_reached(const std::string& reason, bool is_unknown) const {
    if (options_.rank == 0) {
      throw Error(fmt::format("MASTER_ADDR is not an address of this host, which runs rank 0: {}", reason),
                  place(), "set it to the host of rank 0");
    }
    const std::string problem = fmt::format("rank 0 cannot be reached there: {}", reason);
    if (is_unknown) throw Error(problem, place(), kCheckMaster);
    throw LossError(problem, place(), kCheckMaster);
  }
  Error not_rank_0() const { return {"does not answer as rank 0", place(), kCheckMaster}; }

  template <class Done>
  bool run_until(Clock::time_point deadline, const Done& done) {
    while (!done() && Clock::now() < deadline) io_.run_one_until(deadline);
    return done();
  }
  // Throws the reason why this process is no rank.
  template <class Done>
  bool wait_until(Clock::time_point deadline, const Done& done) {
    run_until(deadline, [&] { return refusal_ || done(); });
    if (refusal_) std::rethrow_exception(refusal_);
    return done();
  }
  void let_others_hear() {
    if (server_) run_until(Clock::now() + kRetry, [] { return false; });
  }

  void receive(Kind kind, std::string text) {
    seen_ = Clock::now();
    if (kind == Kind::alive) {
      is_taken_ = true;
      if (!text.empty()) host_of_0_ = text;
    } else if (kind == Kind::welcome) {
      if (text != store::kProtocol) throw std::invalid_argument("it is another program");
      is_taken_ = welcomed_ = true;
      connection_->allow(static_cast<std::size_t>(options_.ranks) * (kMostText + sizeof(std::uint32_t)));
    } else if (kind == Kind::refused) {
      was_refused_ = true;
      refuse(Error("this process was refused: it " + text, place(),
                   "start each rank once, with its own rank and the number of all ranks"));
    } else if (kind == Kind::texts) {
      if (!welcomed_) throw std::invalid_argument("it comes too early");
      std::vector<std::string> texts = store::unpacked(text);
      if (!text.empty() && texts.size() != static_cast<std::size_t>(options_.ranks)) {
        throw std::length_error("it has the wrong number of texts");
      }
      const std::lock_guard lock(mutex_);
      texts_ = std::move(texts);
      changed_.notify_all();
    } else if (kind == Kind::ended) {
      lose(store::verdict_in(text));
    } else if (kind == Kind::speak) {
      const std::lock_guard lock(mutex_);
      may_speak_ = true;
      changed_.notify_all();
    } else if (kind == Kind::waits && options_.is_waiting && options_.is_waiting()) {
      connection_->send(Kind::waits);
    }
  }

  // No more can come from rank 0.
  void end(Ending ending, const std::string& reason) {
    has_ended_ = true;
    if (leaving_ || may_speak_) return;
    if (is_taken_) return lose_rank_0(reason);
    refuse(ending, "rank 0 " + reason, kCheckMaster);
  }

  // Before all ranks have connected.
  template <class Reason>
  void refuse(const Reason& reason) {
    if (!refusal_) refusal_ = std::make_exception_ptr(reason);
  }
  void refuse(Ending ending, const std::string& problem, const std::string& remedy) {
    ending == Ending::loss ? refuse(LossError(problem, place(), remedy))
                           : refuse(Error(problem, place(), remedy));
  }

  // Rank 0 can no longer decide who says it.
  void lose_rank_0(const std::string& what) {
    if (leaving_ || is_lost_) return;
    const auto other = welcomed_ ? floor().take(Ending::loss) : std::nullopt;
    other ? lose({*other})
          : lose({Ending::loss,
                  Verdict::Reason{fmt::format("rank 0 on {} {}", host_of_0_, what), kSeeThatRank}});
  }

  void lose(Verdict verdict) {
    if (leaving_ || refusal_ || std::exchange(is_lost_, true)) return;
    if (welcomed_ && was_stopped()) verdict.reason.reset();
    if (!verdict.reason) told_ = verdict.ending;
    if (!welcomed_) {
      const Verdict::Reason why = verdict.reason.value_or(Verdict::Reason{kEnded, kSeeThatRank});
      return refuse(verdict.ending, why.problem, why.remedy);
    }
    if (told_ || !server_) return conclude(verdict);
    // A process that ends with unread messages may take back what it has sent.
    farewell_.expires_after(kRetry);
    farewell_.async_wait([this, verdict](error_code) { conclude(verdict); });
  }

  void conclude(const Verdict& verdict) {
    {
      const std::lock_guard lock(mutex_);
      verdict_ = verdict;
      changed_.notify_all();
    }
    lost_(verdict);
  }
  static constexpr const char* kEnded = "another rank has ended with an error";
  static constexpr const char* kCheckMaster = "check MASTER_ADDR and MASTER_PORT, and that rank 0 runs";

  // True if this process has given no sign of life itself: the others have said so.
  bool was_stopped() const { return was_stopped_ || Clock::now() - ticked_ >= options_.silence; }

  // Gives a sign of life and looks for others'. After the farewell it waits for the end.
  void tick() {
    const auto now = Clock::now();
    if (leaving_) {
      const bool alone = has_ended_ && (failed_ || !server_ || server_->all_have_left());
      if (alone || now > leave_by_) return io_.stop();
      timer_.expires_after(kFarewell);
    } else {
      was_stopped_ = now - std::exchange(ticked_, now) >= options_.silence;
      if (was_stopped_) seen_ = now;  // the others may have been stopped, too
      connection_->send(Kind::alive);
      if (now - seen_ >= options_.silence) lose_rank_0("has given no sign of life");
      if (server_) server_->tick(was_stopped_);
      // All ranks note the silence of rank 0 at the same time.
      const auto silent = seen_ + options_.silence;
      timer_.expires_at(std::min(now + options_.heartbeat, silent > now ? silent : Clock::time_point::max()));
    }
    timer_.async_wait([this](error_code) { tick(); });
  }

  std::string place() const { return fmt::format("{}:{}", options_.address, options_.port); }
  Floor floor() const { return floor_at(place(), options_.session, options_.job); }
  // Of the rank 0 that listens, and of the ranks of a second run, which it refuses.
  Floor rank_0s() const { return floor_at(place() + " listens", options_.session, options_.job); }
  Floor second_runs() const { return floor_at(place() + " refuses", options_.session, options_.job); }

  // Nothing if this rank may say why it ends. Otherwise a rank of its host does, and ends like this.
  std::optional<Ending> ending_of_host(Ending mine) const {
    if (is_second_) {
      const auto other = floor().taken();  // another rank of the second run, refused before
      return other ? other : second_runs().take(mine);
    }
    const auto other = was_refused_ ? second_runs().taken() : std::nullopt;
    return other ? other : floor().take(mine);
  }

  StoreOptions options_;
  const Lost lost_;
  std::string host_of_0_ = options_.address;
  asio::io_context io_;
  asio::executor_work_guard<asio::io_context::executor_type> work_;
  asio::steady_timer timer_, farewell_, listening_;
  std::optional<store::Server> server_;
  std::shared_ptr<Connection> connection_;
  Clock::time_point start_, seen_, ticked_, leave_by_;
  bool is_taken_ = false, welcomed_ = false, leaving_ = false, has_ended_ = false, failed_ = false;
  bool is_lost_ = false, was_stopped_ = false, was_refused_ = false;
  bool is_second_ = false;      // rank 0 of a run at the port of another one
  std::optional<Ending> told_;  // another rank says why they end like this
  std::exception_ptr refusal_;  // why this process is no rank
  std::mutex mutex_;            // of the next five
  std::optional<Ending> failing_;
  std::condition_variable changed_;
  std::optional<std::vector<std::string>> texts_;
  std::optional<Verdict> verdict_;
  bool may_speak_ = false;  // the thread of the io_context reads it without the mutex
  std::thread thread_;
};

Store::Store(const StoreOptions& options, Lost lost)
    : network_(std::make_unique<Network>(options, std::move(lost))) {
  network_->join();
}

Store::~Store() {
  network_->leave(std::uncaught_exceptions() > 0);
}

std::vector<std::string> Store::all_gather(std::string_view mine) {
  return network_->exchange(Kind::text, mine);
}

std::vector<std::string> Store::gather(std::string_view mine) {
  return network_->exchange(Kind::gathered, mine);
}

std::optional<Ending> Store::fail(Ending ending) {
  return network_->fail(ending);
}

void Store::wait_too_long(std::chrono::seconds limit) {
  network_->wait_too_long(limit);
}

std::optional<Ending> Store::fail_at_once(const StoreOptions& options, Ending ending) {
  return Network(options, [](const Verdict&) {}).fail_at_once(ending);
}

int free_local_port() {
  asio::io_context io;
  return tcp::acceptor(io, {asio::ip::address_v4::loopback(), 0}).local_endpoint().port();
}

}  // namespace warpwright
