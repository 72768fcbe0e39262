#include "cli/train_memory.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <optional>
#include <utility>

#include "cli/command.hpp"
#include "core/error.hpp"

namespace warpwright::cli {
namespace {

std::string bytes_text(std::size_t bytes) {
  return human_bytes(static_cast<double>(bytes));
}

// "needs …" for one rank, "rank 3 on HOST needs …" for a GPU of several, "the 4 ranks on HOST need …" on
// CPUs.
std::string who_needs(const RankDevices::Use& use, const Comm& comm) {
  if (comm.size() == 1) return "needs";
  if (use.ranks.size() == 1) return fmt::format("rank {} on {} needs", use.ranks.front(), use.host);
  return fmt::format("the {} ranks on {} need", use.ranks.size(), use.host);
}

// Looks for changes with which a run fits. Every rank makes the same calls.
class Search {
 public:
  Search(Context& context, const Trainer& trainer, const RankDevices& devices, const Comm& comm)
      : context_(context), options_(trainer.options()), devices_(devices), comm_(comm) {}

  // Tries more shards, then fewer logits at a time and then more recomputation at the same --batch, and then
  // smaller slices, which divide this one so that --total-batch can stay. If nothing fits, names the plan
  // that needs least: smaller slices are more slices, whose sums may take more than their activations save.
  std::string smallest_change() {
    const bool from_output = options_.step.norms == NormBackwardFrom::output;  // not with norm and block
    const Recompute asked = options_.step.recompute, most = from_output ? Recompute::gelu : Recompute::block;
    std::string least_flags;
    std::size_t least = std::numeric_limits<std::size_t>::max();
    for (std::int64_t batch = options_.step.B; batch >= 1; --batch) {
      if (options_.step.B % batch != 0) continue;
      for (const Recompute recompute : kRecomputes) {
        const bool between = recompute != asked && recompute != most;
        if (recompute < asked || recompute > most || (batch < options_.step.B && between)) continue;
        for (const std::int64_t mib : logits_limits(batch)) {
          for (const Sharding sharding : possible_shardings(options_, comm_.size())) {
            const RankDevices::Use use = use_with(batch, mib, recompute, sharding);
            const std::string flags = flag("--batch", batch, options_.step.B) +
                                      flag("--logits-mib", mib, options_.step.logits_mib) +
                                      flag("--recompute", name_of(recompute), name_of(asked)) +
                                      shard_flag(sharding);
            if (use.fits()) return would_need(flags, use.needed);
            if (use.needed >= least) continue;
            least = use.needed;
            least_flags = flags;
          }
        }
      }
    }
    const std::string smaller = "use a smaller model or --seq";
    if (least_flags.empty()) return smaller + or_more_ranks();
    return smaller + ": " + would_need(least_flags, least);
  }

 private:
  // The present --logits-mib, and its halves that make the parts of such a slice smaller. Below
  // kLeastLogits, smaller parts save little and slow the head down.
  std::vector<std::int64_t> logits_limits(std::int64_t batch) const {
    constexpr std::int64_t kLeastLogits = 256;
    const StepOptions& s = options_.step;
    const auto row = s.model->padded_vocab() * static_cast<std::int64_t>(size_of(s.dtype));
    const auto rows = [&](std::int64_t mib) { return logits_rows(batch * s.T, row, mib << 20); };
    std::vector<std::int64_t> limits = {s.logits_mib};
    for (std::int64_t mib = s.logits_mib / 2; mib >= kLeastLogits; mib /= 2) {
      if (rows(mib) < rows(limits.back())) limits.push_back(mib);
    }
    return limits;
  }

  RankDevices::Use use_with(std::int64_t batch, std::int64_t logits_mib, Recompute recompute,
                            Sharding sharding) {
    TrainOptions o = options_;
    if (o.step.slices > 1) o.step.slices *= o.step.B / batch;
    o.step.B = batch;
    o.step.logits_mib = logits_mib;
    o.step.recompute = recompute;
    o.step.sharding = sharding;
    return devices_.tightest(memory_of_ranks(comm_, planned_rank_memory(context_, o, comm_)));
  }

  std::string would_need(const std::string& flags, std::size_t bytes) {
    return fmt::format("{}would need {}{}", flags, bytes_text(bytes), or_more_ranks());
  }

  // More GPUs with the same slices. On CPUs more ranks of one machine need more memory together.
  std::string or_more_ranks() {
    if (context_.device().device.kind == DeviceKind::cpu) return "";
    const std::vector<RankMemory> nothing(static_cast<std::size_t>(comm_.size()));
    const std::size_t available = devices_.tightest(nothing).available;
    for (int ranks = comm_.size() + 1; ranks <= options_.step.slices; ++ranks) {
      if (options_.step.slices % ranks != 0) continue;
      TrainOptions o = options_;
      o.step.sharding = possible_shardings(o, ranks).back();
      const auto rank = imagined_rank(rank_with_most(o.step, ranks), ranks);
      const std::size_t needed = planned_rank_memory(context_, o, *rank).total();
      if (needed > available) continue;
      return fmt::format(", and {} ranks {}{} each", ranks, shard_flag(o.step.sharding), bytes_text(needed));
    }
    return "";
  }

  // The planner chooses by itself again.
  std::string shard_flag(Sharding sharding) const {
    if (options_.planner_shards) return "";
    return flag("--shard", name_of(sharding), name_of(options_.step.sharding));
  }

  template <class Value>
  static std::string flag(const char* name, const Value& value, const Value& asked) {
    return value == asked ? "" : fmt::format("{} {} ", name, value);
  }

  Context& context_;
  const TrainOptions options_;
  const RankDevices& devices_;
  const Comm& comm_;
};

}  // namespace

std::string memory_table(const std::vector<RankMemory>& ranks, int first) {
  std::vector<std::pair<std::string, std::vector<std::size_t>>> columns;
  const auto column = [&](std::string_view name, const auto& bytes_of) {
    std::vector<std::size_t> bytes;
    for (const RankMemory& memory : ranks) bytes.push_back(bytes_of(memory));
    if (std::ranges::max(bytes) > 0) columns.emplace_back(name, std::move(bytes));
  };
  for (std::size_t c = 0; c < kCategories; ++c) {
    column(name_of(static_cast<Category>(c)), [c](const RankMemory& memory) { return memory.tensors[c]; });
  }
  column("workspace", [](const RankMemory& memory) { return memory.workspace; });
  column("samples", [](const RankMemory& memory) { return memory.samples; });
  column("NCCL", [](const RankMemory& memory) { return memory.nccl; });
  column("total", [](const RankMemory& memory) { return memory.total(); });
  std::string text = fmt::format("{:>6}", "rank");
  for (const auto& [name, bytes] : columns) text += fmt::format("{:>16}", name);
  for (std::size_t r = 0; r < ranks.size(); ++r) {
    text += fmt::format("\n{:>6}", static_cast<std::size_t>(first) + r);
    for (const auto& [name, bytes] : columns) {
      text += fmt::format("{:>16}", fmt::format("{:.1f} MiB", static_cast<double>(bytes[r]) / 0x1p20));
    }
  }
  return text + "\n";
}

void check_memory(Context& context, const Trainer& trainer, const std::vector<RankMemory>& ranks,
                  const Comm& comm) {
  const RankDevices devices(context.device().device, comm);
  const RankDevices::Use use = devices.tightest(ranks);
  if (use.fits()) return;
  throw Error(fmt::format("{} {} of memory, {} are available", who_needs(use, comm), bytes_text(use.needed),
                          bytes_text(use.available)),
              "memory plan", Search(context, trainer, devices, comm).smallest_change());
}

}  // namespace warpwright::cli
