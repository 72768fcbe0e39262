// The subcommands of `warpwright bench`, one file each.
#pragma once

#include <CLI/CLI.hpp>

#include "runtime/load.hpp"

namespace warpwright::cli {

void add_bench_ops(CLI::App& bench);
void add_bench_step(CLI::App& bench);
void add_bench_encoder(CLI::App& bench);
void add_bench_decode(CLI::App& bench);
void add_bench_products(CLI::App& bench);
void add_bench_schedules(CLI::App& bench);

// Prints a line on standard error if something else used the machine while it was measured.
void warn_if_disturbed(const Disturbance& disturbance);

}  // namespace warpwright::cli
