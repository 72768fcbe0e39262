#include "cli/step_flags.hpp"

#include <utility>

#include "cli/checks.hpp"
#include "cli/model_flags.hpp"
#include "train/options.hpp"

namespace warpwright::cli {

void StepFlags::add_to(CLI::App& command, StepOptions& step) {
  add_dtype_flag(command, dtype);
  command.add_option("--batch", step.B, "Sequences in a slice: what one forward and backward takes")
      ->capture_default_str()
      ->check(at_least(1));
  CLI::Option* seq =
      command
          .add_option("--seq", step.T,
                      step.T == 0 ? "Tokens in a sequence; default: the model's context, at most 2048"
                                  : "Tokens in a sequence")
          ->check(at_least(1));
  if (step.T > 0) seq->capture_default_str();
  command
      .add_option("--recompute", recompute,
                  "Activations that the backward pass recomputes to save memory: none, gelu, norm (and "
                  "gelu), block (all)")
      ->capture_default_str()
      ->check(one_of(recompute_names()));
  command
      .add_option("--logits-mib", step.logits_mib,
                  "Most memory for logits, in MiB; larger slices go through the head in parts")
      ->capture_default_str()
      ->check(at_least(1));
  command.add_flag("--memory-efficient-norm", memory_efficient_norm,
                   "Compute the norms' backward from their output, so that their input need not be kept");
  command
      .add_option("--optimizer", optimizer,
                  "adamw, or muon for the matrices of the layers and AdamW for the other parameters")
      ->capture_default_str()
      ->check(one_of(optimizer_names()));
}

void StepFlags::finish(StepOptions& step, std::shared_ptr<const Decoder> model) const {
  step.model = std::move(model);
  step.dtype = compute_dtype(dtype);
  step.recompute = recompute_named(recompute);
  step.optimizer = optimizer_named(optimizer);
  if (memory_efficient_norm) step.norms = NormBackwardFrom::output;
  if (step.T == 0) step.T = default_sequence(*step.model);
}

void require_trainable(const StepOptions& step, std::int64_t steps) {
  TrainOptions training;
  training.step = step;
  training.schedule.steps = steps;
  training.validate();
}

}  // namespace warpwright::cli
