#include "comm/store_connection.hpp"

#include <fmt/format.h>

#include <asio/read.hpp>
#include <asio/write.hpp>
#include <cstring>
#include <exception>
#include <sstream>
#include <stdexcept>
#include <utility>

namespace warpwright::store {
namespace {

constexpr const char* kNoCommand = "-";

std::string peer_of(const tcp::socket& socket) {
  error_code failed;
  const tcp::endpoint end = socket.remote_endpoint(failed);
  return failed ? "a closed connection" : fmt::format("{}:{}", end.address().to_string(), end.port());
}

std::string has_ended(error_code reason) {
  return fmt::format("has ended without saying why ({})", reason.message());
}

}  // namespace

Verdict verdict_in(const std::string& text) {
  std::istringstream parts(text);
  int code = 0;
  Verdict verdict;
  if (parts >> code && parts.get() == ' ') {
    Verdict::Reason& reason = verdict.reason.emplace();
    std::getline(parts, reason.problem, '\0');
    std::getline(parts, reason.remedy, '\0');
  }
  verdict.ending = static_cast<Ending>(code);
  for (const Ending known : {Ending::error, Ending::wrong_usage, Ending::loss}) {
    if (static_cast<int>(known) == code) return verdict;
  }
  throw std::invalid_argument("it does not say how the ranks end");
}

std::string packed(const Verdict& verdict) {
  const auto code = std::to_string(static_cast<int>(verdict.ending));
  if (!verdict.reason) return code;
  return fmt::format("{} {}{}{}", code, verdict.reason->problem, '\0', verdict.reason->remedy);
}

std::string packed(const std::vector<std::optional<std::string>>& texts) {
  std::string all;
  for (const auto& text : texts) {
    const auto length = static_cast<std::uint32_t>(text->size());
    all.append(reinterpret_cast<const char*>(&length), sizeof length).append(*text);
  }
  return all;
}

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

Connection::Connection(tcp::socket socket) : socket_(std::move(socket)), peer_(peer_of(socket_)) {}

void Connection::read(OnMessage on_message, OnEnd on_end) {
  on_message_ = std::move(on_message);
  on_end_ = std::move(on_end);
  read_header();
}

void Connection::send(Kind kind, std::string_view text) {
  const Header header{static_cast<std::uint64_t>(kind), text.size()};
  std::string& message = unsent_.emplace_back(reinterpret_cast<const char*>(header.data()), sizeof header);
  message += text;
  if (unsent_.size() == 1) write();
}

void Connection::finish() {
  finishing_ = true;
  if (unsent_.empty()) close();
}

void Connection::close() {
  error_code ignored;
  socket_.close(ignored);
}

void Connection::read_header() {
  asio::async_read(socket_, asio::buffer(header_),
                   [this, self = shared_from_this()](error_code failed, std::size_t) {
                     if (failed) return end(Ending::loss, has_ended(failed));
                     if (header_[0] > static_cast<std::uint64_t>(Kind::waits) || header_[1] > longest_) {
                       return end(Ending::error, "sent something that is not a rank's message");
                     }
                     read_text();
                   });
}

void Connection::read_text() {
  text_.resize(header_[1]);
  asio::async_read(
      socket_, asio::buffer(text_), [this, self = shared_from_this()](error_code failed, std::size_t) {
        if (failed) return end(Ending::loss, has_ended(failed));
        try {
          on_message_(static_cast<Kind>(header_[0]), std::move(text_));
        } catch (const std::exception& error) {
          return end(Ending::error,
                     fmt::format("sent something that is not a rank's message: {}", error.what()));
        }
        if (!finishing_) read_header();
      });
}

void Connection::end(Ending ending, const std::string& reason) {
  if (finishing_) return;
  on_end_(ending, reason);
  finish();
}

void Connection::write() {
  asio::async_write(socket_, asio::buffer(unsent_.front()),
                    [this, self = shared_from_this()](error_code failed, std::size_t) {
                      unsent_.pop_front();
                      if (failed) unsent_.clear();  // the reading side notes the end
                      if (!unsent_.empty()) return write();
                      if (finishing_) close();
                    });
}

std::string Greeting::text() const {
  return fmt::format("{} {} {} {} {} {}", kProtocol, rank, ranks, host,
                     command.empty() ? kNoCommand : command, session);
}

std::optional<Greeting> Greeting::parsed(const std::string& text) {
  std::istringstream words(text);
  std::string protocol;
  Greeting greeting;
  words >> protocol >> greeting.rank >> greeting.ranks >> greeting.host >> greeting.command;
  if (!words || protocol != kProtocol) return std::nullopt;
  if (greeting.command == kNoCommand) greeting.command.clear();
  words.get();
  std::getline(words, greeting.session, '\0');
  return greeting;
}

}  // namespace warpwright::store
