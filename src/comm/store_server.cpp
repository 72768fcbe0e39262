#include "comm/store_server.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <asio/ip/v6_only.hpp>
#include <charconv>
#include <stdexcept>
#include <utility>

#include "comm/host.hpp"
#include "core/error.hpp"

namespace warpwright::store {
namespace {

// Ranks that connect at once are strangers for a moment, so there is a place for each besides.
constexpr std::size_t kMostStrangers = 64, kMostNamed = 8;
constexpr std::chrono::seconds kForAnswers{2};

std::chrono::seconds seconds_in(const std::string& text) {
  int number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || number <= 0) throw std::invalid_argument("it has no number of seconds");
  return std::chrono::seconds(number);
}

std::string listed(const std::vector<std::string>& all) {
  const std::size_t named = std::min(all.size(), kMostNamed);
  std::string list =
      fmt::format("{}", fmt::join(all.begin(), all.begin() + static_cast<std::ptrdiff_t>(named), ", "));
  if (named < all.size()) list += fmt::format(" and {} more", all.size() - named);
  return list;
}

double seconds(std::chrono::milliseconds time) {
  return std::chrono::duration<double>(time).count();
}

// Ranks of this machine alone need no port that others can reach.
tcp::acceptor listening(asio::io_context& io, const StoreOptions& options) {
  const auto port = static_cast<std::uint16_t>(options.port);
  tcp::acceptor acceptor(io);
  error_code failed;
  tcp::endpoint place(tcp::v6(), port);
  error_code named;
  auto address = asio::ip::make_address(options.address, named);
  if (options.address == "localhost") address = asio::ip::address_v4::loopback();
  if (address.is_loopback()) {
    place = {address, port};
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

}  // namespace

std::string Server::Member::name() const {
  return fmt::format("rank {} on {}", rank, host);
}

Server::Server(asio::io_context& io, const StoreOptions& options)
    : options_(options),
      acceptor_(listening(io, options)),
      verdict_(io),
      members_(static_cast<std::size_t>(options.ranks)) {
  parts_.resize(members_.size());
  accept();
}

void Server::tick(bool was_stopped) {
  if (!welcomed_ && !over_ && Clock::now() - start_ > options_.patience) return give_up_waiting();
  refuse_the_silent();
  accept();  // after an error
  for (Member& member : members_) {
    if (!member.connection || member.has_left) continue;
    if (was_stopped) member.seen = Clock::now();
    member.connection->send(Kind::alive);
    if (Clock::now() - member.seen > options_.silence) return lose(member, "has given no sign of life");
  }
}

bool Server::all_have_left() const {
  for (const Member& member : members_) {
    if (member.connection && !member.has_left) return false;
  }
  return true;
}

void Server::accept() {
  if (std::exchange(accepting_, true)) return;
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

void Server::refuse_the_silent() {
  while (!strangers_.empty() && Clock::now() - strangers_.front().since > options_.greeting) {
    refuse_the_oldest();
  }
}

void Server::refuse_the_oldest() {
  ++silent_;
  refuse(*strangers_.front().connection, "has not said which rank it is");
}

void Server::greet(const std::shared_ptr<Connection>& stranger) {
  Connection& connection = *stranger;
  if (strangers_.size() >= kMostStrangers + members_.size()) refuse_the_oldest();
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
      [this, &connection, rank](Ending, const std::string& reason) {
        if (*rank < 0) return refuse(connection, reason);
        Member& member = members_[static_cast<std::size_t>(*rank)];
        if (!member.has_left) lose(member, reason);
      });
}

int Server::admitted(Connection& connection, Kind kind, const std::string& text) {
  const auto greeting = Greeting::parsed(text);
  const auto refused = [&](const std::string& why) {
    refuse(connection, why);
    trouble_ = fmt::format("; {} was refused: it {}", connection.peer(), why);
    return -1;
  };
  if (kind != Kind::hello || !greeting) return refused("is not a rank of this version of warpwright");
  if (greeting->session != options_.session) {
    return refused(
        fmt::format("is a rank of run '{}', and rank 0 is of run '{}'", greeting->session, options_.session));
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
  over_ ? tell(member) : connection.send(Kind::alive, host_name());
  require_same_command(member, greeting->command);
  if (++connected_ == options_.ranks && !over_) {
    welcomed_ = true;
    send_all(Kind::welcome, kProtocol);
  }
  return greeting->rank;
}

// A rank with an error before it connects tells no command.
void Server::require_same_command(const Member& member, const std::string& command) {
  if (command.empty() || options_.command.empty() || command == options_.command) return;
  let_rank_0_say(Ending::error,
                 {fmt::format("{} runs {}, and rank 0 runs {}", member.name(), command, options_.command),
                  "start all ranks with one command"});
}

void Server::refuse(Connection& connection, const std::string& why) {
  connection.send(Kind::refused, why);
  connection.finish();
  no_longer_strange(connection);
}

void Server::no_longer_strange(const Connection& connection) {
  std::erase_if(strangers_, [&](const Stranger& s) { return s.connection.get() == &connection; });
}

void Server::receive(Member& member, Kind kind, std::string text) {
  member.seen = Clock::now();
  // Until all ranks have connected, a rank only lives or fails.
  const bool in_turn = welcomed_ || kind == Kind::alive || kind == Kind::failed;
  std::optional<std::string>& part = parts_[static_cast<std::size_t>(member.rank)];
  if (!in_turn) {
    lose(member, "has sent a message out of turn");
  } else if ((kind == Kind::text || kind == Kind::gathered) && !part) {
    part = std::move(text);
    if (++gathered_ == members_.size()) return spread(kind);
    lose_who_left();
  } else if (kind == Kind::bye) {
    member.has_left = true;
    member.connection->finish();
    lose_who_left();
  } else if (kind == Kind::failed) {
    const Ending ending = verdict_in(text).ending;  // first: a rank whose verdict is invalid is lost
    member.has_left = true;
    let_speak(member, ending);
    member.connection->finish();
  } else if (kind == Kind::waits) {
    member.waits = true;
    if (!text.empty()) find_whom_they_wait_for(seconds_in(text));  // otherwise it answers
  } else if (kind != Kind::alive) {
    lose(member, "has sent a message out of turn");
  }
}

void Server::lose_who_left() {
  if (gathered_ == 0) return;
  for (std::size_t r = 0; r < members_.size(); ++r) {
    if (members_[r].has_left && !parts_[r]) return lose(members_[r], "has left while others wait for it");
  }
}

void Server::spread(Kind kind) {
  const std::string all = packed(parts_);
  for (const Member& member : members_) {
    if (!member.connection || member.has_left) continue;
    member.connection->send(Kind::texts, kind == Kind::text || member.rank == 0 ? all : "");
  }
  parts_.assign(members_.size(), std::nullopt);
  gathered_ = 0;
}

void Server::let_speak(Member& member, Ending ending) {
  if (over_) return member.connection->send(Kind::ended, packed({over_->ending}));
  member.connection->send(Kind::speak);
  end_all(ending);
}

void Server::end_all(Ending ending) {
  over_ = Verdict{ending};
  send_all(Kind::ended, packed(*over_));
}

void Server::lose(Member& member, const std::string& what) {
  member.has_left = true;
  member.connection->send(Kind::ended, packed({Ending::loss}));  // if it goes on later
  let_rank_0_say(Ending::loss, {fmt::format("{} {}", member.name(), what), kSeeThatRank});
}

void Server::let_rank_0_say(Ending ending, const Verdict::Reason& reason) {
  if (over_) return;
  over_ = Verdict{ending, reason};
  for (const Member& member : members_) {
    if (member.connection && !member.has_left) tell(member);
  }
}

void Server::tell(const Member& member) const {
  member.connection->send(Kind::ended, packed(member.rank == 0 ? *over_ : Verdict{over_->ending}));
}

void Server::find_whom_they_wait_for(std::chrono::seconds limit) {
  if (std::exchange(asks_, true)) return;
  send_all(Kind::waits);
  verdict_.expires_after(kForAnswers);
  verdict_.async_wait([this, limit](error_code stopped) {
    if (stopped) return;
    std::vector<std::string> busy;
    for (const Member& member : members_) {
      if (member.connection && !member.waits && !member.has_left) busy.push_back(member.name());
    }
    const std::string who = busy.empty() ? "each rank" : listed(busy);
    let_rank_0_say(Ending::loss,
                   {fmt::format("{} ha{} kept others waiting for more than {} s (--collective-timeout)", who,
                                busy.size() > 1 ? "ve" : "s", limit.count()),
                    kSeeThatRank});
  });
}

void Server::give_up_waiting() {
  std::vector<std::string> missing;
  for (std::size_t r = 0; r < members_.size(); ++r) {
    if (!members_[r].connection) missing.push_back(std::to_string(r));
  }
  const bool one = missing.size() == 1;
  if (const std::size_t silent = silent_ + strangers_.size(); silent > 0) {
    trouble_ += silent == 1 ? "; 1 connection has not said which rank it is"
                            : fmt::format("; {} connections have not said which rank they are", silent);
  }
  let_rank_0_say(Ending::loss, {fmt::format("rank{} {} of {} ha{} not connected within {} s{}",
                                            one ? "" : "s", listed(missing), options_.ranks, one ? "s" : "ve",
                                            seconds(options_.patience), trouble_),
                                "start all ranks with one MASTER_ADDR, MASTER_PORT and number of ranks"});
}

void Server::send_all(Kind kind, std::string_view text) {
  for (const Member& member : members_) {
    if (member.connection && !member.has_left) member.connection->send(kind, text);
  }
}

}  // namespace warpwright::store
