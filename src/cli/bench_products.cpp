// warpwright bench products: the kernels for matrix products on a Hopper GPU, compared with cuBLASLt's.
#include <filesystem>
#include <iostream>
#include <memory>
#include <string>
#include <vector>

#include "cli/bench.hpp"
#include "cli/checks.hpp"
#include "cli/command.hpp"
#include "cli/model_flags.hpp"
#include "cli/tuned_flags.hpp"
#include "ops/matmul/products_bench.hpp"

namespace warpwright::cli {
namespace {

struct BenchProductsFlags {
  std::vector<std::string> shapes;
  bool bias_gradient = false;
  int rounds = 5;
  double seconds = 0, within = 3;
  std::filesystem::path table, timeline;
  bool json = false;
  DeviceFlags device{.device = "cuda"};
  TunedFlags tuned;
};

void run(const BenchProductsFlags& flags) {
  ops::matmul::ProductBenchOptions options;
  options.context = flags.device.context_options("bf16");
  options.device = flags.device.place();
  options.context.tuned = flags.tuned.load(options.device, notify_of("bench"));
  options.shapes = ops::matmul::product_shapes(flags.shapes);
  options.bias_gradient = flags.bias_gradient;
  options.rounds = flags.rounds;
  options.seconds = flags.seconds;
  options.within = flags.within;
  options.table = flags.table;
  options.json = flags.json;
  if (!flags.timeline.empty()) return ops::matmul::trace_products(options, flags.timeline, std::cout);
  ops::matmul::bench_products(options, std::cout);
}

}  // namespace

void add_bench_products(CLI::App& bench) {
  CLI::App* command =
      bench.add_subcommand("products", "Time every matmul kernel on a Hopper GPU, and cuBLASLt's proposals");
  auto f = std::make_shared<BenchProductsFlags>();
  command
      ->add_option("shape", f->shapes,
                   "gpt2, bert, random:COUNT[:SEED], MxNxK, gelu:MxNxK, residual:MxNxK or fp32:MxNxK")
      ->required();
  command->add_flag("--bias-gradient", f->bias_gradient, "Let dw compute the bias's gradient too");
  command->add_option("--rounds", f->rounds, "Samples of each kernel")
      ->capture_default_str()
      ->check(CLI::Range(1, 1000));
  command->add_option("--seconds", f->seconds, "Begin no product after this many seconds; 0: no limit")
      ->capture_default_str();
  command
      ->add_option(
          "--within", f->within,
          "Time our kernels that are predicted to take at most this many times as long as the fastest "
          "(plus everything that cuBLASLt proposes)")
      ->capture_default_str()
      ->check(CLI::Range(1.0, 1e6));
  command->add_option("--table", f->table,
                      "Write all times to this file, which tools/fit_matmul.py reads; default: do not");
  command->add_option("--timeline", f->timeline,
                      "Write when a block of the first forward multiplies and when it stores, JSON for "
                      "tools/plot.py timeline; default: do not");
  command->add_flag("--json", f->json, "Print JSON");
  f->device.add_to(*command);
  f->tuned.add_to(*command);
  command->callback([f] { run(*f); });
}

}  // namespace warpwright::cli
