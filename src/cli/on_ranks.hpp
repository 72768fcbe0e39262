// Commands whose work several processes share: --gpus, other launchers, and errors that end all ranks.
#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "cli/command.hpp"
#include "comm/comm.hpp"
#include "infer/share.hpp"

namespace warpwright::cli {

// --gpus and --collective-timeout.
struct OnRanksFlags {
  std::string gpus;                       // N, all or ""
  std::int64_t collective_timeout = 600;  // seconds
  const CLI::App* command = nullptr;      // whose name and options the ranks compare

  // Adds these options to a command that calls run_on_ranks(), after --device, which --gpus excludes.
  void add_to(CLI::App& app);
  // For a command that calls run_on_ranks() but has none of these options.
  void set_command(const CLI::App& app);
};

// True for the command of an OnRanksFlags: under a launcher, one rank alone reports its errors, those of its
// options too.
bool is_on_ranks(const CLI::App& command);

// Runs the work in this process, or in one for each GPU of --gpus. Texts travel between the ranks by the
// Comm. An error of one rank ends all, with one line. `prepare` comes before the ranks connect: its errors do
// not wait for other ranks.
void run_on_ranks(const OnRanksFlags& flags, const std::function<void(const Launch& launch)>& prepare,
                  const std::function<void(const Comm& texts)>& work);

// Runs a part of that work. An error ends the ranks at once, without unwinding, if there are several.
void ending_ranks(const Comm& comm, const std::function<void()>& work);

// A command's ranks exchange texts, or tensors as well. Between CPUs, tensors need MPI.
enum class Exchanged : std::uint8_t { texts, tensors };

// `device` names this rank's GPU from here on. Throws UsageError if ranks on CPUs could not exchange tensors.
void choose_device(const OnRanksFlags& flags, DeviceFlags& device, const CLI::App& command,
                   const Launch& launch, Exchanged exchanged);

// This rank's share of work whose results rank 0 gets. The Comm must outlive it.
Share share_of(const Comm& texts);

// Throws Error, which names the first difference, if the ranks have different programs, kinds of device or
// options, but for those that change no result, or different `contents`, a fingerprint of what they read.
void require_same_work(const Comm& texts, const OnRanksFlags& flags, const Context& context,
                       const std::string& contents = "");

// Throws Error if the ranks find other weights in these folders or files, the model's own first.
void require_same_weights(const Comm& texts, const std::vector<std::filesystem::path>& sources);

// Throws UsageError if several ranks cannot all read the input: standard input belongs to rank 0 alone.
// Throws Error if its contents differ. An empty path or "-" is standard input.
void require_same_input(const Comm& texts, const std::filesystem::path& input, const std::string& option);

}  // namespace warpwright::cli
