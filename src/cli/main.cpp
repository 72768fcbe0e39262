// warpwright: trains and runs decoders, and runs encoders of BERT's family, on its own kernels.
#include <fmt/format.h>

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <exception>
#include <filesystem>
#include <new>
#include <system_error>

#include "cli/arguments.hpp"
#include "cli/gpu_ranks.hpp"
#include "cli/on_ranks.hpp"
#include "cli/program.hpp"
#include "cli/rank_order.hpp"
#include "cli/signals.hpp"
#include "cli/standard_streams.hpp"
#include "cli/waiting.hpp"
#include "core/error.hpp"
#include "runtime/mapped_file.hpp"

namespace {

using warpwright::Ending;
using warpwright::Error;
bool runs_alone = false;  // the command does not run over ranks

int fail(Ending ending, std::string_view message) {
  if (runs_alone) {
    warpwright::cli::report_error(message);
  } else {
    ending = warpwright::cli::end_launched(ending, message);
  }
  return static_cast<int>(ending);
}

int run(const std::vector<std::string>& words) {
  using namespace warpwright::cli;
  const auto program = make_program();
  for (const CLI::App* command : shown_commands(*program)) {
    if (words.empty() || command->get_name() != words[0]) continue;
    runs_alone = !is_on_ranks(*command);
  }
  Arguments arguments = read_arguments(*program, words);
  if (arguments.asked == Asked::help) {
    fmt::print("{}", help_of(*arguments.command));
  } else if (arguments.asked == Asked::version) {
    fmt::print("{}\n", WARPWRIGHT_VERSION);
  } else {
    std::reverse(arguments.words.begin(), arguments.words.end());  // CLI11 takes them in reverse order
    try {
      program->parse(arguments.words);
    } catch (const CLI::ParseError& error) {
      return fail(Ending::wrong_usage,
                  fmt::format("{}; see `{} --help`", error.what(), full_name(*arguments.command)));
    }
  }
  require_whole_output();
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  warpwright::cli::limit_spinning(argv);
  warpwright::cli::claim_standard_streams();
  warpwright::guard_mappings();
  warpwright::cli::end_cleanly_on_signals();
  std::signal(SIGXFSZ, SIG_IGN);  // a file beyond the limit (ulimit -f) is then an error of writing it
  try {
    return run(std::vector<std::string>(argv + std::min(argc, 1), argv + argc));
  } catch (const warpwright::cli::StoppedBySignal& stop) {
    return 128 + stop.signal;
  } catch (const warpwright::cli::RanksFailed& failed) {
    return failed.code;
  } catch (const Error& error) {
    return fail(warpwright::ending_of(error), error.what());
  } catch (const std::bad_alloc&) {
    return fail(Ending::error, "out of memory; use a smaller batch, sequence, model or input");
  } catch (const std::filesystem::filesystem_error& error) {
    const Error whole(error.code().message(), error.path1().string(), "check the path and its permissions");
    return fail(Ending::error, whole.what());
  } catch (const std::system_error& error) {
    if (std::ferror(stdout) == 0) return fail(Ending::error, error.what());
    const Error whole(fmt::format("cannot write: {}", error.code().message()), "standard output",
                      "check the free space or the program that reads it");
    return fail(Ending::error, whole.what());
  } catch (const std::exception& error) {
    return fail(Ending::error, error.what());
  }
}
