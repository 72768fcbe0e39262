#include "cli/on_ranks.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <new>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>

#include "cli/checks.hpp"
#include "cli/gpu_ranks.hpp"
#include "cli/rank_order.hpp"
#include "cli/standard_streams.hpp"
#include "comm/host.hpp"
#include "core/error.hpp"
#include "model/safetensors_folder.hpp"
#include "runtime/file.hpp"
#include "runtime/partial.hpp"

namespace warpwright::cli {
namespace {

// The names of commands that call run_on_ranks().
std::set<std::string>& commands_on_ranks() {
  static std::set<std::string> names;
  return names;
}

// Ends a rank that cannot go on, from whichever thread notes it. Nothing here waits for a GPU: what it has
// begun may never end.
[[noreturn]] void end_process(const std::string& line, Ending ending) {
  if (!line.empty()) report_error(line);
  remove_live_partials();  // before the launcher ends this process
  wait_for_others(!line.empty());
  ::_exit(static_cast<int>(ending));
}

// Ends all ranks because of an error of this one.
[[noreturn]] void end_failed_rank(const Comm& comm, const Error& error) {
  const std::string place = fmt::format("{}, {}", rank_on_host(comm.rank()), error.where());
  const std::optional<Ending> told = comm.fail(ending_of(error));
  std::fflush(stdout);
  if (told) end_process("", *told);
  end_process(Error(error.problem(), place, error.remedy()).what(), ending_of(error));
}

}  // namespace

bool is_on_ranks(const CLI::App& command) {
  return commands_on_ranks().contains(command.get_name());
}

void OnRanksFlags::set_command(const CLI::App& app) {
  command = &app;
  commands_on_ranks().insert(app.get_name());
}

void OnRanksFlags::add_to(CLI::App& app) {
  set_command(app);
  app.add_option("--gpus", gpus,
                 "Use this many GPUs of this machine, or all of them, with a process for each; default: one "
                 "process on --device")
      ->check(gpus_to_use())
      ->excludes(app.get_option("--device"));
  app.add_option("--collective-timeout", collective_timeout,
                 "Seconds that ranks wait for each other before they end; 0: no limit")
      ->capture_default_str()
      ->check(at_least(0));
}

void run_on_ranks(const OnRanksFlags& flags, const std::function<void(const Launch& launch)>& prepare,
                  const std::function<void(const Comm& texts)>& work) {
  const Launch launch = read_launch();
  if (!flags.gpus.empty()) {
    const int gpus = count_gpus(flags.gpus);
    if (launch.ranks > 1 && launch.local_ranks != gpus) {
      throw UsageError("starts processes of its own, but a launcher has started this one", "--gpus",
                       "use --device cuda");
    }
    if (launch.ranks == 1 && gpus > 1) {
      if (const int code = run_on_gpus(gpus); code != 0) throw RanksFailed{code};
      return;
    }
  }
  prepare(launch);
  begin_to_connect();
  const std::unique_ptr<const Comm> comm = connect_ranks(
      launch, {std::chrono::seconds(flags.collective_timeout), end_process, flags.command->get_name()});
  ending_ranks(*comm, [&] { work(*comm); });
}

void ending_ranks(const Comm& comm, const std::function<void()>& work) {
  if (comm.size() == 1) return work();
  try {
    work();
  } catch (const Error& error) {
    end_failed_rank(comm, error);
  } catch (const std::exception& error) {
    const bool no_memory = dynamic_cast<const std::bad_alloc*>(&error) != nullptr;
    end_failed_rank(comm, Error(no_memory ? "out of memory" : error.what(), "work of the rank",
                                "give the ranks what they lack, and start again (train: with --resume)"));
  }
}

void choose_device(const OnRanksFlags& flags, DeviceFlags& device, const CLI::App& command,
                   const Launch& launch, Exchanged exchanged) {
  if (!flags.gpus.empty()) device.device = "cuda";
  if (launch.ranks > 1 && command.count("--device") > 0 && device.device.starts_with("cuda:")) {
    throw UsageError(fmt::format("names one GPU for {} ranks", launch.ranks), "--device",
                     "use --device cuda: each rank takes one");
  }
  const Device asked = device.place();
  if (asked.kind == DeviceKind::cpu && exchanged == Exchanged::texts) return;
  const Device place = device_of_rank(launch, asked);
  if (place.kind == DeviceKind::cuda) device.device = fmt::format("cuda:{}", place.index);
}

Share share_of(const Comm& texts) {
  return {.rank = texts.rank(),
          .ranks = texts.size(),
          .all_gather = [&texts](std::string_view mine) { return texts.all_gather(mine); },
          .gather = [&texts](std::string_view mine) { return texts.gather(mine); }};
}

namespace {

// The options that the user has given to a command, a line for each, without those that change no result.
std::set<std::string> options_given(const CLI::App& command) {
  static const std::set<std::string> kFree = {
      "--collective-timeout", "--device", "--gpus", "--out", "--threads", "--weights-cache"};
  std::set<std::string> lines;
  for (const CLI::Option* option : command.get_options()) {
    if (option->count() == 0 || kFree.contains(option->get_name())) continue;
    lines.insert(fmt::format("{} {}", option->get_name(), fmt::join(option->results(), " ")));
  }
  return lines;
}

// "--seq 8", or "no such option": the first line of `lines` that `others` lack.
std::string first_besides(const nlohmann::json& lines, const nlohmann::json& others) {
  for (const auto& line : lines) {
    if (std::ranges::find(others, line) == others.end()) return line.get<std::string>();
  }
  return "no such option";
}

}  // namespace

void require_same_work(const Comm& texts, const OnRanksFlags& flags, const Context& context,
                       const std::string& contents) {
  if (texts.size() == 1) return;
  const nlohmann::json mine = {{"program", checksum_of(std::filesystem::path("/proc/self/exe"))},
                               {"kind of device", context.device().name},
                               {"options", options_given(*flags.command)},
                               {"contents of the data", contents}};
  const std::vector<std::string> all = texts.all_gather(mine.dump());
  const auto first = nlohmann::json::parse(all.front());
  for (std::size_t r = 1; r < all.size(); ++r) {
    const auto other = nlohmann::json::parse(all[r]);
    for (const auto& [what, value] : first.items()) {
      if (other.at(what) == value) continue;
      const std::string pair = what != "options"
                                   ? ""
                                   : fmt::format(": {} and {}", first_besides(value, other.at(what)),
                                                 first_besides(other.at(what), value));
      throw Error(fmt::format("rank 0 and rank {} differ in the {}{}", r, what, pair),
                  flags.command->get_name(),
                  "give all ranks the same program, kind of device, options and files");
    }
  }
}

void require_same_weights(const Comm& texts, const std::vector<std::filesystem::path>& sources) {
  if (texts.size() == 1) return;
  std::string mine;
  for (const std::filesystem::path& source : sources) mine += checksum_of_weights(source);
  const std::vector<std::string> all = texts.all_gather(mine);
  for (std::size_t r = 1; r < all.size(); ++r) {
    if (all[r] == all.front()) continue;
    throw Error(fmt::format("rank 0 and rank {} differ in the weights", r), sources.front().string(),
                "give all ranks the same model");
  }
}

void require_same_input(const Comm& texts, const std::filesystem::path& input, const std::string& option) {
  if (texts.size() == 1) return;
  if (input.empty() || input == "-") {
    throw UsageError(fmt::format("is standard input, which only one of {} ranks has", texts.size()), option,
                     "name a file that all ranks can read");
  }
  if (path_exists(input) && !std::filesystem::is_regular_file(input)) {
    throw Error("is not a regular file, and several ranks must read it", input.string(),
                "write it to a file first, or start one process");
  }
  const std::vector<std::string> all = texts.all_gather(checksum_of(input));
  for (std::size_t r = 1; r < all.size(); ++r) {
    if (all[r] == all.front()) continue;
    throw Error(fmt::format("rank 0 and rank {} differ in the contents of the input", r), input.string(),
                "give all ranks the same file");
  }
}

}  // namespace warpwright::cli
