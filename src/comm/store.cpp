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
      : options_(options), lost_(std::move(lost)), work_(io_.get_executor()), timer_(io_), farewell_(io_) {
    options_.session.resize(std::min(options_.session.size(), store::kMostSession));
    if (options_.rank == 0) server_.emplace(io_, options_);
    if (options_.agree) options_.port = options_.agree(server_ ? server_->port() : 0);
    place_ = fmt::format("{}:{}", options_.address, options_.port);
    host_of_0_ = options_.address;
    start_ = Clock::now();
  }

  // Returns when all ranks have connected.
  void join() {
    try {
      connect();
      // Rank 0 ends the wait. Another program may not.
      const auto deadline = server_ ? Clock::time_point::max() : start_ + 2 * options_.patience;
      if (!run_until(deadline, [this] { return welcomed_ || refusal_; }))
        miss_rank_0("does not answer as rank 0");
      if (refusal_) throw Error(*refusal_);
    } catch (const Error&) {
      if (server_ && is_told_)
        run_until(Clock::now() + kForLateRanks, [this] { return server_->all_have_connected(); });
      if (server_) run_until(Clock::now() + kRetry, [] { return false; });  // the others hear of it
      if (is_silent_) lost_("");
      throw;
    }
    thread_ = std::thread([this] { io_.run(); });
  }

  bool fail_at_once() {
    try {
      connect();
      connection_->send(Kind::failed);
      run_until(start_ + options_.patience,
                [this] { return has_ended_ && (!server_ || server_->all_have_connected()); });
      if (server_) run_until(Clock::now() + kRetry, [] { return false; });  // the others hear of it
    } catch (const Error&) {  // the process has an error of its own to report
    }
    return !is_told_;
  }

  // Tells the others that this rank cannot go on.
  bool fail() {
    std::unique_lock lock(mutex_);
    asio::post(io_, [this] { connection_->send(Kind::failed); });
    changed_.wait_for(lock, kMostFarewell, [this] { return may_speak_ || problem_; });
    return !problem_;
  }

  void wait_too_long(std::chrono::seconds limit) {
    asio::post(io_, [this, limit] { connection_->send(Kind::waits, std::to_string(limit.count())); });
  }

  void leave(bool failed) {
    asio::post(io_, [this, failed] {
      leaving_ = true;
      connection_->send(failed ? Kind::failed : Kind::bye);
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
    changed_.wait(lock, [this] { return texts_ || problem_; });
    if (!texts_) throw Error(*problem_, "exchange between ranks", kSeeThatRank);
    return *std::exchange(texts_, std::nullopt);
  }

 private:
  static constexpr std::chrono::milliseconds kMostFarewell{1000}, kFarewell{5}, kRetry{200};
  static constexpr std::chrono::seconds kForLateRanks{5};

  // Returns when rank 0 has taken this rank. Throws Error if it cannot be reached, or if this process is not
  // to be a rank.
  void connect() {
    const auto deadline = start_ + options_.patience;
    // Rank 0 listens already.
    const auto reached_by = server_ ? std::min(deadline, start_ + options_.greeting) : deadline;
    connection_ = std::make_shared<Connection>(connected(reached_by));
    connection_->read([this](Kind kind, std::string text) { receive(kind, std::move(text)); },
                      [this](const std::string& reason) { end(reason); });
    seen_ = deadline;  // rank 0 may accept that late
    ticked_ = Clock::now();
    connection_->send(Kind::hello,
                      Greeting{options_.rank, options_.ranks, host_name(), options_.session}.text());
    tick();
    if (!run_until(deadline, [this] { return is_taken_ || refusal_; }))
      miss_rank_0("does not answer as rank 0");
    if (refusal_) throw Error(*refusal_);
  }

  // Tries until rank 0 listens.
  tcp::socket connected(Clock::time_point deadline) {
    while (true) {
      tcp::socket socket(io_);
      std::optional<error_code> result;
      error_code failed;
      const auto ends = tcp::resolver(io_).resolve(options_.address, std::to_string(options_.port), failed);
      if (!failed) {
        asio::async_connect(socket, ends, [&](error_code reason, const tcp::endpoint&) { result = reason; });
        if (!run_until(deadline, [&] { return result.has_value(); })) {
          socket.close();
          run_until(Clock::time_point::max(), [&] { return result.has_value(); });
          result = asio::error::timed_out;
        }
        failed = *result;
      }
      if (!failed) {
        socket.set_option(tcp::no_delay(true));
        return socket;
      }
      if (Clock::now() >= deadline) {
        if (options_.rank == 0) {
          throw Error(fmt::format("MASTER_ADDR is not an address of this host, which runs rank 0: {}",
                                  failed.message()),
                      place_, "set it to the host of rank 0");
        }
        miss_rank_0(fmt::format("rank {} cannot reach rank 0 there: {}", options_.rank, failed.message()));
        throw Error(*refusal_);
      }
      run_until(std::min(deadline, Clock::now() + kRetry), [] { return false; });
    }
  }

  template <class Done>
  bool run_until(Clock::time_point deadline, const Done& done) {
    while (!done() && Clock::now() < deadline) io_.run_one_until(deadline);
    return done();
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
      refusal_ = Error("this process was refused: it " + text, place_,
                       "start each rank once, with its own rank and the number of all ranks");
    } else if (kind == Kind::texts) {
      if (!welcomed_) throw std::invalid_argument("it comes too early");
      std::vector<std::string> texts = store::unpacked(text);
      if (!text.empty() && texts.size() != static_cast<std::size_t>(options_.ranks)) {
        throw std::length_error("it has the wrong number of texts");
      }
      const std::lock_guard lock(mutex_);
      texts_ = std::move(texts);
      changed_.notify_all();
    } else if (kind == Kind::lost) {
      lose(text);
    } else if (kind == Kind::ended) {
      is_told_ = true;
      lose("");
    } else if (kind == Kind::speak) {
      const std::lock_guard lock(mutex_);
      may_speak_ = true;
      changed_.notify_all();
    } else if (kind == Kind::waits && options_.is_waiting && options_.is_waiting()) {
      connection_->send(Kind::waits);
    }
  }

  // No more can come from rank 0.
  void end(const std::string& reason) {
    has_ended_ = true;
    if (leaving_ || may_speak_) return;
    if (welcomed_) {
      lose_rank_0(reason);
    } else if (!refusal_) {
      miss_rank_0("rank 0 " + reason);
    }
  }

  // Before all ranks have connected.
  void miss_rank_0(const std::string& problem) {
    is_silent_ = !options_.speaks;
    refusal_ = Error(problem, place_, "check MASTER_ADDR and MASTER_PORT, and that rank 0 runs");
  }

  void lose_rank_0(const std::string& what) {
    lose(options_.speaks ? fmt::format("rank 0 on {} {}", host_of_0_, what) : "");
  }

  // problem: "" if another rank says it.
  void lose(const std::string& problem) {
    if (leaving_ || refusal_ || std::exchange(is_lost_, true)) return;
    if (!welcomed_) {
      is_silent_ = problem.empty();
      refusal_ = Error(is_silent_ ? kEnded : problem, place_,
                       is_silent_ ? kSeeThatRank
                                  : "start all ranks with one MASTER_ADDR, MASTER_PORT and number of ranks");
      return;
    }
    if (problem.empty() || was_stopped()) return conclude("");
    if (!server_) return conclude(problem);
    // A process that ends with unread messages may take back what it has sent.
    farewell_.expires_after(kRetry);
    farewell_.async_wait([this, problem](error_code) { conclude(problem); });
  }

  void conclude(const std::string& problem) {
    {
      const std::lock_guard lock(mutex_);
      problem_ = problem.empty() ? kEnded : problem;
      changed_.notify_all();
    }
    lost_(problem);
  }
  static constexpr const char* kEnded = "another rank has ended with an error";

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

  StoreOptions options_;
  const Lost lost_;
  std::string place_, host_of_0_;
  asio::io_context io_;
  asio::executor_work_guard<asio::io_context::executor_type> work_;
  asio::steady_timer timer_, farewell_;
  std::optional<store::Server> server_;
  std::shared_ptr<Connection> connection_;
  Clock::time_point start_, seen_, ticked_, leave_by_;
  bool is_taken_ = false, welcomed_ = false, leaving_ = false, has_ended_ = false, failed_ = false;
  bool is_lost_ = false, was_stopped_ = false;
  bool is_silent_ = false;  // about its refusal
  bool is_told_ = false;    // that another rank reports an error
  std::optional<Error> refusal_;
  std::mutex mutex_;  // of the next four
  std::condition_variable changed_;
  std::optional<std::vector<std::string>> texts_;
  std::optional<std::string> problem_;
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

bool Store::fail() {
  return network_->fail();
}

void Store::wait_too_long(std::chrono::seconds limit) {
  network_->wait_too_long(limit);
}

bool Store::fail_at_once(const StoreOptions& options) {
  try {
    return Network(options, [](const std::string&) {}).fail_at_once();
  } catch (const Error&) {  // rank 0 cannot listen
    return true;
  }
}

int free_local_port() {
  asio::io_context io;
  return tcp::acceptor(io, {asio::ip::address_v4::loopback(), 0}).local_endpoint().port();
}

}  // namespace warpwright
