// warpwright info: the machine and the variants of every operation on it.
#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "cli/command.hpp"
#include "ops/registry.hpp"
#include "runtime/threads.hpp"
#include "text/split_expression.hpp"

namespace warpwright::cli {
namespace {

nlohmann::json describe_cpu(const DeviceInfo& device) {
  const DefaultThreads threads = default_threads();
  const auto quota = threads.quota ? nlohmann::json(threads.quota->processors) : nlohmann::json();
  return {{"device", "cpu"},
          {"name", device.name},
          {"threads", threads.threads},
          {"threads_from", threads.reason()},
          {"affinity_processors", threads.processors},
          {"cgroup_quota_processors", quota},
          {"avx2", device.cpu.avx2},
          {"avx_vnni", device.cpu.avx_vnni},
          {"avx512", device.cpu.avx512},
          {"avx512_vnni", device.cpu.avx512_vnni},
          {"avx512_bf16", device.cpu.avx512_bf16},
          {"amx_bf16", device.cpu.amx_bf16},
          {"amx_int8", device.cpu.amx_int8},
          {"l1_bytes", device.l1_bytes},
          {"l2_bytes", device.l2_bytes},
          {"l3_bytes", device.l3_bytes},
          {"memory_bytes", device.memory_bytes}};
}

nlohmann::json describe_gpu(const DeviceInfo& device) {
  return {{"device", fmt::format("cuda:{}", device.device.index)},
          {"name", device.name},
          {"compute_capability", fmt::format("{}.{}", device.gpu.major, device.gpu.minor)},
          {"multiprocessors", device.gpu.multiprocessors},
          {"shared_bytes_per_block", device.gpu.shared_bytes_per_block},
          {"l2_bytes", device.l2_bytes},
          {"memory_bytes", device.memory_bytes}};
}

std::vector<DeviceInfo> gpus() {
  std::vector<DeviceInfo> list;
  for (int i = 0; i < cuda_device_count(); ++i) list.push_back(device_info({DeviceKind::cuda, i}));
  return list;
}

// Every operation's variants, each with the reason why it does not run here. GPU variants are asked about the
// first GPU if there is one, and all others about the CPU.
std::vector<ops::OpInfo> variants_here(const DeviceInfo& cpu, const std::vector<DeviceInfo>& gpus) {
  std::vector<ops::OpInfo> list = ops::all_ops(cpu);
  if (gpus.empty()) return list;
  const std::vector<ops::OpInfo> on_gpu = ops::all_ops(gpus.front());
  for (std::size_t op = 0; op < list.size(); ++op) {
    for (std::size_t v = 0; v < list[op].variants.size(); ++v) {
      if (list[op].variants[v].name.substr(0, 5) == "cuda.") list[op].variants[v] = on_gpu[op].variants[v];
    }
  }
  return list;
}

void print_table(const DeviceInfo& cpu, const std::vector<DeviceInfo>& gpus) {
  const auto yes = [](bool has) { return has ? "yes" : "no"; };
  const DefaultThreads threads = default_threads();
  fmt::print(
      "warpwright {}\n{}: {} threads, from {}; {} memory; AVX2 {}, AVX-512 {}, AVX512_BF16 {}, VNNI {}, AMX "
      "bf16 {}, int8 {}\n",
      WARPWRIGHT_VERSION, cpu.name, threads.threads, threads.reason(),
      human_bytes(static_cast<double>(cpu.memory_bytes)), yes(cpu.cpu.avx2), yes(cpu.cpu.avx512),
      yes(cpu.cpu.avx512_bf16), yes(cpu.cpu.avx512_vnni || cpu.cpu.avx_vnni), yes(cpu.cpu.amx_bf16),
      yes(cpu.cpu.amx_int8));
  for (const DeviceInfo& gpu : gpus) {
    fmt::print("cuda:{}: {}, compute capability {}.{}, {} multiprocessors, {} memory\n", gpu.device.index,
               gpu.name, gpu.gpu.major, gpu.gpu.minor, gpu.gpu.multiprocessors,
               human_bytes(static_cast<double>(gpu.memory_bytes)));
  }
  fmt::print("tokenizers' regular expressions: {}\n\n", text::SplitExpression::engine());
  for (const ops::OpInfo& op : variants_here(cpu, gpus)) {
    fmt::print("{}\n", op.name);
    for (const ops::VariantInfo& variant : op.variants) {
      fmt::print("  {:<24}{}\n", variant.name, variant.refusal);
    }
  }
}

void print_json(const DeviceInfo& cpu, const std::vector<DeviceInfo>& gpus) {
  nlohmann::json out = describe_cpu(cpu);
  out["version"] = WARPWRIGHT_VERSION;
  out["regular_expressions"] = text::SplitExpression::engine();
  out["gpus"] = nlohmann::json::array();
  for (const DeviceInfo& gpu : gpus) out["gpus"].push_back(describe_gpu(gpu));
  for (const ops::OpInfo& op : variants_here(cpu, gpus)) {
    for (const ops::VariantInfo& variant : op.variants) {
      out["ops"][op.name].push_back({{"variant", variant.name}, {"refusal", variant.refusal}});
    }
  }
  fmt::print("{}\n", out.dump(2));
}

}  // namespace

void add_info(CLI::App& app) {
  CLI::App* command = app.add_subcommand("info", "Show the machine and the variants of every operation");
  auto json = std::make_shared<bool>(false);
  command->add_flag("--json", *json, "Print JSON");
  command->callback([json] {
    ops::check_forced_names(ContextOptions::from_environment());
    const DeviceInfo cpu = cpu_device_info();
    *json ? print_json(cpu, gpus()) : print_table(cpu, gpus());
  });
}

}  // namespace warpwright::cli
