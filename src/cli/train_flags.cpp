// The definitions of the flags of `warpwright train`.
#include "cli/train_flags.hpp"

#include <fmt/format.h>

#include "cli/checks.hpp"
#include "cli/model_flags.hpp"
#include "model/families.hpp"

namespace warpwright::cli {
namespace {

void add_model_flags(CLI::App& c, TrainFlags& f, const SizeDefaults& defaults) {
  c.add_option("--model", f.model,
               fmt::format("{} with random weights, or a folder; default: a free size", known_sizes()));
  f.free.add_to(c, defaults.vocab);
}

void add_slice_flags(CLI::App& c, TrainFlags& f, const SizeDefaults& defaults) {
  StepOptions& s = f.options.step;
  s.T = 0;
  f.step.add_to(c, s);
  c.add_option("--master-weights", f.master_weights,
               "Master weights kept with bf16 weights: fp32, or none (stochastic rounding; saves 2 bytes per "
               "parameter)")
      ->capture_default_str()
      ->check(one_of(names_of(kMasterWeights)));
  c.add_option("--total-batch", f.total_batch,
               "Tokens in a step, over all its slices; default: " + defaults.total_batch)
      ->check(at_least(0));
  c.add_option("--shard", f.shard,
               "State that several ranks divide instead of having a copy each: none, optimizer (masters and "
               "moments), gradients (and optimizer), parameters (all), or auto: the first of the last three "
               "that fits")
      ->capture_default_str()
      ->check(one_of(sharding_names()));
  c.add_option(
       "--reduce", f.reduce,
       "Order in which the gradients of several ranks are added up: tree (the same bits for any number "
       "of ranks), or ring (that of MPI or NCCL: less memory, and other bits for another number of "
       "ranks)")
      ->capture_default_str()
      ->check(one_of(names_of(kReduces)));
}

void add_update_flags(CLI::App& c, TrainFlags& f) {
  StepOptions& s = f.options.step;
  c.add_option("--weight-decay", s.weight_decay, "Decoupled weight decay of the matrices")
      ->capture_default_str();
  c.add_flag("--decay-all", s.decay_all, "Decay biases and norms too");
  c.add_option("--beta1", s.beta1, "AdamW's decay of the first moment")->capture_default_str();
  c.add_option("--beta2", s.beta2, "AdamW's decay of the second moment")->capture_default_str();
  c.add_option("--eps", s.eps, "AdamW's epsilon")->capture_default_str();
  c.add_option("--muon-momentum", s.muon_momentum, "Decay of the momentum, with --optimizer muon")
      ->capture_default_str();
  c.add_option("--clip", s.clip, "Largest gradient norm; 0: do not clip")->capture_default_str();
}

void add_schedule_flags(CLI::App& c, TrainFlags& f) {
  LearningRateSchedule& s = f.options.schedule;
  s.steps = 1000;
  c.add_option("--steps", s.steps, "Steps of the whole run")->capture_default_str();
  c.add_option("--lr", s.peak, "Peak learning rate")->capture_default_str();
  c.add_option("--warmup", s.warmup, "Steps of linear warm-up")->capture_default_str();
  c.add_option("--schedule", f.schedule, "cosine, linear, constant or wsd (warm-up, stable, decay)")
      ->capture_default_str()
      ->check(one_of(names_of(kScheduleKinds)));
  c.add_option("--final-lr-fraction", s.final_fraction,
               "Learning rate of the last step, as a share of the peak")
      ->capture_default_str();
  c.add_option("--decay-fraction", s.decay_fraction, "Share of the steps in which wsd decays")
      ->capture_default_str();
}

void add_run_flags(CLI::App& c, TrainFlags& f) {
  TrainOptions& o = f.options;
  c.add_option("--data", o.data, "Folder of token shards; default: with --resume, the checkpoint's");
  c.add_option("--out", o.out, "Folder of the run: model/, checkpoints/, metrics.jsonl")->required();
  c.add_option("--seed", o.seed,
               "Seed of the initial weights, the data order, the samples and stochastic rounding")
      ->capture_default_str();
  c.add_option("--val-every", o.val_every, "Steps between validations; 0: none")->capture_default_str();
  c.add_option("--val-batches", o.val_batches, "Slices of a validation; 0: the whole split")
      ->capture_default_str();
  c.add_option("--sample-every", o.sample_every, "Steps between samples of text; 0: none")
      ->capture_default_str();
  c.add_option("--sample-tokens", o.sample_tokens, "Tokens of a sample")->capture_default_str();
  c.add_option("--checkpoint-minutes", o.checkpoint_minutes, "Minutes between checkpoints; 0: none by time")
      ->capture_default_str();
  c.add_option("--checkpoint-every", o.checkpoint_every, "Steps between checkpoints; 0: none by steps")
      ->capture_default_str();
  c.add_option("--keep", o.keep, "Keep this many of the newest checkpoints; 0: all")->capture_default_str();
  c.add_option("--keep-every", o.keep_every,
               "Also keep checkpoints whose step is a multiple of this; 0: none")
      ->capture_default_str();
  c.add_flag("--resume", o.resume,
             "Continue from the newest checkpoint in --out, with its options except those given here");
  add_data_change_flag(c, o.allow_data_change);
  add_tokenizer_change_flag(c, o.allow_tokenizer_change);
  c.add_flag("--overfit", o.overfit,
             "Train every step on the first step's samples: a check that learning works");
  c.add_option("--on-nonfinite", f.on_non_finite,
               "If loss or gradients are not finite: stop, or skip the update")
      ->capture_default_str()
      ->check(one_of(names_of(kOnNonFinite)));
  c.add_option(
       "--skip-loss-z", o.skip_loss_z,
       "Skip an update if its loss is this many standard deviations above the last 128 losses; 0: never")
      ->capture_default_str();
  c.add_option("--skip-norm-z", o.skip_norm_z,
               "Skip an update by the gradient norm in the same way; 0: never")
      ->capture_default_str();
  c.add_flag("--plan", f.show_plan,
             "Print what each rank holds, and each tensor's place in memory, before the start");
}

}  // namespace

void TrainFlags::add_sizes_to(CLI::App& command, const SizeDefaults& defaults) {
  add_model_flags(command, *this, defaults);
  add_slice_flags(command, *this, defaults);
}

void TrainFlags::add_to(CLI::App& command) {
  add_sizes_to(command, {.vocab = "that of the data",
                         .total_batch = "one slice, --batch × --seq, which several ranks cannot share"});
  add_run_flags(command, *this);
  add_update_flags(command, *this);
  add_schedule_flags(command, *this);
  device.add_to(command);
  ranks.add_to(command);
  tuned.add_to(command);
}

}  // namespace warpwright::cli
