// warpwright bench schedules: block, persistent and Stream-K compared over matrix products.
#include <iostream>
#include <memory>
#include <string>
#include <vector>

#include "cli/bench.hpp"
#include "cli/checks.hpp"
#include "cli/command.hpp"
#include "ops/matmul/schedules_bench.hpp"

namespace warpwright::cli {
namespace {

struct BenchSchedulesFlags {
  std::vector<std::string> shapes;
  std::string dtype = "bf16", instruction = "mma";
  int rounds = 5;
  bool json = false;
  DeviceFlags device{.device = "cuda"};
};

void run(const BenchSchedulesFlags& flags) {
  ops::matmul::ScheduleBenchOptions options;
  options.context = flags.device.context_options(flags.dtype);
  options.device = flags.device.place();
  options.shapes = ops::matmul::product_shapes(flags.shapes);
  options.dtype = flags.dtype == "bf16" ? DType::bf16 : flags.dtype == "fp16" ? DType::f16 : DType::f32;
  options.wgmma = flags.instruction == "wgmma";
  options.rounds = flags.rounds;
  options.json = flags.json;
  ops::matmul::bench_schedules(options, std::cout);
}

}  // namespace

void add_bench_schedules(CLI::App& bench) {
  CLI::App* command = bench.add_subcommand(
      "schedules",
      "Compare matmul's block, persistent and Stream-K schedules with the rate of their instruction");
  auto f = std::make_shared<BenchSchedulesFlags>();
  command
      ->add_option("shape", f->shapes,
                   "gpt2, bert, random:COUNT[:SEED], MxNxK, gelu:MxNxK, residual:MxNxK or fp32:MxNxK")
      ->required();
  command->add_option("--dtype", f->dtype, "bf16, fp16 or tf32 (of mma)")
      ->capture_default_str()
      ->check(one_of({"bf16", "fp16", "tf32"}));
  command
      ->add_option("--instruction", f->instruction,
                   "mma (mma.sync, compute capability 8.0 and later) or wgmma (Hopper)")
      ->capture_default_str()
      ->check(one_of({"mma", "wgmma"}));
  command->add_option("--rounds", f->rounds, "Samples of each kernel")
      ->capture_default_str()
      ->check(CLI::Range(1, 1000));
  command->add_flag("--json", f->json, "Print JSON");
  f->device.add_to(*command);
  command->callback([f] { run(*f); });
}

}  // namespace warpwright::cli
