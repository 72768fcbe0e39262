#include "cli/plan_kernels.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <numeric>
#include <optional>
#include <utility>

#include "cli/command.hpp"
#include "cli/model_flags.hpp"
#include "cli/step_timing.hpp"
#include "core/error.hpp"
#include "model/families.hpp"
#include "runtime/device.hpp"
#include "runtime/file.hpp"
#include "runtime/json.hpp"

namespace warpwright::cli {
namespace {

using nlohmann::json;

constexpr std::uint64_t kMostRecord = std::uint64_t{256} << 20;
constexpr int kRecordDepth = 32;
constexpr const char* kRemedy = "give what `warpwright bench step --json` or scripts/gpu-check wrote";

double slice_flops(const Decoder& model, std::int64_t B, std::int64_t T) {
  return model.flops_per_token(T) * static_cast<double>(B * T);
}

bool is_update(const std::string& op) {
  return op == "adamw" || op.starts_with("muon.") || op.starts_with("global_norm") || op == "gradient_sum";
}

bool is_backward(const std::string& op) {
  return op.ends_with(".backward") || op.ends_with(".dw") || op.ends_with(".dx");
}

// The work that an operation's time grows with.
enum Growth : std::uint8_t { products, attention, logits, activations };
constexpr std::size_t kGrowths = 4;
using ByGrowth = std::array<double, kGrowths>;

Growth growth_of(const std::string& op) {
  for (const char* name : {"matmul.", "gated_linear.", "rotated_linear."}) {
    if (op.starts_with(name)) return products;
  }
  if (op.starts_with("attention.") || op.starts_with("rotated_attention.")) return attention;
  return op == "classifier" ? logits : activations;
}

// FLOPs of a slice's products and of its attention, and elements that the other operations read or write.
ByGrowth work_of_slice(const Decoder& model, std::int64_t B, std::int64_t T) {
  const auto tokens = static_cast<double>(B * T);
  const double without_attention = model.flops_per_token(1);  // but for that of a token to itself
  const auto layers = static_cast<double>(model.layer_parameters().layers);
  return {tokens * without_attention, tokens * (model.flops_per_token(T) - without_attention),
          tokens * static_cast<double>(model.padded_vocab()),
          tokens * static_cast<double>(model.channels()) * layers};
}

double sum_of(const ByGrowth& parts) {
  return std::accumulate(parts.begin(), parts.end(), 0.0);
}

// The times of a step's kernels, and those of forward and backward by what they grow with.
struct SplitTimes {
  KernelTimes times;
  ByGrowth forward{}, backward{};
};

// seconds: of a whole step. ops: the rows of its operations, whose times alone add up to about the same.
SplitTimes split_by_operation(double seconds, const json& ops) {
  SplitTimes split;
  KernelTimes& times = split.times;
  double all = 0, update_bytes = 0, update_seconds = 0;
  for (const json& row : ops) {
    const std::string op = row.at("op");
    const double of_op = row.at("ms").get<double>() * 1e-3;
    all += of_op;
    (is_update(op)     ? times.update
     : is_backward(op) ? split.backward[growth_of(op)]
                       : split.forward[growth_of(op)]) += of_op;
    if (op == "adamw") {
      update_bytes += row.at("bytes").get<double>();
      update_seconds += of_op;
    }
    times.on_gpu = times.on_gpu || row.at("variant").get<std::string>().starts_with("cuda");
  }
  for (ByGrowth* part : {&split.forward, &split.backward}) {
    for (double& of_growth : *part) of_growth *= seconds / all;
  }
  times.update *= seconds / all;
  times.forward = sum_of(split.forward);
  times.backward = sum_of(split.backward);
  times.bytes_per_second = update_bytes / update_seconds;
  return split;
}

// The matrices of all layers.
struct MatricesOfLayers {
  double all = 0, last = 0;  // elements of all of them, and of the last one of each layer
  double inner = 0;          // the last one's columns
  bool gated = false;        // a gate joins the matrix before it
};

MatricesOfLayers matrices_of_layers(const StepOptions& step) {
  Recorder recorder;
  const std::vector<Tensor> parameters =
      step.model->allocate_parameters(step.dtype, Category::parameters, "", recorder).tensors();
  const LayerParameters layers = step.model->layer_parameters();
  const auto count = static_cast<double>(layers.layers);
  MatricesOfLayers matrices;
  std::size_t joined = 1;  // in the matrix before
  for (const auto& [index, rows] : step.model->layer_matrices()) {
    if (index >= layers.first + layers.each) break;
    const Tensor& matrix = parameters[index];
    matrices.last = count * static_cast<double>(matrix.elements());
    matrices.all += matrices.last;
    matrices.inner = count * static_cast<double>(matrix.shape[1]);
    matrices.gated = std::exchange(joined, rows.size()) > 1;
  }
  return matrices;
}

// Seconds of what the backward computes again, as a share of this forward. A block leaves out its last
// product, and the operations outside of the layers are not computed again. In the forward, a product's
// kernel computes the activation function. Again, it reads and writes a tensor; a gate's gradient reads it
// anyway.
double seconds_again(const StepOptions& step, const ByGrowth& forward, double bytes_per_second) {
  if (step.recompute == Recompute::none) return 0;
  const MatricesOfLayers matrices = matrices_of_layers(step);
  if (step.recompute == Recompute::block) {
    const double flops = 2 * (matrices.all - matrices.last), of_forward = step.model->flops_per_token(1) / 3;
    return forward[products] * flops / of_forward + forward[attention] + forward[activations];
  }
  const double of_tensor =
      static_cast<double>(step.B * step.T) * matrices.inner * static_cast<double>(size_of(step.dtype));
  const double of_function = (matrices.gated ? 1 : 2) * of_tensor / bytes_per_second;
  return of_function + (step.recompute == Recompute::norm ? forward[activations] : 0);
}

// A step in a record.
struct RecordedStep {
  std::string name;  // "gpt2:124M bf16 B=64 T=1024 on NVIDIA H200"
  std::shared_ptr<const Decoder> model;
  std::int64_t B = 0, T = 0;
  std::string recompute, optimizer;
  std::int64_t logits_mib = 0;
  bool memory_efficient_norm = false;
  SplitTimes split;

  double flops() const { return slice_flops(*model, B, T); }
};

// Nothing for a model that the record does not describe, and for another dtype.
std::optional<RecordedStep> recorded_step(const json& row, const std::string& dtype) {
  const std::string model = row.at("model");
  if (!names_sizes(model) || row.at("dtype") != dtype) return std::nullopt;
  RecordedStep step{.name = fmt::format("{} {} B={} T={} on {}", model, dtype, row.at("batch").dump(),
                                        row.at("seq").dump(), row.at("machine").get<std::string>()),
                    .model = named_decoder(model),
                    .B = row.at("batch"),
                    .T = row.at("seq"),
                    .recompute = row.value("recompute", "none"),
                    .optimizer = row.value("optimizer", "adamw"),
                    .logits_mib = row.value("logits_mib", StepOptions().logits_mib),
                    .memory_efficient_norm = row.value("memory_efficient_norm", false),
                    .split = split_by_operation(row.at("ms_median").get<double>() * 1e-3, row.at("ops"))};
  const KernelTimes& t = step.split.times;
  const auto usable = [](double value) { return std::isfinite(value) && value > 0; };
  if (!usable(t.forward) || !usable(t.backward) || !usable(t.update) || !usable(t.bytes_per_second))
    return std::nullopt;
  return step;
}

std::vector<RecordedStep> recorded_steps(const std::filesystem::path& path, const std::string& dtype) {
  const std::string where = path.string();
  const json document = parse_json(read_file(path, kMostRecord), where, kRecordDepth, kRemedy);
  std::vector<RecordedStep> steps;
  const auto read = [&](const json& row) {
    if (auto step = recorded_step(row, dtype)) steps.push_back(std::move(*step));
  };
  try {
    if (!document.is_object()) throw Error("is not a JSON object", where, kRemedy);
    if (document.contains("steps") && document["steps"].is_array()) {
      for (const json& row : document["steps"]) read(row);
    } else if (document.contains("ms_median")) {
      read(document);
    }
  } catch (const json::exception& error) {
    throw Error(fmt::format("is not a record of steps ({})", reason_of(error)), where, kRemedy);
  } catch (const UsageError& error) {
    throw Error(fmt::format("is not a record of steps ({})", error.problem()), where, kRemedy);
  }
  if (steps.empty()) throw Error(fmt::format("has no time of a step in {}", dtype), where, kRemedy);
  return steps;
}

KernelTimes scaled(const RecordedStep& recorded, const StepOptions& asked,
                   const std::filesystem::path& record) {
  SplitTimes split = recorded.split;
  const ByGrowth from = work_of_slice(*recorded.model, recorded.B, recorded.T),
                 to = work_of_slice(*asked.model, asked.B, asked.T);
  for (std::size_t i = 0; i < kGrowths; ++i) {
    split.forward[i] *= to[i] / from[i];
    split.backward[i] *= to[i] / from[i];
  }
  KernelTimes& times = split.times;
  const double achieved = recorded.flops() / (times.forward + times.backward);
  times.forward = sum_of(split.forward);
  times.backward = sum_of(split.backward) + seconds_again(asked, split.forward, times.bytes_per_second);
  times.update *= static_cast<double>(asked.model->parameter_count()) /
                  static_cast<double>(recorded.model->parameter_count());
  times.source = fmt::format("scaled by operation from {}, which reaches {:.3g} TFLOP/s ({})", recorded.name,
                             achieved * 1e-12, record.string());
  return times;
}

bool is_same(const RecordedStep& recorded, const StepOptions& asked) {
  return recorded.model->config(-1) == asked.model->config(-1) && recorded.B == asked.B &&
         recorded.T == asked.T && recorded.recompute == name_of(asked.recompute) &&
         recorded.logits_mib == asked.logits_mib &&
         recorded.memory_efficient_norm == (asked.norms == NormBackwardFrom::output) &&
         recorded.optimizer == name_of(asked.optimizer);
}

}  // namespace

std::string too_large_to_time(Context& context, StepOptions options) {
  options.slices = 1;
  const std::size_t needed = TrainingStep(context, options).plan().total_bytes(),
                    available = available_memory(context.device().device);
  if (needed <= available) return "";
  return fmt::format("one rank alone needs {} to be measured here, but {} are available",
                     human_bytes(static_cast<double>(needed)), human_bytes(static_cast<double>(available)));
}

KernelTimes measured_kernels(Context& context, StepOptions options) {
  constexpr int kSteps = 5;
  options.slices = 1;
  TrainingStep step(context, options);
  step.allocate();
  options.model->initialize(1, step.full_precision());
  const std::int64_t vocab = options.model->vocab();
  std::vector<double> seconds = timed_steps(context, step, kSteps, vocab);
  std::ranges::sort(seconds);
  KernelTimes times =
      split_by_operation(seconds[kSteps / 2], table_of_step(context, step, vocab).to_json()).times;
  times.source = fmt::format("measured on {} with {} threads", context.device().name, context.threads());
  return times;
}

KernelTimes recorded_kernels(const std::filesystem::path& record, const std::string& dtype,
                             const StepOptions& asked) {
  const std::vector<RecordedStep> steps = recorded_steps(record, dtype);
  const double flops = slice_flops(*asked.model, asked.B, asked.T);
  const RecordedStep* nearest = nullptr;
  double least = std::numeric_limits<double>::infinity();
  for (const RecordedStep& step : steps) {
    if (is_same(step, asked)) {
      KernelTimes times = step.split.times;
      times.source = fmt::format("{} ({})", step.name, record.string());
      return times;
    }
    const double distance = std::abs(std::log(step.flops() / flops));
    if (step.recompute != "none" || step.memory_efficient_norm || distance >= least) continue;
    if (step.logits_mib != StepOptions().logits_mib) continue;
    // Muon's products grow in another way than the model's.
    if (asked.optimizer == Optimizer::muon || step.optimizer != name_of(Optimizer::adamw)) continue;
    least = distance;
    nearest = &step;
  }
  if (!nearest) {
    if (asked.optimizer == Optimizer::muon)
      throw Error("has no step of exactly this kind with Muon, and others say too little about it",
                  record.string(),
                  "leave --record out, or record `warpwright bench step --optimizer muon --json`");
    throw Error("has only steps that recompute, keep less, or use another --logits-mib or optimizer",
                record.string(), kRemedy);
  }
  return scaled(*nearest, asked, record);
}

}  // namespace warpwright::cli
