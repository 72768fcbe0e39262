// Rank 0's side of the store: it greets the ranks, spreads their texts, and decides which one says why they
// end.
#pragma once

#include <asio/io_context.hpp>
#include <asio/steady_timer.hpp>
#include <chrono>
#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "comm/store.hpp"
#include "comm/store_connection.hpp"

namespace warpwright::store {

// All calls come from the thread that runs the io_context.
class Server {
 public:
  // Listens from here on. Throws Error if it cannot.
  Server(asio::io_context& io, const StoreOptions& options);

  // Every heartbeat: tells the ranks that rank 0 is alive, and looks whether they are.
  void tick(bool was_stopped);

  // A rank says why all end, and those that connect hear it.
  void end_all(Ending ending);

  bool all_have_left() const;
  int connected() const { return connected_; }
  int port() const { return acceptor_.local_endpoint().port(); }

 private:
  struct Member {
    int rank = -1;
    std::string host;
    std::shared_ptr<Connection> connection;
    Clock::time_point seen;
    bool has_left = false, waits = false;

    std::string name() const;
  };
  // A connection that has not greeted yet.
  struct Stranger {
    std::shared_ptr<Connection> connection;
    Clock::time_point since;
  };

  void accept();
  void refuse_the_silent();
  void refuse_the_oldest();
  void greet(const std::shared_ptr<Connection>& stranger);
  // The rank of a process that has sent its first message; −1: it is refused.
  int admitted(Connection& connection, Kind kind, const std::string& text);
  void refuse(Connection& connection, const std::string& why);
  void no_longer_strange(const Connection& connection);

  void receive(Member& member, Kind kind, std::string text);
  // An exchange under way cannot end without the part of a rank that has left.
  void lose_who_left();
  void spread(Kind kind);
  // The first rank that fails says why, and the others end silently.
  void let_speak(Member& member, Ending ending);
  void lose(Member& member, const std::string& what);
  void require_same_command(const Member& member, const std::string& command);
  // The others end silently. If rank 0's own connection comes later, it hears the verdict then.
  void let_rank_0_say(Ending ending, const Verdict::Reason& reason);
  void tell(const Member& member) const;
  // A rank has waited for `limit`. Those that do not say soon that they wait, too, are why.
  void find_whom_they_wait_for(std::chrono::seconds limit);
  void give_up_waiting();
  void send_all(Kind kind, std::string_view text = {});

  const StoreOptions options_;
  tcp::acceptor acceptor_;
  asio::steady_timer verdict_;
  std::vector<Member> members_;
  std::vector<std::optional<std::string>> parts_;
  std::size_t gathered_ = 0;
  int connected_ = 0;
  bool welcomed_ = false;
  std::optional<Verdict> over_;  // why they cannot go on; without a reason if a rank says it itself
  bool asks_ = false;            // who waits
  std::string trouble_;          // why the last refused connection is not a rank
  bool accepting_ = false;
  std::vector<Stranger> strangers_;
  std::size_t silent_ = 0;  // connections refused because they have said nothing
  const Clock::time_point start_ = Clock::now();
};

}  // namespace warpwright::store
