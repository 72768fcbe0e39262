// warpwright bench ops: every variant of the operations, one by one.
#include <fmt/format.h>

#include <cstdint>
#include <iostream>
#include <memory>
#include <string>
#include <vector>

#include "cli/bench.hpp"
#include "cli/checks.hpp"
#include "cli/command.hpp"
#include "core/error.hpp"
#include "ops/testing/bench.hpp"

namespace warpwright::cli {
namespace {

struct BenchOpsFlags {
  std::vector<std::string> names;
  std::string dtype = "fp32", filter;
  std::int64_t working_set = 0;  // MiB
  bool configurations = false, json = false;
  DeviceFlags device;
};

// --configurations names each of them in turn, and a forced one would come before it.
void refuse_forced_configurations(const ContextOptions& options) {
  for (const auto& [operation, choice] : options.force) {
    if (parts_of(choice).configuration.empty()) continue;
    throw UsageError(fmt::format("WARPWRIGHT_FORCE names the configuration {}", choice), "--configurations",
                     "force the variant alone, or leave out --configurations");
  }
}

void run(const BenchOpsFlags& flags) {
  ops::BenchOptions options;
  options.context = flags.device.context_options(flags.dtype);
  if (flags.configurations) refuse_forced_configurations(options.context);
  options.device = flags.device.place();
  if (options.device.kind == DeviceKind::cuda) options.case_seconds = 0.2;  // hundreds of calls
  options.filter = flags.filter;
  options.working_set = static_cast<std::size_t>(flags.working_set) << 20;
  options.configurations = flags.configurations;
  options.json = flags.json;
  warn_if_disturbed(ops::run_benches(flags.names, options, std::cout));
}

}  // namespace

void add_bench_ops(CLI::App& bench) {
  CLI::App* command = bench.add_subcommand("ops", "Time every variant of operations against this machine");
  auto f = std::make_shared<BenchOpsFlags>();
  command->add_option("op", f->names, "Operations; default: all")->check(one_of(ops::bench_names()));
  command->add_option("--filter", f->filter,
                      "Only rows whose operation, variant and problem contain this; default: all");
  command->add_option("--dtype", f->dtype, "fp32, or tf32 (GPU): products of fp32 tensors may round to it")
      ->capture_default_str()
      ->check(one_of({"fp32", "tf32"}));
  command
      ->add_option("--working-set", f->working_set,
                   "MiB that a case's tensors take at least, in copies that take turns; 0: four times the "
                   "second-level caches")
      ->capture_default_str()
      ->check(CLI::Range(0, 1 << 20));
  command->add_flag("--configurations", f->configurations,
                    "Time every configuration of each variant, such as its block sizes, not only its choice");
  command->add_flag("--json", f->json, "Print JSON");
  f->device.add_to(*command);
  command->callback([f] { run(*f); });
}

}  // namespace warpwright::cli
