#include "cli/roofline_flags.hpp"

#include <fmt/format.h>

#include "cli/checks.hpp"
#include "core/error.hpp"
#include "runtime/ceiling.hpp"
#include "runtime/stream.hpp"

namespace warpwright::cli {
namespace {

using namespace roofline;

void add_machine_flags(CLI::App& command, RooflineFlags& f) {
  command.add_option("--gpu", f.gpu,
                     fmt::format("A GPU by its published figures: {}; default: --device", known_names()));
  command.add_option("--device", f.device, "The GPU present, measured: cuda or cuda:N; default: --gpu")
      ->check(device_name());
  command.add_option("--dtype", f.dtype, "bf16, fp16, tf32 or fp32; sums are fp32")
      ->capture_default_str()
      ->check(one_of({"bf16", "fp16", "tf32", "fp32"}));
  command
      .add_option("--matrix-tflops", f.matrix_tflops,
                  "Peak to assume for the GPU, such as a measured one; default: its own")
      ->check(CLI::Range(1e-3, 1e9));
  command
      .add_option("--memory-bandwidth", f.memory_gb,
                  "Memory bandwidth to assume for the GPU, GB/s; default: its own")
      ->check(CLI::Range(1e-3, 1e9));
}

void add_tiling_flags(CLI::App& command, RooflineFlags& f) {
  const auto shape_list = [&](const char* name, std::vector<std::string>& list, const char* what) {
    command.add_option(name, list, what)->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
  };
  shape_list("--instruction", f.instructions,
             "Instruction shapes MxNxK, as 16x8x16 or (Hopper) 64x256x16; default: the GPU's");
  shape_list("--warp", f.warps, "Warp tiles MxNxK; with wgmma a warpgroup's; default: several");
  shape_list("--tile", f.tiles,
             "Thread-block tiles MxNxK, as 128x256x64 (one, for a product); default: each schedule's best");
  command.add_option("--cluster", f.cluster,
                     "Thread blocks MxN that share factors by multicast; default: 2x1 on Hopper, else 1x1");
}

void add_product_flags(CLI::App& command, RooflineFlags& f) {
  command.add_option("--m", f.M, "Analyse a product: the rows (tokens) of a linear layer; default: none");
  command.add_option("--n", f.N, "The layer's outputs; default: none");
  command.add_option("--k", f.K, "The layer's inputs; with --map, the depth of the products; default: none");
  command.add_option("--op", f.op, "Which of the layer's products: forward, dx or dw")
      ->capture_default_str()
      ->check(one_of({"forward", "dx", "dw"}));
  command.add_option("--schedule", f.schedule, "Only block, persistent or stream_k; default: all")
      ->check(one_of({"block", "persistent", "stream_k"}));
}

void add_cost_flags(CLI::App& command, RooflineFlags& f) {
  command
      .add_option("--blocks-per-multiprocessor", f.blocks_per_multiprocessor,
                  "Thread blocks a multiprocessor holds")
      ->capture_default_str()
      ->check(CLI::Range(1, 32));
  command.add_option("--launch-us", f.launch_us, "Microseconds between kernels; the defaults are an H200's")
      ->capture_default_str()
      ->check(CLI::Range(0.0, 1e6));
  command.add_option("--latency-us", f.latency_us, "Microseconds until a block's first products")
      ->capture_default_str()
      ->check(CLI::Range(0.0, 1e6));
  command.add_option("--hand-over-us", f.hand_over_us, "Microseconds until partial sums can be read")
      ->capture_default_str()
      ->check(CLI::Range(0.0, 1e6));
}

void add_report_flags(CLI::App& command, RooflineFlags& f) {
  command.add_flag("--explain", f.explain, "Print every formula with its figures");
  command.add_option("--measured", f.measured,
                     "Records of `bench ops --json` or bench/results to compare with; default: none");
  command.add_option("--filter", f.filter,
                     "Only records whose operation, variant and problem contain this; default: all");
  command.add_flag("--measure", f.measure, "Also time the product on the GPU present");
  command.add_flag("--kernels", f.kernels,
                   "Print the occupancy of the kernels on mma.sync, and their times for the product");
  command.add_flag("--map", f.map, "Print the fastest schedule for many shapes of depth --k");
  command.add_flag("--json", f.json, "Print JSON, which tools/plot.py draws");
}

Machine present_machine(const Device& place) {
  constexpr double kSeconds = 0.3;
  const DeviceInfo device = device_info(place);
  make_current(place);
  const PeakFlops peak = measure_peak_flops(device, kSeconds);
  const Bandwidth bandwidth = measure_bandwidth(device, bandwidth_footprint(device), kSeconds);
  Measured m;
  m.name = device.name;
  m.major = device.gpu.major, m.minor = device.gpu.minor;
  m.multiprocessors = device.gpu.multiprocessors;
  m.l2_bytes = static_cast<std::int64_t>(device.l2_bytes);
  m.shared_bytes = static_cast<std::int64_t>(device.gpu.shared_bytes_per_multiprocessor);
  m.shared_bytes_per_block = static_cast<std::int64_t>(device.gpu.shared_bytes_per_block);
  m.matrix_flops = peak.bf16, m.fp32_flops = peak.fp32;
  m.memory_bytes_per_second = bandwidth.read;
  return measured_machine(m);
}

}  // namespace

void RooflineFlags::add_to(CLI::App& command) {
  add_machine_flags(command, *this);
  add_tiling_flags(command, *this);
  add_product_flags(command, *this);
  add_cost_flags(command, *this);
  add_report_flags(command, *this);
}

Device RooflineFlags::place() const {
  DeviceFlags flags;
  flags.device = device;
  const Device named = flags.place();
  if (named.kind != DeviceKind::cuda) {
    throw UsageError(fmt::format("'{}' is not a GPU", device), "--device",
                     "use cuda or cuda:N, or --gpu NAME");
  }
  return named;
}

Machine RooflineFlags::machine(Math math) const {
  if (gpu.empty() == device.empty()) {
    throw UsageError(
        gpu.empty() ? "no GPU is named" : "a GPU by name and the one present are asked for",
        "--gpu, --device",
        fmt::format("give one of the two: --gpu with one of {}, or --device cuda", known_names()));
  }
  const Machine whole = gpu.empty() ? present_machine(place()) : published_machine(gpu);
  if (matrix_tflops == 0 && memory_gb == 0) return whole;
  Machine held = held_to(whole, math, matrix_tflops * 1e12, memory_gb * 1e9);
  held.source += "; held to";
  if (matrix_tflops > 0) held.source += fmt::format(" {:g} TFLOP/s", matrix_tflops);
  if (memory_gb > 0) held.source += fmt::format("{} {:g} GB/s", matrix_tflops > 0 ? "," : "", memory_gb);
  return held;
}

}  // namespace warpwright::cli
