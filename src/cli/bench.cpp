#include "cli/bench.hpp"

#include <fmt/format.h>

#include "cli/command.hpp"
#include "cli/standard_streams.hpp"

namespace warpwright::cli {

void warn_if_disturbed(const Disturbance& disturbance) {
  if (disturbance.found()) write_message(fmt::format("warpwright: bench: {}\n", disturbance.describe()));
}

void add_bench(CLI::App& app) {
  CLI::App* command =
      app.add_subcommand("bench", "Time operations, a training step, an encoder or a decoding step");
  command->require_subcommand(1);
  add_bench_ops(*command);
  add_bench_step(*command);
  add_bench_encoder(*command);
  add_bench_decode(*command);
  add_bench_products(*command);
  add_bench_schedules(*command);
}

}  // namespace warpwright::cli
