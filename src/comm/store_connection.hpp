// One end of a connection between a rank and rank 0, and the messages that travel on it.
#pragma once

#include <array>
#include <asio/ip/tcp.hpp>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "comm/ending.hpp"

namespace warpwright::store {

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
  failed,    // from a rank that cannot go on: Verdict
  ended,     // to all: Verdict, with its reason for the rank that says it
  speak,     // to a rank that has failed: it says why
  waits,     // from a rank: it waits for others, too long for one of them; to all: who waits?
};
using Header = std::array<std::uint64_t, 2>;

inline constexpr std::size_t kMostSession = 200;
inline constexpr const char* kProtocol = "warpwright-ranks-7";

// Throws std::invalid_argument if it is not one.
Verdict verdict_in(const std::string& text);
std::string packed(const Verdict& verdict);

// The parts of an exchange as one text.
std::string packed(const std::vector<std::optional<std::string>>& texts);
// Throws std::length_error: another program may answer at rank 0's port.
std::vector<std::string> unpacked(std::string_view all);

// It lives until both its reading and its writing have ended.
class Connection : public std::enable_shared_from_this<Connection> {
 public:
  using OnMessage = std::function<void(Kind, std::string)>;
  // Ending::loss: the other end has gone; Ending::error: it is another program.
  using OnEnd = std::function<void(Ending ending, const std::string& reason)>;

  explicit Connection(tcp::socket socket);

  // Calls on_message for each message, and on_end with the reason once no more can come, unless finish() was
  // called. An exception of on_message is such a reason. They must not own this connection.
  void read(OnMessage on_message, OnEnd on_end);
  void allow(std::size_t longest) { longest_ = longest; }

  void send(Kind kind, std::string_view text = {});
  // Ends the connection after what has been sent, and reads no more.
  void finish();

  const std::string& peer() const { return peer_; }

 private:
  static constexpr std::size_t kMostGreeting = 2000;

  void close();
  void read_header();
  void read_text();
  void end(Ending ending, const std::string& reason);
  void write();

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
  std::string command;  // "": none, because of an error before it was known

  std::string text() const;
  static std::optional<Greeting> parsed(const std::string& text);
};

}  // namespace warpwright::store
