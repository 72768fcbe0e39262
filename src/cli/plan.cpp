// warpwright plan: what a training run over ranks would take, in memory and time, without running it.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>

#include "cli/checks.hpp"
#include "cli/command.hpp"
#include "cli/on_ranks.hpp"
#include "cli/plan_kernels.hpp"
#include "cli/plan_links.hpp"
#include "cli/train_flags.hpp"
#include "cli/train_memory.hpp"
#include "comm/nccl.hpp"
#include "core/error.hpp"
#include "model/gpt2_config.hpp"
#include "ops/op.hpp"
#include "runtime/device.hpp"
#include "runtime/file.hpp"
#include "runtime/json.hpp"
#include "train/rank_memory.hpp"
#include "train/slice_tree.hpp"
#include "train/step_time.hpp"

namespace warpwright::cli {
namespace {

constexpr int kMostRanks = 1 << 14;
constexpr double kBytesPerGigabit = 1e9 / 8;

struct PlanFlags {
  TrainFlags run;
  int ranks = 1, nodes = 1;
  std::filesystem::path record;
  double link_gbps = 0, network_gbps = 0, memory_gb = 0, overlap = -1;
  bool json = false;
};

// The options of the planned run. Every rank runs one slice if no flag says how many.
TrainOptions planned_options(PlanFlags& flags) {
  TrainFlags& run = flags.run;
  if (run.free.vocab == 0 && run.free.describe_model()) run.free.vocab = GPT2Config{}.vocab;
  run.options.schedule.steps = 1;
  TrainOptions o = run.finished_options();
  if (run.total_batch == 0) o.step.slices = flags.ranks;
  if (flags.ranks % flags.nodes != 0) {
    throw UsageError(fmt::format("is {}, which {} nodes cannot share equally", flags.ranks, flags.nodes),
                     "--gpus", "give a multiple of --nodes");
  }
  require_equal_shares(o.step, flags.ranks);
  if (flags.ranks == 1) o.step.sharding = Sharding::none;
  return o;
}

struct PlannedMemory {
  int rank = 0;  // the one that holds most
  RankMemory memory;
  std::optional<std::size_t> available;  // for this rank
};

// The memory of a rank's device; of a CPU its share of the machine's memory. Unknown for a record's machine.
std::optional<std::size_t> memory_of_device(const PlanFlags& flags, const Context& context) {
  if (flags.memory_gb > 0) return static_cast<std::size_t>(flags.memory_gb * 1e9);
  if (!flags.record.empty()) return std::nullopt;
  const Device device = context.device().device;
  const std::size_t here = available_memory(device);
  return device.kind == DeviceKind::cpu ? here / static_cast<std::size_t>(flags.ranks / flags.nodes) : here;
}

// Chooses the sharding if that is up to the planner.
PlannedMemory planned_memory(const PlanFlags& flags, Context& context, TrainOptions& options, bool on_gpus) {
  PlannedMemory planned;
  planned.available = memory_of_device(flags, context);
  const auto plan = [&](const TrainOptions& o) {
    planned.rank = rank_with_most(o.step, flags.ranks);
    planned.memory = planned_rank_memory(context, o, *imagined_rank(planned.rank, flags.ranks));
    if (on_gpus && flags.ranks > 1) planned.memory.nccl = kNcclBytes;
    return planned.memory.total();
  };
  if (!options.planner_shards || flags.ranks == 1) {
    plan(options);
    return planned;
  }
  if (!planned.available) {
    throw UsageError("is missing, and --shard auto needs it", "--memory-gb",
                     "give the memory of a rank's device, or choose with --shard");
  }
  options.step.sharding = first_sharding(
      options, flags.ranks, [&](const TrainOptions& o) { return plan(o) <= *planned.available; });
  return planned;
}

// The speeds from the options, else those measured, else those in the record.
LinkSpeeds link_speeds(const PlanFlags& flags, LinkSpeeds speeds) {
  if (!flags.record.empty()) {
    const nlohmann::json document = parse_json(read_file(flags.record, std::uint64_t{256} << 20),
                                               flags.record.string(), 32, "give a machine's record");
    const nlohmann::json links = document.value("links", nlohmann::json::object());
    const auto take = [&](const char* name, std::optional<double>& speed) {
      const auto found = links.find(name);
      if (!speed && found != links.end() && found->is_number())
        speed = found->get<double>() * kBytesPerGigabit;
    };
    take("link_gbps", speeds.node);
    take("network_gbps", speeds.network);
  }
  if (flags.link_gbps > 0) speeds.node = flags.link_gbps * kBytesPerGigabit;
  if (flags.network_gbps > 0) speeds.network = flags.network_gbps * kBytesPerGigabit;
  const auto require = [](bool needed, const std::optional<double>& speed, const char* flag,
                          const char* remedy) {
    if (needed && !speed) throw UsageError("is missing, and nothing else tells the speed", flag, remedy);
  };
  require(
      flags.ranks > flags.nodes, speeds.node, "--link-gbps",
      "give Gbit/s from a rank to the others of its node, or start `plan` on several ranks to measure it");
  require(flags.nodes > 1, speeds.network, "--network-gbps",
          "give Gbit/s from a rank to other nodes, or start `plan` on ranks of several nodes to measure it");
  return speeds;
}

// The sums that a rank exchanges: the most of any rank.
std::int64_t exchanged_sums(const StepOptions& step, int ranks) {
  if (step.reduce == Reduce::ring) return 1;
  const std::int64_t slices = step.slices, count = slices / ranks;
  std::size_t most = 1;
  for (std::int64_t r = 0; r < ranks; ++r) {
    most = std::max(most, slice_tree(slice_nodes(r * count, count), slices).whole.size());
  }
  return static_cast<std::int64_t>(most);
}

StepLoad load_of(const PlanFlags& flags, const StepOptions& step, const KernelTimes& kernels,
                 const LinkSpeeds& links) {
  Recorder recorder;
  const LayerParameters layers = step.model->layer_parameters();
  const DType accumulation = ops::accumulation_dtype(step.dtype);
  StepLoad load{.sharding = step.sharding,
                .ranks = flags.ranks,
                .nodes = flags.nodes,
                .slices = step.slices / flags.ranks,
                .sums = exchanged_sums(step, flags.ranks),
                .layers = static_cast<std::int64_t>(layers.layers),
                .forward = kernels.forward,
                .backward = kernels.backward,
                .update = kernels.update,
                .largest_shard = largest_shard(step, flags.ranks),
                .largest_update = largest_update(step, flags.ranks),
                .link = links.node.value_or(0),
                .network = links.network.value_or(0),
                .overlapped = flags.overlap >= 0 ? flags.overlap
                              : kernels.on_gpu   ? 1.0
                                                 : 0.0};
  double weights = 0, gradients = 0, in_layers = 0;
  std::size_t index = 0;
  for (const Tensor& t :
       step.model->allocate_parameters(step.dtype, Category::parameters, "", recorder).tensors()) {
    const double bytes = static_cast<double>(t.elements()) * static_cast<double>(size_of(accumulation));
    const bool inside = index >= layers.first && index < layers.first + layers.each * layers.layers;
    ++index;
    weights += static_cast<double>(t.bytes());
    gradients += bytes;
    if (inside) in_layers += bytes;
  }
  load.layer_bytes = in_layers / static_cast<double>(layers.layers);
  load.other_bytes = gradients - in_layers;
  load.weight_share = weights / gradients;
  load.addition = 3 * gradients / kernels.bytes_per_second;  // reads two sets and writes one
  return load;
}

struct Plan {
  TrainOptions options;
  PlannedMemory memory;
  std::string not_timed;  // why nothing below is known; "" if it is
  KernelTimes kernels;
  LinkSpeeds links;
  StepLoad load;
  StepTime time;

  std::int64_t slices_of_rank(int ranks) const { return options.step.slices / ranks; }
  std::int64_t tokens() const { return options.step.slices * options.step.B * options.step.T; }
  double tokens_per_second() const { return static_cast<double>(tokens()) / time.seconds(); }
};

std::string gigabits(const std::optional<double>& speed) {
  return speed ? fmt::format("{:.0f} Gbit/s", *speed / kBytesPerGigabit) : "unknown";
}

void print_text(const PlanFlags& flags, const Plan& p) {
  const StepOptions& s = p.options.step;
  fmt::print("model: {}, vocabulary {}, context {}: {} parameters\n", s.model->describe(), s.model->vocab(),
             s.model->context(), human_count(s.model->parameter_count()));
  fmt::print("run: {} on {}, with {} each of {} × {} tokens: {} tokens a step in {}\n",
             counted(flags.ranks, "rank"), counted(flags.nodes, "node"),
             counted(p.slices_of_rank(flags.ranks), "slice"), s.B, s.T, human_count(p.tokens()),
             flags.run.step.dtype);
  if (flags.ranks > 1 && flags.run.total_batch == 0)
    fmt::print("  for this step `train` needs --total-batch {}\n", p.tokens());
  if (flags.ranks > 1) {
    fmt::print("shard: {}{}; reduce: {}\n", name_of(s.sharding),
               p.options.planner_shards ? ", as the planner chooses" : "", name_of(s.reduce));
  }
  fmt::print("memory of the rank that holds most:\n{}", memory_table({p.memory.memory}, p.memory.rank));
  if (const auto available = p.memory.available) {
    const std::size_t needed = p.memory.memory.total();
    fmt::print("  {}: {} of {}\n", needed <= *available ? "fits" : "does not fit",
               human_bytes(static_cast<double>(needed)), human_bytes(static_cast<double>(*available)));
  }
  if (!p.not_timed.empty()) {
    fmt::print("time: unknown: {}; give --record with a machine's record, or a smaller --batch\n",
               p.not_timed);
    return;
  }
  fmt::print("kernels: forward {:.1f} ms and backward {:.1f} ms a slice, update {:.1f} ms undivided; {}\n",
             p.kernels.forward * 1e3, p.kernels.backward * 1e3, p.kernels.update * 1e3, p.kernels.source);
  if (flags.ranks > 1) {
    fmt::print("links: {} within a node, {} between nodes; {:.0f}% of an exchange can overlap with kernels\n",
               gigabits(p.links.node), gigabits(p.links.network), 100 * p.load.overlapped);
    fmt::print("exchange: a rank sends {} a step\n", human_bytes(p.time.sent));
  }
  fmt::print("step: {:.1f} ms: {:.1f}% compute, {:.1f}% waiting for exchanges; {} tokens/s\n",
             p.time.seconds() * 1e3, 100 * p.time.compute / p.time.seconds(),
             100 * p.time.exchange / p.time.seconds(),
             human_count(static_cast<std::int64_t>(p.tokens_per_second())));
}

nlohmann::ordered_json memory_json(const PlannedMemory& m) {
  nlohmann::ordered_json json = {{"rank", m.rank}};
  for (std::size_t c = 0; c < kCategories; ++c) {
    json[std::string(name_of(static_cast<Category>(c)))] = m.memory.tensors[c];
  }
  json["workspace"] = m.memory.workspace;
  json["nccl"] = m.memory.nccl;
  json["total"] = m.memory.total();
  if (m.available) json["available"] = *m.available;
  return json;
}

nlohmann::ordered_json time_json(const Plan& p) {
  nlohmann::ordered_json links = nlohmann::ordered_json::object();
  if (p.links.node) links["link_gbps"] = *p.links.node / kBytesPerGigabit;
  if (p.links.network) links["network_gbps"] = *p.links.network / kBytesPerGigabit;
  return {{"kernels",
           {{"source", p.kernels.source},
            {"forward_ms", p.kernels.forward * 1e3},
            {"backward_ms", p.kernels.backward * 1e3},
            {"update_ms", p.kernels.update * 1e3}}},
          {"links", links},
          {"overlapped", p.load.overlapped},
          {"sent_bytes", p.time.sent},
          {"step_ms", p.time.seconds() * 1e3},
          {"compute_share", p.time.compute / p.time.seconds()},
          {"exchange_share", p.time.exchange / p.time.seconds()},
          {"tokens_per_second", p.tokens_per_second()}};
}

void print_json(const PlanFlags& flags, const Plan& p) {
  const StepOptions& s = p.options.step;
  nlohmann::ordered_json out = {{"parameters", s.model->parameter_count()},
                                {"gpus", flags.ranks},
                                {"nodes", flags.nodes},
                                {"dtype", flags.run.step.dtype},
                                {"batch", s.B},
                                {"seq", s.T},
                                {"slices_of_rank", p.slices_of_rank(flags.ranks)},
                                {"total_batch", p.tokens()},
                                {"shard", name_of(s.sharding)},
                                {"reduce", name_of(s.reduce)},
                                {"memory", memory_json(p.memory)}};
  p.not_timed.empty() ? out.update(time_json(p)) : out.update({{"not_timed", p.not_timed}});
  fmt::print("{}\n", out.dump(2));
}

// The slowest rank counts.
KernelTimes slowest(const Comm& comm, KernelTimes mine) {
  const std::vector<double> all =
      gathered(comm, {mine.forward, mine.backward, mine.update, -mine.bytes_per_second});
  double* const parts[] = {&mine.forward, &mine.backward, &mine.update, &mine.bytes_per_second};
  for (std::size_t i = 0; i < std::size(parts); ++i) {
    double most = all[i];
    for (std::size_t at = i; at < all.size(); at += std::size(parts)) most = std::max(most, all[at]);
    *parts[i] = std::abs(most);
  }
  return mine;
}

// Why this rank, or another, cannot time a step; "" if all can.
std::string too_large_anywhere(const Comm& comm, Context& context, const StepOptions& step) {
  for (std::string& reason : comm.all_gather(too_large_to_time(context, step))) {
    if (!reason.empty()) return std::move(reason);
  }
  return "";
}

void plan(PlanFlags& flags, const Comm& texts) {
  Plan p;
  p.options = planned_options(flags);
  const DeviceFlags& device = flags.run.device;
  Context context(device.context_options(flags.run.step.dtype), device.place());
  const bool several = texts.size() > 1, on_gpu = context.device().device.kind == DeviceKind::cuda;
  const std::unique_ptr<const Comm> gpus =
      several && on_gpu ? connect_gpus(texts, context.device().device) : nullptr;
  p.links = link_speeds(flags, several ? measured_links(context, gpus ? *gpus : texts) : LinkSpeeds{});
  if (!flags.record.empty()) {
    p.kernels = recorded_kernels(flags.record, flags.run.step.dtype, p.options.step);
  }
  p.memory = planned_memory(flags, context, p.options, on_gpu || p.kernels.on_gpu);
  if (flags.record.empty()) p.not_timed = too_large_anywhere(texts, context, p.options.step);
  if (flags.record.empty() && p.not_timed.empty()) {
    ProgressLine line;
    if (texts.rank() == 0) line.show("timing a few steps of one slice");
    p.kernels = slowest(texts, measured_kernels(context, p.options.step));
  }
  if (p.not_timed.empty()) {
    p.load = load_of(flags, p.options.step, p.kernels, p.links);
    p.time = predicted_step_time(p.load);
  }
  if (texts.rank() == 0) flags.json ? print_json(flags, p) : print_text(flags, p);
}

}  // namespace

void add_plan(CLI::App& app) {
  CLI::App* command =
      app.add_subcommand("plan",
                         "Predict memory and time of a training run over ranks, without running it. Times a "
                         "few steps of one slice here, unless --record is given");
  auto f = std::make_shared<PlanFlags>();
  const CLI::Validator positive = number_from(1e-3, 1e9);  // no speed or size in use is near these ends
  command
      ->add_option("--gpus", f->ranks, "Ranks of the planned run, one for each GPU, or each process on CPUs")
      ->capture_default_str()
      ->check(CLI::Range(1, kMostRanks));
  command->add_option("--nodes", f->nodes, "Machines that share the ranks equally")
      ->capture_default_str()
      ->check(CLI::Range(1, kMostRanks));
  f->run.add_sizes_to(*command, {.vocab = "that of --model, 50257 for a free size",
                                 .total_batch = "one slice for each rank, which `train` must be told"});
  command->add_option(
      "--record", f->record,
      "A machine's record (bench/results, or `bench step --json`) that has the kernels' times. If it has no "
      "step of these sizes, the nearest one is scaled, and the result may be off by 10 % or more; default: "
      "measure them here");
  command
      ->add_option("--link-gbps", f->link_gbps,
                   "Gbit/s that a rank sends to the others of its node; default: measured between the ranks "
                   "that run `plan`, or in the record")
      ->check(positive);
  command
      ->add_option(
          "--network-gbps", f->network_gbps,
          "Gbit/s that a rank sends to other nodes; default: measured between ranks of several nodes "
          "that run `plan`, or in the record")
      ->check(positive);
  command
      ->add_option("--overlap", f->overlap,
                   "Share of an exchange that can overlap with kernels; default: 1 on GPUs, 0 on CPUs")
      ->check(number_from(0, 1));
  command
      ->add_option("--memory-gb", f->memory_gb,
                   "Memory of a rank's device in 10⁹ bytes; default: what this machine has for it")
      ->check(positive);
  command->add_flag("--json", f->json, "Print JSON");
  f->run.device.add_to(*command);
  f->run.ranks.set_command(*command);
  command->callback([f, command] {
    run_on_ranks(
        f->run.ranks,
        [&](const Launch& launch) {
          choose_device(f->run.ranks, f->run.device, *command, launch, Exchanged::tensors);
        },
        [&](const Comm& texts) { plan(*f, texts); });
  });
}

}  // namespace warpwright::cli
