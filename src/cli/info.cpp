// warpwright info: the machine and the variants of every operation on it.
#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "cli/command.hpp"
#include "ops/registry.hpp"

namespace warpwright::cli {
namespace {

nlohmann::json describe_machine(const DeviceInfo& device) {
  return {{"version", WARPWRIGHT_VERSION},
          {"device", "cpu"},
          {"name", device.name},
          {"threads", device.threads},
          {"avx2", device.cpu.avx2},
          {"avx512", device.cpu.avx512},
          {"amx_bf16", device.cpu.amx_bf16},
          {"l1_bytes", device.l1_bytes},
          {"l2_bytes", device.l2_bytes},
          {"l3_bytes", device.l3_bytes},
          {"memory_bytes", device.memory_bytes}};
}

void print_table(const DeviceInfo& device) {
  const auto yes = [](bool has) { return has ? "yes" : "no"; };
  fmt::print("warpwright {}\n{}: {} threads, {} memory\n", WARPWRIGHT_VERSION, device.name, device.threads,
             human_bytes(static_cast<double>(device.memory_bytes)));
  fmt::print("AVX2 {}, AVX-512 {}, AMX bf16 {}\n\n", yes(device.cpu.avx2), yes(device.cpu.avx512),
             yes(device.cpu.amx_bf16));
  for (const ops::OpInfo& op : ops::all_ops(device)) {
    fmt::print("{}\n", op.name);
    for (const ops::VariantInfo& variant : op.variants) {
      fmt::print("  {:<16}{}\n", variant.name, variant.refusal);
    }
  }
}

}  // namespace

void add_info(CLI::App& app) {
  CLI::App* command = app.add_subcommand("info", "Show the machine and the variants of every operation");
  auto json = std::make_shared<bool>(false);
  command->add_flag("--json", *json, "Print JSON");
  command->callback([json] {
    const DeviceInfo device = cpu_device_info();
    if (!*json) return print_table(device);
    nlohmann::json out = describe_machine(device);
    for (const ops::OpInfo& op : ops::all_ops(device)) {
      for (const ops::VariantInfo& variant : op.variants) {
        out["ops"][op.name].push_back({{"variant", variant.name}, {"refusal", variant.refusal}});
      }
    }
    fmt::print("{}\n", out.dump(2));
  });
}

}  // namespace warpwright::cli
