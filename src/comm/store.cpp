#include "comm/store.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <asio/connect.hpp>
#include <asio/executor_work_guard.hpp>
#include <asio/io_context.hpp>
#include <asio/ip/tcp.hpp>
#include <asio/ip/v6_only.hpp>
#include <asio/post.hpp>
#include <asio/read.hpp>
#include <asio/steady_timer.hpp>
#include <asio/write.hpp>
#include <charconv>
#include <condition_variable>
#include <cstdint>
#include <cstring>
#include <deque>
#include <exception>
#include <mutex>
#include <optional>
#include <sstream>
#include <stdexcept>
#include <thread>
#include <utility>

#include "comm/host.hpp"
#include "core/error.hpp"

namespace warpwright {
namespace {

using asio::error_code;
using asio::ip::tcp;
using Clock = std::chrono::steady_clock;

// A message is its kind, the length of its text, and the text.
enum class Kind : std::uint64_t {
  hello,     // from a rank: Greeting
  welcome,   // to all: every rank has connected; with the protocol's word
  refused,   // to a process that cannot be a rank: why
  text,      // from a rank: its part of all_gather()
  gathered,  // from a rank: its part of gather()
  texts,     // to all: all parts; after gathered none but for rank 0
  alive,     // both ways
  bye,       // from a rank that leaves
  failed,    // from a rank that cannot go on
  lost,      // to rank 0: why they cannot go on
  ended,     // to all: another rank says why
  speak,     // to a rank that has failed: it says why
  waits,     // from a rank: it waits for others, too long for one of them; to all: who waits?
};
using Header = std::array<std::uint64_t, 2>;

constexpr std::size_t kMostGreeting = 2000, kMostSession = 200;
constexpr const char* kProtocol = "warpwright-ranks-5";
constexpr std::size_t kMostStrangers = 64;

std::string packed(const std::vector<std::optional<std::string>>& texts) {
  std::string all;
  for (const auto& text : texts) {
    const auto length = static_cast<std::uint32_t>(text->size());
    all.append(reinterpret_cast<const char*>(&length), sizeof length).append(*text);
  }
  return all;
}

// Throws std::length_error: another program may answer at rank 0's port.
std::vector<std::string> unpacked(std::string_view all) {
  std::vector<std::string> texts;
  while (!all.empty()) {
    std::uint32_t length = 0;
    if (all.size() < sizeof length) throw std::length_error("a text has no length");
    std::memcpy(&length, all.data(), sizeof length);
    all.remove_prefix(sizeof length);
    if (length > all.size()) throw std::length_error("a text is cut off");
    texts.emplace_back(all.substr(0, length));
    all.remove_prefix(length);
  }
  return texts;
}

// One end of a connection. It lives until both its reading and its writing have ended.
class Connection : public std::enable_shared_from_this<Connection> {
 public:
  using OnMessage = std::function<void(Kind, std::string)>;
  using OnEnd = std::function<void(const std::string& reason)>;

  explicit Connection(tcp::socket socket) : socket_(std::move(socket)), peer_(peer_of(socket_)) {}

  // Calls on_message for each message, and on_end with the reason once no more can come, unless finish() was
  // called. An exception of on_message is such a reason. They must not own this connection.
  void read(OnMessage on_message, OnEnd on_end) {
    on_message_ = std::move(on_message);
    on_end_ = std::move(on_end);
    read_header();
  }
  void allow(std::size_t longest) { longest_ = longest; }

  void send(Kind kind, std::string_view text = {}) {
    const Header header{static_cast<std::uint64_t>(kind), text.size()};
    std::string& message = unsent_.emplace_back(reinterpret_cast<const char*>(header.data()), sizeof header);
    message += text;
    if (unsent_.size() == 1) write();
  }
  // Ends the connection after what has been sent, and reads no more.
  void finish() {
    finishing_ = true;
    if (unsent_.empty()) close();
  }

  const std::string& peer() const { return peer_; }

 private:
  static std::string peer_of(const tcp::socket& socket) {
    error_code failed;
    const tcp::endpoint end = socket.remote_endpoint(failed);
    return failed ? "a closed connection" : fmt::format("{}:{}", end.address().to_string(), end.port());
  }
  void close() {
    error_code ignored;
    socket_.close(ignored);
  }
  void read_header() {
    asio::async_read(socket_, asio::buffer(header_),
                     [this, self = shared_from_this()](error_code failed, std::size_t) {
                       if (failed) return end(has_ended(failed));
                       if (header_[0] > static_cast<std::uint64_t>(Kind::waits) || header_[1] > longest_) {
                         return end("sent something that is not a rank's message");
                       }
                       read_text();
                     });
  }
  void read_text() {
    text_.resize(header_[1]);
    asio::async_read(
        socket_, asio::buffer(text_), [this, self = shared_from_this()](error_code failed, std::size_t) {
          if (failed) return end(has_ended(failed));
          try {
            on_message_(static_cast<Kind>(header_[0]), std::move(text_));
          } catch (const std::exception& error) {
            return end(fmt::format("sent something that is not a rank's message: {}", error.what()));
          }
          if (!finishing_) read_header();
        });
  }
  void end(const std::string& reason) {
    if (finishing_) return;
    on_end_(reason);
    finish();
  }
  static std::string has_ended(error_code reason) {
    return fmt::format("has ended without saying why ({})", reason.message());
  }
  void write() {
    asio::async_write(socket_, asio::buffer(unsent_.front()),
                      [this, self = shared_from_this()](error_code failed, std::size_t) {
                        unsent_.pop_front();
                        if (failed) unsent_.clear();  // the reading side notes the end
                        if (!unsent_.empty()) return write();
                        if (finishing_) close();
                      });
  }

  tcp::socket socket_;
  const std::string peer_;
  Header header_{};
  std::size_t longest_ = kMostGreeting;
  std::string text_;
  std::deque<std::string> unsent_;
  OnMessage on_message_;
  OnEnd on_end_;
  bool finishing_ = false;
};

// A rank's first message: who it is.
struct Greeting {
  int rank = -1, ranks = -1;
  std::string host, session;

  std::string text() const { return fmt::format("{} {} {} {} {}", kProtocol, rank, ranks, host, session); }
  static std::optional<Greeting> parsed(const std::string& text) {
    std::istringstream words(text);
    std::string protocol;
    Greeting greeting;
    words >> protocol >> greeting.rank >> greeting.ranks >> greeting.host;
    if (!words || protocol != kProtocol) return std::nullopt;
    words.get();
    std::getline(words, greeting.session, '\0');
    return greeting;
  }
};

// Rank 0's side. All calls come from the thread that runs the io_context.
class Server {
 public:
  Server(asio::io_context& io, const StoreOptions& options)
      : options_(options),
        acceptor_(listening(io, options)),
        verdict_(io),
        members_(static_cast<std::size_t>(options.ranks)) {
    parts_.resize(members_.size());
    accept();
  }

  // Every heartbeat: tells the ranks that rank 0 is alive, and looks whether they are.
  void tick(bool was_stopped) {
    if (!welcomed_ && Clock::now() - start_ > options_.patience) return give_up_waiting();
    refuse_the_silent();
    accept();  // after an error, or after too many strangers
    for (Member& member : members_) {
      if (!member.connection || member.has_left) continue;
      if (was_stopped) member.seen = Clock::now();
      member.connection->send(Kind::alive);
      if (Clock::now() - member.seen > options_.silence) return lose(member, "has given no sign of life");
    }
  }

  bool all_have_left() const {
    for (const Member& member : members_) {
      if (member.connection && !member.has_left) return false;
    }
    return true;
  }
  bool all_have_connected() const { return connected_ == options_.ranks; }
  int port() const { return acceptor_.local_endpoint().port(); }

 private:
  struct Member {
    int rank = -1;
    std::string host;
    std::shared_ptr<Connection> connection;
    Clock::time_point seen;
    bool has_left = false, waits = false;

    std::string name() const { return fmt::format("rank {} on {}", rank, host); }
  };
  // A connection that has not greeted yet.
  struct Stranger {
    std::shared_ptr<Connection> connection;
    Clock::time_point since;
  };
  static constexpr std::size_t kMostNamed = 8;
  static constexpr std::chrono::seconds kForAnswers{2};

  // Ranks of this machine alone need no port that others can reach.
  static tcp::acceptor listening(asio::io_context& io, const StoreOptions& options) {
    const auto port = static_cast<std::uint16_t>(options.port);
    tcp::acceptor acceptor(io);
    error_code failed;
    tcp::endpoint place(tcp::v6(), port);
    const bool local = options.address == "localhost" || options.address.starts_with("127.");
    if (local) {
      place = {asio::ip::address_v4::loopback(), port};
    } else if (acceptor.open(tcp::v6(), failed); failed) {
      place = {tcp::v4(), port};  // a system without IPv6
    } else {
      acceptor.set_option(asio::ip::v6_only(false), failed);
    }
    if (!acceptor.is_open()) acceptor.open(place.protocol(), failed);
    if (!failed) acceptor.set_option(tcp::acceptor::reuse_address(true), failed);
    if (!failed) acceptor.bind(place, failed);
    if (!failed) acceptor.listen(asio::socket_base::max_listen_connections, failed);
    if (failed) {
      throw Error(fmt::format("rank 0 cannot listen on port {}: {}", options.port, failed.message()),
                  "MASTER_PORT", "choose a port that no process uses");
    }
    return acceptor;
  }

  void accept() {
    if (strangers_.size() >= kMostStrangers || std::exchange(accepting_, true)) return;
    acceptor_.async_accept([this](error_code failed, tcp::socket socket) {
      accepting_ = false;
      if (failed) {
        trouble_ = fmt::format("; a connection was not accepted: {}", failed.message());
        return;
      }
      socket.set_option(tcp::no_delay(true), failed);  // reading notes the failure
      greet(std::make_shared<Connection>(std::move(socket)));
      accept();
    });
  }

  void refuse_the_silent() {
    while (!strangers_.empty() && Clock::now() - strangers_.front().since > options_.greeting) {
      refuse(*strangers_.front().connection, "has not said which rank it is");
    }
  }

  void greet(const std::shared_ptr<Connection>& stranger) {
    Connection& connection = *stranger;
    strangers_.push_back({stranger, Clock::now()});
    const auto rank = std::make_shared<int>(-1);
    connection.read(
        [this, &connection, rank](Kind kind, std::string text) {
          if (*rank < 0) {
            *rank = admitted(connection, kind, text);
          } else {
            receive(members_[static_cast<std::size_t>(*rank)], kind, std::move(text));
          }
        },
        [this, &connection, rank](const std::string& reason) {
          if (*rank < 0) return refuse(connection, reason);
          Member& member = members_[static_cast<std::size_t>(*rank)];
          if (!member.has_left) lose(member, reason);
        });
  }

  // The rank of a process that has sent its first message; −1: it is refused.
  int admitted(Connection& connection, Kind kind, const std::string& text) {
    const auto greeting = Greeting::parsed(text);
    const auto refused = [&](const std::string& why) {
      refuse(connection, why);
      trouble_ = fmt::format("; {} was refused: it {}", connection.peer(), why);
      return -1;
    };
    if (kind != Kind::hello || !greeting) return refused("is not a rank of this version of warpwright");
    if (greeting->session != options_.session) {
      return refused(fmt::format("is a rank of run '{}', and rank 0 is of run '{}'", greeting->session,
                                 options_.session));
    }
    if (greeting->ranks != options_.ranks) {
      return refused(fmt::format("is rank {} of {}, but rank 0 counts {} ranks", greeting->rank,
                                 greeting->ranks, options_.ranks));
    }
    if (greeting->rank < 0 || greeting->rank >= options_.ranks) {
      return refused(fmt::format("is rank {} of {}, but ranks count from 0", greeting->rank, options_.ranks));
    }
    Member& member = members_[static_cast<std::size_t>(greeting->rank)];
    if (member.connection) {
      return refused(
          fmt::format("is rank {}, which has connected already, from {}", greeting->rank, member.host));
    }
    connection.allow(kMostText);
    member = {greeting->rank, greeting->host, connection.shared_from_this(), Clock::now()};
    no_longer_strange(connection);
    is_over_ ? connection.send(Kind::ended) : connection.send(Kind::alive, host_name());
    if (++connected_ == options_.ranks) {
      welcomed_ = true;
      send_all(Kind::welcome, kProtocol);
    }
    return greeting->rank;
  }

  void refuse(Connection& connection, const std::string& why) {
    connection.send(Kind::refused, why);
    connection.finish();
    no_longer_strange(connection);
  }

  void no_longer_strange(const Connection& connection) {
    std::erase_if(strangers_, [&](const Stranger& s) { return s.connection.get() == &connection; });
    accept();
  }

  void receive(Member& member, Kind kind, std::string text) {
    member.seen = Clock::now();
    std::optional<std::string>& part = parts_[static_cast<std::size_t>(member.rank)];
    if ((kind == Kind::text || kind == Kind::gathered) && !part) {
      part = std::move(text);
      if (++gathered_ == members_.size()) spread(kind);
    } else if (kind == Kind::bye || kind == Kind::failed) {
      member.has_left = true;
      if (kind == Kind::failed) let_speak(member);
      member.connection->finish();
    } else if (kind == Kind::waits) {
      member.waits = true;
      if (!text.empty()) find_whom_they_wait_for(seconds_in(text));  // otherwise it answers
    } else if (kind != Kind::alive) {
      lose(member, "has sent a message out of turn");
    }
  }

  void spread(Kind kind) {
    const std::string all = packed(parts_);
    for (const Member& member : members_) {
      if (!member.connection || member.has_left) continue;
      member.connection->send(Kind::texts, kind == Kind::text || member.rank == 0 ? all : "");
    }
    parts_.assign(members_.size(), std::nullopt);
    gathered_ = 0;
  }

  // The first rank that fails says why, and the others end silently.
  void let_speak(Member& member) {
    member.connection->send(is_over_ ? Kind::ended : Kind::speak);
    if (!std::exchange(is_over_, true)) send_all(Kind::ended);
  }

  void lose(Member& member, const std::string& what) {
    member.has_left = true;
    member.connection->send(Kind::ended);  // if it goes on later
    let_rank_0_say(fmt::format("{} {}", member.name(), what));
  }

  // The others end silently.
  void let_rank_0_say(const std::string& problem) {
    if (std::exchange(is_over_, true)) return;
    for (const Member& member : members_) {
      if (!member.connection || member.has_left) continue;
      member.rank == 0 ? member.connection->send(Kind::lost, problem) : member.connection->send(Kind::ended);
    }
  }

  static std::chrono::seconds seconds_in(const std::string& text) {
    int number = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
    if (error != std::errc() || number < 0) throw std::invalid_argument("it has no number of seconds");
    return std::chrono::seconds(number);
  }

  // A rank has waited for `limit`. Those that do not say soon that they wait, too, are why.
  void find_whom_they_wait_for(std::chrono::seconds limit) {
    if (std::exchange(asks_, true)) return;
    send_all(Kind::waits);
    verdict_.expires_after(kForAnswers);
    verdict_.async_wait([this, limit](error_code stopped) {
      if (stopped) return;
      std::vector<std::string> busy;
      for (const Member& member : members_) {
        if (!member.waits && !member.has_left) busy.push_back(member.name());
      }
      const std::string who = busy.empty() ? "each rank" : listed(busy);
      let_rank_0_say(fmt::format("{} ha{} kept others waiting for more than {} s (--collective-timeout)", who,
                                 busy.size() > 1 ? "ve" : "s", limit.count()));
    });
  }

  void give_up_waiting() {
    std::vector<std::string> missing;
    for (std::size_t r = 0; r < members_.size(); ++r) {
      if (!members_[r].connection) missing.push_back(std::to_string(r));
    }
    welcomed_ = true;  // once is enough
    const bool one = missing.size() == 1;
    let_rank_0_say(fmt::format("rank{} {} of {} ha{} not connected within {} s{}", one ? "" : "s",
                               listed(missing), options_.ranks, one ? "s" : "ve", seconds(options_.patience),
                               trouble_));
  }

  static std::string listed(const std::vector<std::string>& all) {
    const std::size_t named = std::min(all.size(), kMostNamed);
    std::string list =
        fmt::format("{}", fmt::join(all.begin(), all.begin() + static_cast<std::ptrdiff_t>(named), ", "));
    if (named < all.size()) list += fmt::format(" and {} more", all.size() - named);
    return list;
  }

  void send_all(Kind kind, std::string_view text = {}) {
    for (const Member& member : members_) {
      if (member.connection && !member.has_left) member.connection->send(kind, text);
    }
  }

  static double seconds(std::chrono::milliseconds time) {
    return std::chrono::duration<double>(time).count();
  }

  const StoreOptions options_;
  tcp::acceptor acceptor_;
  asio::steady_timer verdict_;
  std::vector<Member> members_;
  std::vector<std::optional<std::string>> parts_;
  std::size_t gathered_ = 0;
  int connected_ = 0;
  bool welcomed_ = false;
  bool is_over_ = false;  // a rank says why they cannot go on
  bool asks_ = false;     // who waits
  std::string trouble_;   // why the last refused connection is not a rank
  bool accepting_ = false;
  std::vector<Stranger> strangers_;
  const Clock::time_point start_ = Clock::now();
};

}  // namespace

// join() and fail_at_once() run the io_context until they return. After join() a thread does.
class Store::Network {
 public:
  Network(const StoreOptions& options, Lost lost)
      : options_(options), lost_(std::move(lost)), work_(io_.get_executor()), timer_(io_), farewell_(io_) {
    options_.session.resize(std::min(options_.session.size(), kMostSession));
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
      if (text != kProtocol) throw std::invalid_argument("it is another program");
      is_taken_ = welcomed_ = true;
      connection_->allow(static_cast<std::size_t>(options_.ranks) * (kMostText + sizeof(std::uint32_t)));
    } else if (kind == Kind::refused) {
      refusal_ = Error("this process was refused: it " + text, place_,
                       "start each rank once, with its own rank and the number of all ranks");
    } else if (kind == Kind::texts) {
      if (!welcomed_) throw std::invalid_argument("it comes too early");
      std::vector<std::string> texts = unpacked(text);
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
  std::optional<Server> server_;
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
