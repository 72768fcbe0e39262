// Turns the flags of `warpwright train` into the options of a run, and a checkpoint's options into flags.
#include <fmt/format.h>

#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <type_traits>

#include "cli/model_flags.hpp"
#include "cli/train_flags.hpp"
#include "core/error.hpp"
#include "data/loader.hpp"
#include "data/manifest.hpp"
#include "model/families.hpp"
#include "runtime/json.hpp"

namespace warpwright::cli {
namespace {

namespace fs = std::filesystem;

// A model of free size, whose vocabulary is the data's if no flag says it.
std::shared_ptr<const Decoder> sized_model(const TrainFlags& flags, std::int64_t of_data) {
  FreeSizes sizes = flags.free;
  if (sizes.context == 0) sizes.context = flags.options.step.T ? flags.options.step.T : 1024;
  if (sizes.vocab == 0) sizes.vocab = of_data;
  if (sizes.vocab == 0) {
    require_shards(flags.options.data);
    throw UsageError("is missing, and the data folder has no data.json to take it from", "--vocab",
                     "give the tokenizer's number of tokens");
  }
  return free_model(sizes, nullptr);
}

// The model of the resumed checkpoint. Flags may repeat its sizes.
std::shared_ptr<const Decoder> resumed_model(const TrainFlags& flags) {
  if (!flags.free.given()) return flags.resumed;
  auto model = free_model(flags.free, flags.resumed.get());
  try {
    compare_options({{"model", flags.resumed->config(-1)}}, {{"model", model->config(-1)}}, flags.checkpoint,
                    {});
  } catch (const Error& error) {
    throw Error(error.problem(), flags.free.flags(), error.remedy());
  }
  return model;
}

// The model of --model NAME or DIR, of --layers, --heads and --channels, or of the resumed checkpoint.
std::shared_ptr<const Decoder> model_of(TrainFlags& flags, const std::optional<Manifest>& manifest) {
  const FreeSizes& free = flags.free;
  if (flags.resumed && flags.model.empty()) return resumed_model(flags);
  if (flags.model.empty() == !free.describe_model()) {
    throw UsageError(
        free.describe_model() ? "is given together with --layers, --heads or --channels" : "is missing",
        "--model", "give FAMILY:SIZE or a folder, or --layers, --heads and --channels");
  }
  const std::int64_t of_data = manifest ? manifest->vocabulary_size : 0;
  if (free.describe_model()) return sized_model(flags, of_data);
  if (const std::string flag = free.beside_model(); !flag.empty())
    throw UsageError("is given together with --model, which implies it", flag, "leave it out");
  if (!names_sizes(flags.model)) {
    flags.options.initial_model = flags.model;
    return decoder_of(flags.model, free.vocab, free.context);
  }
  return decoder_of(flags.model, free.vocab > 0 ? free.vocab : of_data, free.context);
}

// Calls visit(NAME, variable) for every flag that a checkpoint keeps under NAME, except the model's.
template <class Visit>
void visit_saved(TrainFlags& f, const Visit& visit) {
  TrainOptions& o = f.options;
  visit("data", o.data);
  visit("batch", o.step.B);
  visit("T", o.step.T);
  visit("total_batch", f.total_batch);
  visit("dtype", f.step.dtype);
  visit("master_weights", f.master_weights);
  visit("shard", f.shard);
  visit("reduce", f.reduce);
  visit("recompute", f.step.recompute);
  visit("logits_mib", o.step.logits_mib);
  visit("memory_efficient_norm", f.step.memory_efficient_norm);
  visit("clip", o.step.clip);
  visit("optimizer", f.step.optimizer);
  visit("muon_momentum", o.step.muon_momentum);
  visit("beta1", o.step.beta1);
  visit("beta2", o.step.beta2);
  visit("eps", o.step.eps);
  visit("weight_decay", o.step.weight_decay);
  visit("decay_all", o.step.decay_all);
  visit("schedule", f.schedule);
  visit("lr", o.schedule.peak);
  visit("warmup", o.schedule.warmup);
  visit("steps", o.schedule.steps);
  visit("final_lr_fraction", o.schedule.final_fraction);
  visit("decay_fraction", o.schedule.decay_fraction);
  visit("seed", o.seed);
  visit("overfit", o.overfit);
  visit("val_every", o.val_every);
  visit("val_batches", o.val_batches);
  visit("sample_every", o.sample_every);
  visit("sample_tokens", o.sample_tokens);
  visit("checkpoint_minutes", o.checkpoint_minutes);
  visit("checkpoint_every", o.checkpoint_every);
  visit("keep", o.keep);
  visit("keep_every", o.keep_every);
  visit("on_nonfinite", f.on_non_finite);
  visit("skip_loss_z", o.skip_loss_z);
  visit("skip_norm_z", o.skip_norm_z);
  visit("device", f.device.device);
  visit("threads", f.device.threads);
  visit("tuned", f.saved_table);
}

}  // namespace

void require_shards(const fs::path& data) {
  // roofline*.cpp, in the same unity build, use namespace roofline, which has another Split.
  if (!shard_paths(data, warpwright::Split::train, read_manifest(data)).empty()) return;
  throw Error(
      "holds no token shards", data.string(),
      "to train on the texts in it, build data from them with `warpwright data build --tokenizer "
      "TOKENIZER --input FOLDER --out DATA`, and give DATA; shards without a data.json are found by names "
      "such as train_000000.bin");
}

void TrainFlags::restore(CLI::App& command, const SavedRun& saved) {
  nlohmann::json json = saved.state.options;
  json.update(saved.state.settings);
  try {
    visit_saved(*this, [&](const char* name, auto& variable) {
      const auto found = json.find(name);
      if (found == json.end()) return;  // an older checkpoint has fewer options
      if constexpr (std::is_same_v<decltype(variable), fs::path&>) {
        variable = found->template get<std::string>();
      } else {
        found->get_to(variable);
      }
    });
    if (json.value("tf32", false)) step.dtype = "tf32";
    if (command.count("--model") == 0) {
      resumed = decoder_of_config(json.at("model"), saved.checkpoint.string());
      checkpoint = saved.checkpoint;
    }
  } catch (const nlohmann::json::exception& error) {
    throw Error(fmt::format("has options that cannot be read: {}", reason_of(error)),
                (saved.checkpoint / "trainer.json").string(),
                "resume with the build that wrote it, or train into another folder");
  }
  for (CLI::Option* option : command.get_options()) {
    if (option->count() > 0) option->run_callback();
  }
}

TrainOptions TrainFlags::finished_options() {
  TrainOptions& o = options;
  step.finish(o.step, model_of(*this, o.data.empty() ? std::nullopt : read_manifest(o.data)));
  o.step.master_weights = named(kMasterWeights, master_weights, "--master-weights").value;
  o.schedule.kind = named(kScheduleKinds, schedule, "--schedule");
  o.planner_shards = shard == "auto";
  o.step.sharding = o.planner_shards ? Sharding::optimizer : sharding_named(shard);
  o.step.reduce = named(kReduces, reduce, "--reduce");
  o.on_non_finite = named(kOnNonFinite, on_non_finite, "--on-nonfinite");
  if (o.step.B < 1 || o.step.T < 1) {
    throw UsageError(fmt::format("is {}, with --seq {}", o.step.B, o.step.T), "--batch",
                     "give at least 1 for each");
  }
  std::int64_t slice = 0;
  if (__builtin_mul_overflow(o.step.B, o.step.T, &slice)) {
    throw UsageError(fmt::format("{} sequences of {} tokens are too many", o.step.B, o.step.T), "--batch",
                     "lower it or --seq");
  }
  if (total_batch % slice != 0) {
    throw UsageError(
        fmt::format("{} is not a multiple of batch × seq = {} × {}", total_batch, o.step.B, o.step.T),
        "--total-batch", "change it, --batch or --seq");
  }
  o.step.slices = total_batch > 0 ? total_batch / slice : 1;
  o.validate();
  return o;
}

}  // namespace warpwright::cli
