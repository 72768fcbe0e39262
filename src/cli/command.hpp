// The subcommands of `warpwright`, one file each. add_NAME registers the subcommand with its flags. A command
// that fails throws UsageError (exit code 2) or Error (exit code 1), each of which is one clear line.
#pragma once

#include <CLI/CLI.hpp>
#include <string>
#include <string_view>

#include "core/human_bytes.hpp"
#include "runtime/context.hpp"

namespace warpwright::cli {

void add_info(CLI::App& app);
void add_tokenizer(CLI::App& app);
void add_data(CLI::App& app);
void add_train(CLI::App& app);
void add_eval(CLI::App& app);
void add_generate(CLI::App& app);
void add_convert(CLI::App& app);
void add_embed(CLI::App& app);
void add_rank(CLI::App& app);
void add_plan(CLI::App& app);
void add_bench(CLI::App& app);
void add_tune(CLI::App& app);
void add_roofline(CLI::App& app);

// Parses a value of --device: cpu, cuda or cuda:N.
CLI::Validator device_name();

// --device and --threads, shared by the commands that compute.
struct DeviceFlags {
  std::string device = "cpu";
  int threads = 0;

  void add_to(CLI::App& command);
  // "cpu", "cuda" (its first GPU) or "cuda:N"; UsageError for anything else.
  Device place() const;
  // Options from the flags and the environment, with forced variants checked. Log lines go to stderr. The
  // dtype must be one that the device computes in; "tf32" sets the mode of products.
  ContextOptions context_options(const std::string& dtype) const;
};

// For people: "1h 02m", "4,300,000".
std::string human_seconds(double seconds);
std::string human_count(std::int64_t count);
// "1 node", "8 nodes", "2 batches".
std::string counted(std::int64_t count, std::string_view what);

// Prints a line that overwrites itself on a terminal (to stderr). Prints nothing if stderr is not a terminal.
class ProgressLine {
 public:
  ProgressLine();
  ~ProgressLine();  // clears the line
  void show(const std::string& text);
  void clear();
  bool on_terminal() const { return terminal_; }

 private:
  bool terminal_;
  bool shown_ = false;
};

}  // namespace warpwright::cli
