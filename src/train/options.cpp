#include "train/options.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <limits>
#include <nlohmann/json.hpp>
#include <utility>

#include "core/error.hpp"
#include "text/unicode.hpp"

namespace warpwright {
namespace {

// Changing one of these options makes it a different run. Each with its flag. The others (the learning rate,
// the number of steps, …) may be changed on purpose.
constexpr std::pair<const char*, const char*> kFixed[] = {
    {"model", "--model"},         {"dtype", "--dtype"},     {"master_weights", "--master-weights"},
    {"optimizer", "--optimizer"}, {"T", "--seq"},           {"total_batch", "--total-batch"},
    {"seed", "--seed"},           {"overfit", "--overfit"}, {"reduce", "--reduce"}};

// "n_layer 2" of {"n_layer": 2, …} that differs from `other`; a value that is not an object as it is.
std::string difference(const nlohmann::json& value, const nlohmann::json& other) {
  if (!value.is_object() || !other.is_object()) return value.dump();
  std::string text;
  for (const auto& [key, part] : value.items()) {
    const auto found = other.find(key);
    if (found != other.end() && *found == part) continue;
    text += fmt::format("{}{} {}", text.empty() ? "" : ", ", key, part.dump());
  }
  return text;
}

// The nearest numbers of ranks that divide the slices.
std::string nearest_ranks(std::int64_t slices, std::int64_t ranks) {
  std::int64_t below = std::min(ranks, slices), above = ranks;
  while (slices % below != 0) --below;
  while (above < slices && slices % above != 0) ++above;
  return above > slices ? fmt::format("{}", below) : fmt::format("{} or {}", below, above);
}

void check(bool good, const char* flag, const std::string& what, const char* remedy) {
  if (!good) throw UsageError(what, flag, remedy);
}

// The contents of a slice, and how it computes.
void check_slices(const StepOptions& step) {
  check(step.dtype == DType::f32 || step.dtype == DType::bf16, "--dtype",
        fmt::format("is {}", name_of(step.dtype)), "use fp32 or bf16");
  check(step.master_weights || step.dtype == DType::bf16, "--master-weights",
        "is none, but fp32 weights need no masters", "use --dtype bf16, or omit the flag");
  check(step.B >= 1 && step.B <= 1 << 20, "--batch", fmt::format("is {}", step.B),
        "give 1 to 1048576 sequences");
  check(step.T >= 1, "--seq", fmt::format("is {}", step.T), "give at least 1 token");
  check(step.T <= step.model->context(), "--seq",
        fmt::format("{} is beyond the context of {}", step.T, step.model->context()),
        "give at most the context");
  check(step.logits_mib >= 1 && step.logits_mib <= 1 << 20, "--logits-mib",
        fmt::format("is {}", step.logits_mib), "give 1 to 1048576 MiB");
  check(step.norms == NormBackwardFrom::input || step.recompute == Recompute::none ||
            step.recompute == Recompute::gelu,
        "--memory-efficient-norm", "needs activations that --recompute norm and block discard",
        "use it with --recompute none or gelu");
  check(step.slices >= 1, "--total-batch", "is smaller than a slice", "give a multiple of batch × seq");
}

void check_optimizer(const StepOptions& step) {
  check(step.beta1 >= 0 && step.beta1 < 1, "--beta1", fmt::format("is {}", step.beta1),
        "give a number in [0, 1)");
  check(step.beta2 >= 0 && step.beta2 < 1, "--beta2", fmt::format("is {}", step.beta2),
        "give a number in [0, 1)");
  check(step.optimizer == Optimizer::muon || step.muon_momentum == StepOptions().muon_momentum,
        "--muon-momentum", "applies to Muon only, but the optimizer is AdamW",
        "leave it out, or add --optimizer muon");
  check(step.muon_momentum >= 0 && step.muon_momentum < 1, "--muon-momentum",
        fmt::format("is {}", step.muon_momentum), "give a number in [0, 1)");
  // AdamW's kernels take these as floats.
  const auto fits = [](double value) {
    return value <= static_cast<double>(std::numeric_limits<float>::max());
  };
  check(step.eps > 0 && fits(step.eps), "--eps", fmt::format("is {}", step.eps), "give a positive number");
  check(step.weight_decay >= 0 && fits(step.weight_decay), "--weight-decay",
        fmt::format("is {}", step.weight_decay), "give 0 or more");
  check(step.clip >= 0 && fits(step.clip), "--clip", fmt::format("is {}", step.clip), "give 0 (off) or more");
}

// Skipped updates, and what happens between steps.
void check_run(const TrainOptions& o) {
  check(o.skip_loss_z >= 0, "--skip-loss-z", fmt::format("is {}", o.skip_loss_z), "give 0 (never) or more");
  check(o.skip_norm_z >= 0, "--skip-norm-z", fmt::format("is {}", o.skip_norm_z), "give 0 (never) or more");
  check(o.checkpoint_minutes >= 0, "--checkpoint-minutes", fmt::format("is {}", o.checkpoint_minutes),
        "give 0 (none by time) or more");
  const std::pair<const char*, std::int64_t> counts[] = {{"--val-every", o.val_every},
                                                         {"--val-batches", o.val_batches},
                                                         {"--sample-every", o.sample_every},
                                                         {"--sample-tokens", o.sample_tokens},
                                                         {"--checkpoint-every", o.checkpoint_every},
                                                         {"--keep", o.keep},
                                                         {"--keep-every", o.keep_every}};
  for (const auto& [flag, count] : counts) {
    check(count >= 0, flag, fmt::format("is {}", count), "give 0 or more");
  }
}

}  // namespace

std::string_view name_of(OnNonFinite what) {
  return what == OnNonFinite::skip ? "skip" : "stop";
}

void require_equal_shares(const StepOptions& step, int ranks) {
  if (step.slices % ranks == 0) return;
  throw UsageError(
      fmt::format("gives {} slice{} of batch × seq, which {} ranks cannot share equally", step.slices,
                  step.slices == 1 ? "" : "s", ranks),
      "--total-batch",
      fmt::format("give a multiple of ranks × batch × seq = {}, or start {} rank{}", ranks * step.B * step.T,
                  nearest_ranks(step.slices, ranks), step.slices == 1 ? "" : "s"));
}

nlohmann::json identity_of(const TrainOptions& o) {
  const StepOptions& s = o.step;
  return {{"model", s.model->config(-1)},
          {"dtype", name_of(s.dtype)},
          {"master_weights", s.master_weights ? "fp32" : "none"},
          {"T", s.T},
          {"total_batch", s.B * s.T * s.slices},
          {"reduce", name_of(s.reduce)},
          {"clip", s.clip},
          {"optimizer", name_of(s.optimizer)},
          {"muon_momentum", s.muon_momentum},
          {"beta1", s.beta1},
          {"beta2", s.beta2},
          {"eps", s.eps},
          {"weight_decay", s.weight_decay},
          {"decay_all", s.decay_all},
          {"schedule", name_of(o.schedule.kind)},
          {"lr", o.schedule.peak},
          {"warmup", o.schedule.warmup},
          {"steps", o.schedule.steps},
          {"final_lr_fraction", o.schedule.final_fraction},
          {"decay_fraction", o.schedule.decay_fraction},
          {"seed", o.seed},
          {"overfit", o.overfit}};
}

nlohmann::json settings_of(const TrainOptions& o, const Context& context) {
  const Device device = context.device().device;
  return {{"data", std::filesystem::absolute(o.data).lexically_normal().string()},
          {"batch", o.step.B},
          {"shard", o.planner_shards ? "auto" : name_of(o.step.sharding)},
          {"recompute", name_of(o.step.recompute)},
          {"logits_mib", o.step.logits_mib},
          {"memory_efficient_norm", o.step.norms == NormBackwardFrom::output},
          {"val_every", o.val_every},
          {"val_batches", o.val_batches},
          {"sample_every", o.sample_every},
          {"sample_tokens", o.sample_tokens},
          {"checkpoint_minutes", o.checkpoint_minutes},
          {"checkpoint_every", o.checkpoint_every},
          {"keep", o.keep},
          {"keep_every", o.keep_every},
          {"on_nonfinite", name_of(o.on_non_finite)},
          {"skip_loss_z", o.skip_loss_z},
          {"skip_norm_z", o.skip_norm_z},
          {"device", device.kind == DeviceKind::cpu ? "cpu" : fmt::format("cuda:{}", device.index)},
          {"tf32", context.options().tf32},
          {"threads", context.options().threads},
          {"tuned", context.options().tuned ? context.options().tuned->checksum() : ""}};
}

void compare_options(const nlohmann::json& saved, const nlohmann::json& present,
                     const std::filesystem::path& checkpoint,
                     const std::function<void(const std::string&)>& notice) {
  for (const auto& [key, value] : present.items()) {
    const auto found = saved.find(key);
    if (found == saved.end() || *found == value) continue;  // an older checkpoint says less
    const auto fixed = std::find_if(std::begin(kFixed), std::end(kFixed),
                                    [&, &name = key](const auto& entry) { return entry.first == name; });
    const std::string before = difference(*found, value), now = difference(value, *found);
    if (fixed != std::end(kFixed)) {
      throw Error(
          fmt::format("{} was made with {} and cannot go on with {}", checkpoint.string(), before, now),
          fixed->second, "leave the flag out to resume, or train into another folder");
    }
    if (notice) notice(fmt::format("{} changes from {} to {}", key, before, now));
  }
}

void TrainOptions::validate() const {
  try {
    step.model->validate("--model");
  } catch (const Error& error) {
    throw UsageError(error.problem(), error.where(), error.remedy());
  }
  schedule.validate();
  check(data.empty() || text::is_utf8(std::filesystem::absolute(data).string()), "--data",
        "has a path that is not UTF-8, which a checkpoint cannot record",
        "rename it, or give a symbolic link to it");
  check_slices(step);
  check_optimizer(step);
  check_run(*this);
}

}  // namespace warpwright
