#include "comm/store.hpp"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <csignal>
#include <cstring>
#include <fstream>
#include <future>
#include <mutex>
#include <sstream>
#include <thread>

#include "core/error.hpp"
#include "runtime/descriptor.hpp"

namespace warpwright {
namespace {

using namespace std::chrono_literals;

int tests_begun = 0;

// A test may get the port of an earlier one, whose floor this process has. So each test is a job of its own.
StoreOptions options_of(int rank, int ranks, int port) {
  return {.rank = rank,
          .ranks = ranks,
          .address = "127.0.0.1",
          .port = port,
          .job = fmt::format("test {} of process {}", tests_begun, ::getpid()),
          .patience = 20s};
}

// The end of a rank that runs in a thread of its own.
struct Outcome {
  std::vector<std::string> texts;
  std::string error, lost = "none";
  Ending ending = Ending::error;  // of the error, or of what lost says
};

// A process with these options that connects, gathers texts this many times, and then does nothing.
pid_t idle_process(const StoreOptions& options, int times = 0) {
  const pid_t child = fork();
  if (child != 0) return child;
  Store store(options, [](const Verdict&) { _exit(1); });
  for (int i = 0; i < times; ++i) store.all_gather("");
  ::pause();
  _exit(0);
}

class StoreTest : public testing::Test {
 protected:
  StoreTest() { ++tests_begun; }

  // Runs these ranks, each with `work`, and waits for them.
  template <class Work>
  std::vector<Outcome> run(const std::vector<StoreOptions>& ranks, const Work& work) {
    std::vector<Outcome> outcomes(ranks.size());
    std::vector<std::thread> threads;
    for (std::size_t i = 0; i < ranks.size(); ++i) {
      threads.emplace_back([&, i] {
        Outcome& outcome = outcomes[i];
        try {
          Store store(ranks[i], [&](const Verdict& verdict) {
            const std::lock_guard lock(mutex_);
            outcome.lost = verdict.reason ? verdict.reason->problem : "";
            outcome.ending = verdict.ending;
          });
          outcome.texts = work(ranks[i].rank, store);
        } catch (const Error& error) {
          outcome.error = error.what();
          if (outcome.lost == "none") outcome.ending = ending_of(error);
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
    return outcomes;
  }

  // The ranks of a new run. This process keeps the floor of a run in which it has had it.
  std::vector<StoreOptions> all(int ranks) {
    port_ = free_local_port();
    std::vector<StoreOptions> options;
    for (int r = 0; r < ranks; ++r) options.push_back(options_of(r, ranks, port_));
    return options;
  }

  static sockaddr_in local(int port) {
    sockaddr_in place{};
    place.sin_family = AF_INET;
    place.sin_port = htons(static_cast<std::uint16_t>(port));
    place.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    return place;
  }

  // A program that is not rank 0 and listens at this port.
  static FileDescriptor listener(int port) {
    FileDescriptor socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    const sockaddr_in place = local(port);
    EXPECT_EQ(::bind(socket.get(), reinterpret_cast<const sockaddr*>(&place), sizeof place), 0);
    EXPECT_EQ(::listen(socket.get(), 5), 0);
    return socket;
  }

  // A process that is not a rank, connected to rank 0's port. Tries until rank 0 listens.
  FileDescriptor stranger() const {
    const sockaddr_in place = local(port_);
    while (true) {
      FileDescriptor socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
      if (::connect(socket.get(), reinterpret_cast<const sockaddr*>(&place), sizeof place) == 0)
        return socket;
      std::this_thread::sleep_for(10ms);
    }
  }

  // Sends these bytes. Returns what rank 0 answers before it closes the connection.
  std::string answer_to(const std::string& bytes) const {
    const FileDescriptor socket = stranger();
    EXPECT_EQ(::send(socket.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL),
              static_cast<ssize_t>(bytes.size()));
    return answer_at(socket);
  }
  static std::string answer_at(const FileDescriptor& socket) {
    const timeval most{.tv_sec = 20, .tv_usec = 0};
    ::setsockopt(socket.get(), SOL_SOCKET, SO_RCVTIMEO, &most, sizeof most);
    std::string answer(2000, '\0');
    std::size_t size = 0;
    while (size < answer.size()) {
      const ssize_t got = ::recv(socket.get(), answer.data() + size, answer.size() - size, 0);
      if (got <= 0) break;
      size += static_cast<std::size_t>(got);
    }
    return answer.substr(0, size);
  }

  // Reads until these bytes have come. "": until any have.
  static void await(const FileDescriptor& socket, const std::string& awaited) {
    std::string all;
    char byte = 0;
    do {
      ASSERT_EQ(::recv(socket.get(), &byte, 1, 0), 1);
      all += byte;
    } while (!all.ends_with(awaited));
  }
  std::string line_about(const std::string& awaited, const std::string& last, int ranks = 2);

  int port_ = free_local_port();
  std::mutex mutex_;
};

std::vector<std::string> gather_once(int rank, Store& store) {
  return store.all_gather(fmt::format("of {}", rank));
}

std::vector<std::string> gather_once_unless(bool busy, int rank, Store& store) {
  if (busy) std::this_thread::sleep_for(4s);
  return gather_once(rank, store);
}

TEST_F(StoreTest, GathersTheTextsOfAllRanks) {
  const auto outcomes = run(all(5), [](int rank, Store& store) {
    for (int i = 0; i < 200; ++i) {
      const auto texts = store.all_gather(fmt::format("{} of {}", i, rank));
      for (std::size_t r = 0; r < texts.size(); ++r) EXPECT_EQ(texts[r], fmt::format("{} of {}", i, r));
    }
    EXPECT_EQ(store.all_gather(""), std::vector<std::string>(5));
    return store.all_gather(std::string(static_cast<std::size_t>(rank) * 100'000, 'x'));
  });
  for (const Outcome& outcome : outcomes) {
    EXPECT_EQ(outcome.error, "");
    EXPECT_EQ(outcome.lost, "none");
    ASSERT_EQ(outcome.texts.size(), 5u);
    for (std::size_t r = 0; r < 5; ++r) EXPECT_EQ(outcome.texts[r].size(), r * 100'000);
  }
}

TEST_F(StoreTest, APortInUseIsNamed) {
  const auto outcomes = run(all(1), [&](int rank, Store& store) {
    const auto second = run({options_of(0, 1, port_)}, gather_once);
    EXPECT_NE(second[0].error.find(fmt::format("MASTER_PORT: rank 0 cannot listen on port {}", port_)),
              std::string::npos)
        << second[0].error;
    return gather_once(rank, store);
  });
  EXPECT_EQ(outcomes[0].error, "");
}

TEST_F(StoreTest, AMasterThatDoesNotListenIsNamed) {
  StoreOptions options = options_of(1, 2, port_);
  options.patience = 2s;
  const auto outcomes = run({options}, gather_once);
  const std::string line =
      fmt::format("127.0.0.1:{}: rank 0 cannot be reached there: Connection refused", port_);
  EXPECT_NE(outcomes[0].error.find(line), std::string::npos) << outcomes[0].error;
  EXPECT_EQ(outcomes[0].ending, Ending::loss);
}

TEST_F(StoreTest, AHostWithoutAnAddressIsNamed) {
  StoreOptions options = options_of(1, 2, port_);
  options.address = "nowhere.invalid";
  options.patience = 300ms;
  const auto outcomes = run({options}, gather_once);
  EXPECT_NE(outcomes[0].error.find("nowhere.invalid"), std::string::npos) << outcomes[0].error;
  EXPECT_EQ(outcomes[0].ending, Ending::error);
}

TEST_F(StoreTest, AServerThatIsNotRank0IsLeft) {
  const FileDescriptor other = listener(port_);
  StoreOptions options = options_of(1, 2, port_);
  options.patience = 2s;
  const auto outcomes = run({options}, gather_once);
  EXPECT_NE(outcomes[0].error.find("does not answer as rank 0"), std::string::npos) << outcomes[0].error;
  EXPECT_EQ(outcomes[0].lost, "none");
  EXPECT_EQ(outcomes[0].ending, Ending::error);
}

std::string message(std::uint64_t kind, std::uint64_t length, const std::string& text) {
  std::string bytes(16, '\0');
  std::memcpy(bytes.data(), &kind, 8);
  std::memcpy(bytes.data() + 8, &length, 8);
  return bytes + text;
}

// At MASTER_PORT is a program that answers a rank with these bytes.
TEST_F(StoreTest, WrongAnswersOfAServerEndTheRank) {
  const std::string word = "warpwright-ranks-7", welcome = message(1, 18, word);
  for (const auto& [answer, part] :
       {std::pair{message(1, 0, ""), "it is another program"},
        {message(5, 4, std::string(4, '\0')), "it comes too early"},
        {welcome + message(5, 2, "ab"), "a text has no length"},
        {welcome + message(5, 5,
                           "\xff\xff\xff\x7f"
                           "a"),
         "a text is cut off"},
        {welcome + message(5, 4, std::string(4, '\0')), "the wrong number of texts"}}) {
    const int port = free_local_port();
    const FileDescriptor server = listener(port);
    std::vector<Outcome> outcomes;
    std::thread rank([&, port] { outcomes = run({options_of(1, 2, port)}, gather_once); });
    const FileDescriptor connection(::accept(server.get(), nullptr, nullptr));
    EXPECT_EQ(::send(connection.get(), answer.data(), answer.size(), MSG_NOSIGNAL),
              static_cast<ssize_t>(answer.size()));
    rank.join();
    EXPECT_NE(outcomes[0].error.find(part), std::string::npos) << outcomes[0].error;
  }
}

// It is killed, and the system ends its connection in one of two ways, maybe before the rank knows that it is
// connected.
TEST_F(StoreTest, ARank0ThatIsLostBeforeItAnswersIsALoss) {
  for (const linger& end : {linger{}, linger{.l_onoff = 1, .l_linger = 0}}) {
    StoreOptions options = options_of(1, 2, free_local_port());
    options.patience = 2s;
    FileDescriptor server = listener(options.port);
    std::vector<Outcome> outcomes;
    std::thread rank([&] { outcomes = run({options}, gather_once); });
    FileDescriptor connection(::accept(server.get(), nullptr, nullptr));
    EXPECT_EQ(::setsockopt(connection.get(), SOL_SOCKET, SO_LINGER, &end, sizeof end), 0);
    server = FileDescriptor();
    connection = FileDescriptor();
    rank.join();
    EXPECT_NE(outcomes[0].error.find(": rank 0 "), std::string::npos) << outcomes[0].error;
    EXPECT_EQ(outcomes[0].ending, Ending::loss);
  }
}

TEST_F(StoreTest, Rank0OnAnotherHostThanMasterAddrSaysSo) {
  std::vector<StoreOptions> ranks = all(2);
  for (StoreOptions& options : ranks) options.address = "203.0.113.1";  // for documentation: no host has it
  ranks[0].greeting = 300ms;
  const auto outcomes = run(ranks, gather_once);
  EXPECT_NE(outcomes[0].error.find("MASTER_ADDR is not an address of this host"), std::string::npos)
      << outcomes[0].error;
  EXPECT_EQ(outcomes[0].lost, "none");
  EXPECT_EQ(outcomes[1].lost, "");
  for (const Outcome& outcome : outcomes) EXPECT_EQ(outcome.ending, Ending::error);
}

// Rank 0 says who is missing, and the others end without a word.
TEST_F(StoreTest, AMissingRankIsNamed) {
  std::vector<StoreOptions> ranks = all(3);
  ranks.pop_back();
  for (StoreOptions& options : ranks) options.patience = 2500ms, options.heartbeat = 100ms;
  const auto outcomes = run(ranks, gather_once);
  EXPECT_NE(outcomes[0].error.find("rank 2 of 3 has not connected within 2.5 s"), std::string::npos)
      << outcomes[0].error;
  EXPECT_EQ(outcomes[1].lost, "");
  EXPECT_NE(outcomes[1].error, "");
  for (const Outcome& outcome : outcomes) EXPECT_EQ(outcome.ending, Ending::loss);
}

TEST_F(StoreTest, RanksWithAnotherCommandAreNamed) {
  for (const auto& late : {0s, 1s}) {  // of rank 0's own connection, after those of the others
    std::vector<StoreOptions> ranks = all(3);
    for (StoreOptions& options : ranks) options.command = options.rank == 2 ? "eval" : "train";
    ranks[0].agree = [late](int port) {
      std::this_thread::sleep_for(late);
      return port;
    };
    const auto outcomes = run(ranks, gather_once);
    const std::string& line = outcomes[0].error;
    EXPECT_NE(line.find("rank 2 on "), std::string::npos) << line;
    EXPECT_NE(line.find("runs eval, and rank 0 runs train; start all ranks with one command"),
              std::string::npos)
        << line;
    for (const int r : {1, 2}) EXPECT_EQ(outcomes[static_cast<std::size_t>(r)].lost, "");
    for (const Outcome& outcome : outcomes) EXPECT_EQ(outcome.ending, Ending::error);
  }
}

TEST_F(StoreTest, ARankThatIsLostBeforeAllHaveConnectedIsALoss) {
  for (const int killed : {0, 1}) {
    std::vector<StoreOptions> ranks = all(3);
    const pid_t child = idle_process(ranks[static_cast<std::size_t>(killed)]);
    std::thread killing([&] {
      std::this_thread::sleep_for(3s);  // both ranks have connected
      ::kill(child, SIGKILL);
    });
    const auto outcomes = run({ranks[static_cast<std::size_t>(1 - killed)]}, gather_once);
    killing.join();
    ::waitpid(child, nullptr, 0);
    EXPECT_NE(outcomes[0].error.find(fmt::format("rank {} on ", killed)), std::string::npos)
        << outcomes[0].error;
    EXPECT_NE(outcomes[0].error.find("has ended without saying why"), std::string::npos) << outcomes[0].error;
    EXPECT_EQ(outcomes[0].ending, Ending::loss);
  }
}

TEST_F(StoreTest, RanksThatDoNotFitAreRefused) {
  const auto outcomes = run(all(2), [&](int rank, Store& store) {
    if (rank == 0) {  // which is there until the others have been refused
      StoreOptions refused[] = {options_of(1, 2, port_), options_of(1, 3, port_), options_of(2, 2, port_)};
      const char* reasons[] = {"is rank 1, which has connected already",
                               "is rank 1 of 3, but rank 0 counts 2 ranks", "is rank 2 of 2"};
      const char* addresses[] = {"localhost", "127.1", "127.0.1"};  // each with a floor of its own
      for (std::size_t i = 0; i < 3; ++i) {
        refused[i].address = addresses[i];
        const std::string error = run({refused[i]}, gather_once)[0].error;
        EXPECT_NE(error.find(reasons[i]), std::string::npos) << error;
      }
    }
    return gather_once(rank, store);
  });
  for (std::size_t i = 0; i < 2; ++i) {
    EXPECT_EQ(outcomes[i].error, "");
    EXPECT_EQ(outcomes[i].texts, (std::vector<std::string>{"of 0", "of 1"}));
  }
}

TEST_F(StoreTest, ManyMissingRanksAreCounted) {
  StoreOptions options = options_of(0, 20, port_);
  options.patience = 2s, options.heartbeat = 100ms;
  const auto outcomes = run({options}, gather_once);
  EXPECT_NE(outcomes[0].error.find("ranks 1, 2, 3, 4, 5, 6, 7, 8 and 11 more of 20 have not connected"),
            std::string::npos)
      << outcomes[0].error;
}

TEST_F(StoreTest, ARefusedRankEndsTheOthersOfItsHost) {
  std::vector<StoreOptions> ranks = all(3);
  ranks[2].ranks = 4;
  const auto outcomes = run(ranks, gather_once);
  EXPECT_NE(outcomes[2].error.find("is rank 2 of 4, but rank 0 counts 3 ranks"), std::string::npos)
      << outcomes[2].error;
  EXPECT_EQ(outcomes[2].lost, "none");
  for (const int r : {0, 1}) EXPECT_EQ(outcomes[static_cast<std::size_t>(r)].lost, "");
  for (const Outcome& outcome : outcomes) EXPECT_EQ(outcome.ending, Ending::error);
}

// Rank 1 hears it on its host, and rank 0, which runs on another one, from rank 1.
TEST_F(StoreTest, WhatARankHearsOnItsHostItTellsRank0) {
  std::vector<StoreOptions> ranks = all(3);
  ranks[2].ranks = 4;
  for (const std::size_t r : {1, 2}) ranks[r].address = "localhost";  // a floor of their own
  ranks[2].agree = [this](int) {
    std::this_thread::sleep_for(3s);  // rank 1 has connected
    return port_;
  };
  const auto outcomes = run(ranks, gather_once);
  for (const std::size_t r : {0, 1}) EXPECT_EQ(outcomes[r].lost, "") << outcomes[r].error;
  for (const Outcome& outcome : outcomes) EXPECT_EQ(outcome.ending, Ending::error);
}

// Rank 0 repeats why it refused a rank of another host when it gives up.
TEST_F(StoreTest, ARefusedRankIsWhyAnotherIsMissing) {
  std::vector<StoreOptions> ranks = all(2);
  ranks[1].ranks = 3;
  ranks[1].address = "localhost";  // so that its floor is another one
  for (StoreOptions& options : ranks) options.patience = 3s, options.heartbeat = 50ms;
  const auto outcomes = run(ranks, gather_once);
  EXPECT_NE(outcomes[0].error.find("; 127.0.0.1:"), std::string::npos) << outcomes[0].error;
  for (const Outcome& outcome : outcomes) {
    EXPECT_NE(outcome.error.find("was refused: it is rank 1 of 3, but rank 0 counts 2 ranks"),
              std::string::npos)
        << outcome.error;
  }
}

TEST_F(StoreTest, ARankOfAnotherRunIsRefused) {
  std::vector<StoreOptions> ranks = all(2);
  ranks[0].session = "first job", ranks[1].session = "second job";
  for (StoreOptions& options : ranks) options.patience = 3s, options.heartbeat = 50ms;
  const auto outcomes = run(ranks, gather_once);
  EXPECT_NE(outcomes[1].error.find("is a rank of run 'second job', and rank 0 is of run 'first job'"),
            std::string::npos)
      << outcomes[1].error;
  ranks = all(2);
  ranks[1].session = ranks[0].session = std::string(10'000, 'x');
  for (const Outcome& outcome : run(ranks, gather_once)) EXPECT_EQ(outcome.error, "");
}

// More than rank 0 keeps at a time.
TEST_F(StoreTest, SilentStrangersAreDropped) {
  StoreOptions options = options_of(0, 1, port_);
  options.greeting = 1s, options.heartbeat = 50ms;
  run({options}, [&](int rank, Store& store) {
    std::vector<FileDescriptor> silent;
    for (int i = 0; i < 100; ++i) silent.push_back(stranger());
    for (const FileDescriptor& socket : silent) {
      EXPECT_NE(answer_at(socket).find("has not said which rank it is"), std::string::npos);
    }
    return gather_once(rank, store);
  });
}

// Rank 1 connects after them.
TEST_F(StoreTest, SilentStrangersDoNotDelayAStart) {
  std::vector<StoreOptions> ranks = all(2);
  for (StoreOptions& options : ranks) options.greeting = 60s;  // longer than the ranks wait for each other
  std::vector<FileDescriptor> silent;
  ranks[1].agree = [&](int) {
    for (int i = 0; i < 100; ++i) silent.push_back(stranger());
    return port_;
  };
  for (const Outcome& outcome : run(ranks, gather_once)) EXPECT_EQ(outcome.error, "");
}

TEST_F(StoreTest, SilentStrangersAreCounted) {
  for (const int count : {1, 70}) {
    StoreOptions options = all(2)[0];
    options.patience = 3s, options.greeting = 1s, options.heartbeat = 50ms;
    std::vector<FileDescriptor> silent;
    options.agree = [&](int port) {
      for (int i = 0; i < count; ++i) silent.push_back(stranger());
      return port;
    };
    const Outcome outcome = run({options}, gather_once)[0];
    const std::string part = count == 1
                                 ? "; 1 connection has not said which rank it is;"
                                 : fmt::format("; {} connections have not said which rank they are;", count);
    EXPECT_NE(outcome.error.find(part), std::string::npos) << outcome.error;
  }
}

TEST_F(StoreTest, StrangersAreRefusedAndChangeNothing) {
  const auto outcomes = run(all(2), [&](int rank, Store& store) {
    if (rank == 1) {
      const FileDescriptor silent = stranger();
      EXPECT_NE(answer_to("GET / HTTP/1.1\r\nHost: a\r\n\r\n").find("is not a rank's message"),
                std::string::npos);
      EXPECT_NE(answer_to(message(0, std::uint64_t{1} << 32, "")).find("is not a rank's message"),
                std::string::npos);
      EXPECT_NE(answer_to(message(77, 0, "")).find("is not a rank's message"), std::string::npos);
      EXPECT_NE(answer_to(message(0, 5, "hello")).find("is not a rank of this version"), std::string::npos);
      EXPECT_NE(answer_to(message(3, 4, "text")).find("is not a rank of this version"), std::string::npos);
    }
    return gather_once(rank, store);
  });
  for (const Outcome& outcome : outcomes) {
    EXPECT_EQ(outcome.error, "");
    EXPECT_EQ(outcome.texts.size(), 2u);
  }
}

std::string greeting_of(int rank, int ranks) {
  const std::string text = fmt::format("warpwright-ranks-7 {} {} elsewhere - ", rank, ranks);
  return message(0, text.size(), text);
}

// The line of rank 0, for which a program greets as rank 1. The program sends `last` after it has got
// `awaited`.
std::string StoreTest::line_about(const std::string& awaited, const std::string& last, int ranks) {
  StoreOptions options = all(ranks)[0];
  std::thread other([&] {
    const FileDescriptor socket = stranger();
    const std::string greeting = greeting_of(1, ranks);
    EXPECT_GT(::send(socket.get(), greeting.data(), greeting.size(), MSG_NOSIGNAL), 0);
    await(socket, awaited);
    EXPECT_GT(::send(socket.get(), last.data(), last.size(), MSG_NOSIGNAL), 0);
    answer_at(socket);
  });
  const Outcome outcome = run({options}, gather_once)[0];
  other.join();
  return outcome.lost == "none" ? outcome.error : outcome.lost;
}

constexpr const char* kWelcome = "warpwright-ranks-7";

TEST_F(StoreTest, ARankWhoseLastMessageIsInvalidIsLost) {
  const std::string line = line_about(kWelcome, message(8, 7, "garbage"));
  EXPECT_TRUE(line.starts_with("rank 1 on elsewhere sent something that is not a rank's message")) << line;
}

TEST_F(StoreTest, ARankThatLeavesWhileOthersWaitForItIsLost) {
  EXPECT_EQ(line_about(kWelcome, message(7, 0, "")), "rank 1 on elsewhere has left while others wait for it");
}

// Not before all ranks have connected.
TEST_F(StoreTest, ARankThatWaitsForOthersTooEarlyIsLost) {
  for (const std::string& early : {message(11, 1, "9"), message(11, 0, ""), message(7, 0, "")}) {
    const std::string line = line_about("", early, 3);
    EXPECT_NE(line.find("rank 1 on elsewhere has sent a message out of turn"), std::string::npos) << line;
  }
  const std::string line = line_about(kWelcome, message(11, 1, "0"));
  EXPECT_NE(line.find("it has no number of seconds"), std::string::npos) << line;
}

// The lines of those that have one. All end as a loss.
std::vector<std::string> lines_of_a_loss(const std::vector<Outcome>& outcomes) {
  std::vector<std::string> lines;
  for (const Outcome& outcome : outcomes) {
    EXPECT_EQ(outcome.ending, Ending::loss);
    const std::string& line = outcome.lost == "none" ? outcome.error : outcome.lost;
    if (!line.empty()) lines.push_back(line);
  }
  return lines;
}

TEST_F(StoreTest, AKilledRankEndsTheOthers) {
  for (const int killed : {0, 2}) {
    std::vector<StoreOptions> ranks = all(3);
    const pid_t child = idle_process(ranks[static_cast<std::size_t>(killed)]);
    ranks.erase(ranks.begin() + killed);
    const auto outcomes = run(ranks, [&](int rank, Store& store) {
      if (rank == 1) ::kill(child, SIGKILL);
      return gather_once(rank, store);
    });
    ::waitpid(child, nullptr, 0);
    for (const Outcome& outcome : outcomes) EXPECT_NE(outcome.error, "");
    const auto lines = lines_of_a_loss(outcomes);
    ASSERT_EQ(lines.size(), 1u);
    EXPECT_NE(lines[0].find(fmt::format("rank {} ", killed)), std::string::npos) << lines[0];
    EXPECT_NE(lines[0].find("has ended without saying why"), std::string::npos) << lines[0];
  }
}

TEST_F(StoreTest, AStoppedRankEndsTheOthers) {
  StoreOptions other = options_of(0, 2, port_), stopped = options_of(1, 2, port_);
  other.heartbeat = stopped.heartbeat = 50ms;
  other.silence = stopped.silence = 2s;
  const pid_t child = idle_process(stopped);
  const auto outcomes = run({other}, [&](int rank, Store& store) {
    ::kill(child, SIGSTOP);
    return gather_once(rank, store);
  });
  ::kill(child, SIGKILL);
  ::waitpid(child, nullptr, 0);
  EXPECT_NE(outcomes[0].lost.find("has given no sign of life"), std::string::npos) << outcomes[0].lost;
}

TEST_F(StoreTest, OneRankOfAHostSaysThatRank0IsLost) {
  for (const int signal : {SIGKILL, SIGSTOP}) {
    std::vector<StoreOptions> ranks = all(4);
    for (StoreOptions& options : ranks) options.heartbeat = 50ms, options.silence = 2s;
    const pid_t child = idle_process(ranks[0], 1);
    ranks.erase(ranks.begin());
    const auto outcomes = run(ranks, [&](int rank, Store& store) {
      store.all_gather("");  // all have heard that all have connected
      if (rank == 3) ::kill(child, signal);
      return gather_once(rank, store);
    });
    ::kill(child, SIGKILL);
    ::waitpid(child, nullptr, 0);
    const char* what = signal == SIGKILL ? "has ended without saying why" : "has given no sign of life";
    const auto lines = lines_of_a_loss(outcomes);
    ASSERT_EQ(lines.size(), 1u);
    EXPECT_NE(lines[0].find(what), std::string::npos) << lines[0];
  }
}

// Also if rank 1 is lost with it.
TEST_F(StoreTest, AnyOtherRankSaysThatRanks0And1AreLost) {
  std::vector<StoreOptions> ranks = all(4);
  const pid_t first = idle_process(ranks[0], 1), second = idle_process(ranks[1], 1);
  ranks.erase(ranks.begin(), ranks.begin() + 2);
  const auto outcomes = run(ranks, [&](int rank, Store& store) {
    store.all_gather("");
    // Stopped first, so that neither can tell the others of the other's end before its own.
    for (const int signal : {SIGSTOP, SIGKILL}) {
      if (rank == 2) ::kill(first, signal), ::kill(second, signal);
    }
    return gather_once(rank, store);
  });
  for (const pid_t child : {first, second}) ::waitpid(child, nullptr, 0);
  const auto lines = lines_of_a_loss(outcomes);
  ASSERT_EQ(lines.size(), 1u);
  EXPECT_NE(lines[0].find("rank 0 on "), std::string::npos) << lines[0];
}

TEST_F(StoreTest, OneRankOfAHostSaysThatRank0IsMissing) {
  std::vector<StoreOptions> ranks = all(4);
  ranks.erase(ranks.begin());
  for (StoreOptions& options : ranks) options.patience = 300ms * options.rank;
  EXPECT_EQ(lines_of_a_loss(run(ranks, gather_once)).size(), 1u);
}

// Rank 0 cannot tell the others through its port.
TEST_F(StoreTest, APortInUseIsOneLine) {
  const std::vector<StoreOptions> ranks = all(3);
  const FileDescriptor other = listener(port_);
  const auto outcomes = run(ranks, gather_once);
  EXPECT_NE(outcomes[0].error.find("cannot listen on port"), std::string::npos) << outcomes[0].error;
  EXPECT_EQ(outcomes[0].lost, "none");
  for (const int r : {1, 2}) EXPECT_EQ(outcomes[static_cast<std::size_t>(r)].lost, "");
  for (const Outcome& outcome : outcomes) EXPECT_EQ(outcome.ending, Ending::error);
}

// A second run has been started at the port of the first.
TEST_F(StoreTest, ASecondRunAtAPortEndsWithOneLineAndChangesNothing) {
  const auto outcomes = run(all(2), [&](int rank, Store& store) {
    if (rank == 1) {
      const Outcome first = run({options_of(0, 2, port_)}, gather_once)[0];
      const Outcome second = run({options_of(1, 2, port_)}, gather_once)[0];
      EXPECT_NE(first.error.find("cannot listen on port"), std::string::npos) << first.error;
      EXPECT_EQ(first.lost, "none");
      EXPECT_EQ(second.lost, "");
      for (const Outcome& outcome : {first, second}) EXPECT_EQ(outcome.ending, Ending::error);
    }
    return gather_once(rank, store);
  });
  for (const Outcome& outcome : outcomes) EXPECT_EQ(outcome.error, "");
}

TEST_F(StoreTest, ARunThatWaitsIsNotEndedByASecondRank0) {
  StoreOptions waiting = all(2)[0], second = waiting;
  waiting.patience = 3s, waiting.heartbeat = 100ms;
  std::promise<void> listens;
  waiting.agree = [&](int port) {
    listens.set_value();
    return port;
  };
  std::vector<Outcome> outcomes;
  std::thread first([&] { outcomes = run({waiting}, gather_once); });
  listens.get_future().wait();
  const Outcome other = run({second}, gather_once)[0];
  first.join();
  EXPECT_NE(other.error.find("cannot listen on port"), std::string::npos) << other.error;
  EXPECT_EQ(other.lost, "none");
  EXPECT_NE(outcomes[0].error.find("rank 1 of 2 has not connected"), std::string::npos) << outcomes[0].error;
  EXPECT_EQ(outcomes[0].lost, "none");
}

// The address at which a process of this machine listens on the port, as Linux prints it.
std::string listening_at(int port) {
  for (const char* path : {"/proc/net/tcp", "/proc/net/tcp6"}) {
    std::ifstream lines(path);
    for (std::string line; std::getline(lines, line);) {
      std::istringstream words(line);
      std::string number, place, peer, state;
      words >> number >> place >> peer >> state;
      if (state == "0A" && place.ends_with(fmt::format(":{:04X}", port)))
        return place.substr(0, place.find(':'));
    }
  }
  return "";
}

bool has_ipv6() {
  std::ifstream addresses("/proc/net/if_inet6");
  const std::string all(std::istreambuf_iterator<char>(addresses), {});
  return all.find("00000000000000000000000000000001 ") != std::string::npos;
}

TEST_F(StoreTest, RanksOfThisMachineAloneUseItsLoopback) {
  for (const auto& [address, place] : {std::pair{"127.0.0.1", "0100007F"},
                                       {"127.0.0.2", "0200007F"},
                                       {"localhost", "0100007F"},
                                       {"::1", "00000000000000000000000001000000"},
                                       {"127.0.0.1.evil.invalid", ""}}) {
    if (std::string_view(address) == "::1" && !has_ipv6()) continue;
    StoreOptions options = all(1)[0];
    options.address = address;
    options.greeting = 300ms;
    std::string at;
    options.agree = [&at](int port) {
      at = listening_at(port);
      return port;
    };
    run({options}, gather_once);
    if (*place) {
      EXPECT_EQ(at, place) << address;
    } else {
      EXPECT_EQ(at.find_first_not_of('0'), std::string::npos) << at;  // all addresses
      EXPECT_NE(at, "");
    }
  }
}

TEST_F(StoreTest, OneOfTheThreadsOfARankSaysWhy) {
  run(all(2), [&](int rank, Store& store) {
    if (rank == 1) {
      EXPECT_EQ(store.fail(Ending::wrong_usage), std::nullopt);
      EXPECT_EQ(store.fail(Ending::loss), Ending::wrong_usage);
    }
    return std::vector<std::string>();
  });
}

TEST_F(StoreTest, AllThreadsOfARankEndLikeTheRankThatSaysWhy) {
  run(all(3), [&](int rank, Store& store) {
    if (rank == 1 && !store.fail(Ending::error)) throw Error("fails", "test", "none");
    EXPECT_THROW(gather_once(rank, store), Error);
    if (rank == 2) {
      for (int thread = 0; thread < 2; ++thread) EXPECT_EQ(store.fail(Ending::loss), Ending::error);
    }
    return std::vector<std::string>();
  });
}

TEST_F(StoreTest, OneOfTheRanksThatFailSaysWhy) {
  std::atomic<int> speakers = 0;
  run(all(4), [&](int, Store& store) {
    speakers += !store.fail(Ending::error);
    return std::vector<std::string>();
  });
  EXPECT_EQ(speakers, 1);
}

TEST_F(StoreTest, AllEndLikeTheOneThatSaysWhy) {
  for (const Ending ending : {Ending::error, Ending::wrong_usage, Ending::loss}) {
    const auto outcomes = run(all(3), [&](int rank, Store& store) {
      if (rank == 1 && !store.fail(ending)) throw Error("fails", "test", "none");
      return gather_once(rank, store);
    });
    for (const std::size_t r : {0u, 2u}) EXPECT_EQ(outcomes[r].ending, ending);
  }
}

TEST_F(StoreTest, AnErrorBeforeTheyConnectEndsTheOthers) {
  for (const std::vector<int>& failing : {std::vector{0}, {1}, {0, 1, 2}, {1, 2}}) {
    std::vector<StoreOptions> healthy;
    std::vector<std::thread> threads;
    std::atomic<int> speakers = 0;
    for (const StoreOptions& options : all(3)) {
      if (std::ranges::count(failing, options.rank) == 0) {
        healthy.push_back(options);
      } else {
        threads.emplace_back(
            [&speakers, options] { speakers += !Store::fail_at_once(options, Ending::wrong_usage); });
      }
    }
    for (const Outcome& outcome : run(healthy, gather_once)) {
      EXPECT_EQ(outcome.lost, "");
      EXPECT_EQ(outcome.ending, Ending::wrong_usage);
    }
    for (std::thread& thread : threads) thread.join();
    EXPECT_EQ(speakers, 1);
  }
}

// One of this host's does, and the others end like it.
TEST_F(StoreTest, WithoutRank0ARankReportsItsOwnError) {
  std::vector<StoreOptions> ranks = all(3);
  ranks[1].patience = 100ms;
  EXPECT_FALSE(Store::fail_at_once(ranks[1], Ending::wrong_usage));
  EXPECT_EQ(Store::fail_at_once(ranks[2], Ending::error), Ending::wrong_usage);
}

// Another run of this host has chosen the same port.
TEST_F(StoreTest, AnErrorOfAnotherJobIsNotHeard) {
  StoreOptions failing = all(2)[1], waiting = failing;
  waiting.job += ", another one";
  failing.patience = waiting.patience = 1s;
  EXPECT_FALSE(Store::fail_at_once(failing, Ending::wrong_usage));
  const auto outcomes = run({waiting}, gather_once);
  EXPECT_EQ(outcomes[0].lost, "none");
  EXPECT_EQ(outcomes[0].ending, Ending::loss);
}

TEST_F(StoreTest, ARankThatKeepsTheOthersWaitingIsNamed) {
  for (const int busy : {0, 1}) {
    std::vector<StoreOptions> ranks = all(3);
    for (StoreOptions& options : ranks)
      options.is_waiting = [&options, busy] { return options.rank != busy; };
    const auto outcomes = run(ranks, [&](int rank, Store& store) {
      if (rank == 2) store.wait_too_long(7s);
      return gather_once_unless(rank == busy, rank, store);
    });
    const std::string start = fmt::format("rank {} on ", busy);
    EXPECT_TRUE(outcomes[0].lost.starts_with(start)) << outcomes[0].lost;
    EXPECT_NE(outcomes[0].lost.find("has kept others waiting for more than 7 s"), std::string::npos);
    EXPECT_EQ(outcomes[2].lost, "");
  }
}

TEST_F(StoreTest, RanksMayAgreeOnThePort) {
  std::vector<StoreOptions> ranks = all(2);
  std::promise<int> promise;
  const std::shared_future<int> port = promise.get_future().share();
  for (StoreOptions& options : ranks) {
    options.port = 0;
    options.agree = [&promise, port](int here) {
      if (here != 0) promise.set_value(here);
      return port.get();
    };
  }
  for (const Outcome& outcome : run(ranks, gather_once)) EXPECT_EQ(outcome.texts.size(), 2u);
}

TEST_F(StoreTest, AnErrorOfOneEndsTheOthersWithoutAWord) {
  for (const int failing : {0, 1}) {
    const auto outcomes = run(all(3), [&](int rank, Store& store) -> std::vector<std::string> {
      if (rank == failing) throw Error("fails", "test", "none");
      return gather_once(rank, store);
    });
    for (int r = 0; r < 3; ++r) {
      EXPECT_EQ(outcomes[static_cast<std::size_t>(r)].lost, r == failing ? "none" : "");
      EXPECT_NE(outcomes[static_cast<std::size_t>(r)].error, "");
    }
  }
}

}  // namespace
}  // namespace warpwright
