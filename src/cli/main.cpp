// warpwright: trains GPT-class transformers on its own kernels.
#include <fmt/format.h>

#include <exception>
#include <new>

#include "cli/command.hpp"
#include "core/error.hpp"

namespace {

constexpr int kFailed = 1, kWrongUsage = 2;

int run(int argc, char** argv) {
  using namespace warpwright::cli;
  CLI::App app("Trains GPT-class transformers on its own kernels.", "warpwright");
  app.set_version_flag("--version", WARPWRIGHT_VERSION);
  app.require_subcommand(1);
  app.option_defaults()->multi_option_policy(
      CLI::MultiOptionPolicy::TakeLast);  // a flag given twice: the last counts
  add_info(app);
  add_tokenizer(app);
  add_data(app);
  add_train(app);
  add_eval(app);
  add_generate(app);
  add_convert(app);
  add_embed(app);
  add_rank(app);
  add_bench(app);
  add_roofline(app);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() == 0) return app.exit(error);  // --help, --version
    fmt::print(stderr, "warpwright: {}; see `warpwright --help`\n", error.what());
    return kWrongUsage;
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    return run(argc, argv);
  } catch (const warpwright::UsageError& error) {
    fmt::print(stderr, "warpwright: {}\n", error.what());
    return kWrongUsage;
  } catch (const std::bad_alloc&) {
    fmt::print(stderr, "warpwright: out of memory; use a smaller batch, sequence, model or input\n");
  } catch (const std::exception& error) {
    fmt::print(stderr, "warpwright: {}\n", error.what());
  }
  return kFailed;
}
