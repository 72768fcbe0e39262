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

using warpwright::cli::kWrongUsage;
constexpr int kFailed = 1;
bool runs_alone = false;  // the command does not run over ranks

int fail(int code, std::string_view message) {
  if (!runs_alone && !warpwright::cli::may_report()) return code;
  warpwright::cli::report_error(message);
  if (!runs_alone) warpwright::cli::end_other_ranks();
  return code;
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
      return fail(kWrongUsage,
                  fmt::format("{}; see `{} --help`", error.what(), full_name(*arguments.command)));
    }
  }
  require_whole_output();
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  using warpwright::Error;
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
  } catch (const warpwright::UsageError& error) {
    return fail(kWrongUsage, error.what());
  } catch (const std::bad_alloc&) {
    return fail(kFailed, "out of memory; use a smaller batch, sequence, model or input");
  } catch (const std::filesystem::filesystem_error& error) {
    const Error whole(error.code().message(), error.path1().string(), "check the path and its permissions");
    return fail(kFailed, whole.what());
  } catch (const std::system_error& error) {
    if (std::ferror(stdout) == 0) return fail(kFailed, error.what());
    const Error whole(fmt::format("cannot write: {}", error.code().message()), "standard output",
                      "check the free space or the program that reads it");
    return fail(kFailed, whole.what());
  } catch (const std::exception& error) {
    return fail(kFailed, error.what());
  }
}
