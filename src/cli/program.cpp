#include "cli/program.hpp"

#include <fmt/format.h>

#include "cli/arguments.hpp"
#include "cli/checks.hpp"
#include "cli/command.hpp"
#include "cli/completion.hpp"
#include "cli/manual.hpp"

namespace warpwright::cli {
namespace {

constexpr const char* kFooter =
    "Environment:\n"
    "  WARPWRIGHT_FORCE=OP=VARIANT,…  Variants to take, as info lists them: "
    "norm=cpu.avx2,matmul.dw=reference\n"
    "                                 (VARIANT[CONFIGURATION] also forces a configuration)\n"
    "  WARPWRIGHT_VERBOSE=1           A line for each operation called, with its variant and time\n"
    "  OMP_NUM_THREADS=N              CPU threads, if --threads is not given (info shows the default)\n"
    "  XDG_CACHE_HOME=FOLDER          The user's cache folder, instead of ~/.cache\n\n"
    "An option that takes one value may be given again: the last value counts.\n"
    "Exit codes: 0; 2 for wrong usage; 75 if another rank was lost or kept this one waiting too long; 1 for "
    "other errors; 128 + the signal's number after a signal (130 for Ctrl-C).";

void add_help(CLI::App& app) {
  CLI::App* command = app.add_subcommand("help", "Show the help of the program or of a command");
  auto words = std::make_shared<std::vector<std::string>>();
  command->add_option("command", *words, "The command; default: the program");
  command->callback([&app, words] { fmt::print("{}", help_of(command_named(app, *words))); });
}

}  // namespace

std::unique_ptr<CLI::App> make_program() {
  auto app = std::make_unique<CLI::App>(
      "Trains GPT-2, Llama and their relatives, continues texts with them, and turns texts into vectors with "
      "BERT's family, on its own kernels.",
      "warpwright");
  app->set_version_flag("-V,--version", WARPWRIGHT_VERSION);
  app->option_defaults()->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
  add_info(*app);
  add_tokenizer(*app);
  add_data(*app);
  add_train(*app);
  add_plan(*app);
  add_eval(*app);
  add_generate(*app);
  add_convert(*app);
  add_embed(*app);
  add_rank(*app);
  add_bench(*app);
  add_tune(*app);
  add_roofline(*app);
  add_help(*app);
  add_completion(*app);
  add_manual(*app);
  app->require_subcommand(1);
  app->footer(kFooter);  // after the commands, which would inherit it
  check_values(*app);
  return app;
}

std::string help_of(const CLI::App& command) {
  return command.get_formatter()->make_help(&command, full_name(command), CLI::AppFormatMode::Normal);
}

}  // namespace warpwright::cli
