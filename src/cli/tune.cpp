// warpwright tune: measures the kernels that can run a model's matrix products on this GPU, and stores the
// fastest for --tuned.
#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>
#include <utility>

#include "cli/checks.hpp"
#include "cli/command.hpp"
#include "cli/model_flags.hpp"
#include "cli/standard_streams.hpp"
#include "cli/step_flags.hpp"
#include "cli/tuned_flags.hpp"
#include "core/error.hpp"
#include "model/families.hpp"
#include "ops/gated_linear/gated_linear.hpp"
#include "ops/matmul/products_bench.hpp"
#include "ops/matmul/timer_bench.hpp"
#include "ops/rotated_linear/rotated_linear.hpp"
#include "runtime/file.hpp"
#include "train/step.hpp"

namespace warpwright::cli {
namespace {

namespace fs = std::filesystem;
using namespace ops;

struct TuneFlags {
  std::string model = "gpt2:124M";
  std::vector<std::string> shapes;
  std::int64_t vocab = 0;
  bool json = false;
  StepFlags step{.dtype = "bf16"};
  StepOptions options;
  matmul::TimingOptions timing{.within = 1.6, .rounds = 7};
  fs::path out;
  DeviceFlags device{.device = "cuda"};
};

// Another kernel replaces the predicted one if it takes less than this share of its time. Smaller differences
// are noise, and may change sign between a model's other kernels.
constexpr double kWorthwhile = 0.99;

// The distinct products of a training step, or of the named shapes.
struct Problems {
  std::vector<MatmulForwardProblem> forward;
  std::vector<MatmulDxProblem> dx;
  std::vector<MatmulDwProblem> dw;

  std::size_t size() const { return forward.size() + dx.size() + dw.size(); }
};

template <class Problem>
void add(std::vector<Problem>& list, const Problem& problem) {
  if (std::ranges::find(list, problem) == list.end()) list.push_back(problem);
}

// The products of a step, which are the same for any number of slices. A gated or rotated product counts as
// one without its gate or rotation.
Problems problems_of_step(const TuneFlags& flags) {
  Problems problems;
  Context context(flags.device.context_options(flags.step.dtype), flags.device.place());
  const TrainingStep step(context, flags.options);  // plans its memory, but does not allocate it
  for (const auto& met : met_problems(context, matmul_forward_op())) add(problems.forward, met.problem);
  for (const auto& met : met_problems(context, gated_forward_op()))
    add(problems.forward, met.problem.product);
  for (const auto& met : met_problems(context, rotated_forward_op()))
    add(problems.forward, met.problem.product);
  for (const auto& met : met_problems(context, matmul_dx_op())) add(problems.dx, met.problem);
  for (const auto& met : met_problems(context, gated_dx_op())) add(problems.dx, met.problem.product);
  for (const auto& met : met_problems(context, matmul_dw_op())) add(problems.dw, met.problem);
  return problems;
}

Problems problems_of_shapes(const std::vector<std::string>& shapes) {
  Problems problems;
  for (const matmul::ProductShape& s : matmul::product_shapes(shapes)) {
    if (s.direction == matmul::Direction::forward) add(problems.forward, s.forward_problem());
    if (s.direction == matmul::Direction::dx) add(problems.dx, s.dx_problem());
    if (s.direction == matmul::Direction::dw) add(problems.dw, s.dw_problem());
  }
  return problems;
}

class Tuner {
 public:
  Tuner(const TuneFlags& flags, TunedTable& table, fs::path path, std::size_t problems)
      : flags_(flags),
        table_(table),
        path_(std::move(path)),
        problems_(problems),
        timer_(flags.device.context_options(flags.step.dtype), flags.device.place()) {}

  template <class A>
  void tune(const Op<A>& op, const typename A::Problem& problem) {
    const DeviceInfo& device = timer_.context().device();
    progress_.show(fmt::format("product {} of {}", ++begun_, problems_));
    const std::vector<matmul::TimedKernel> kernels = timer_.time(op, problem, flags_.timing);
    const std::string predicted = choose(timer_.context(), op, problem).text;
    const auto own = std::ranges::find(kernels, predicted, &matmul::TimedKernel::choice);
    if (own == kernels.end()) {
      ++not_timed_;
      return;
    }
    const auto fastest = std::ranges::min_element(kernels, {}, &matmul::TimedKernel::seconds);
    const auto& chosen = fastest->seconds < kWorthwhile * own->seconds ? *fastest : *own;
    table_.set(op.name, tuned_problem(problem, device), chosen.choice);
    table_.write(path_.string());  // a later error loses no measurement
    report(fmt::format("{} {}", op.name, problem.describe()), *own, chosen, kernels.size());
  }

  void finish() const {
    if (rows_.empty()) {
      throw Error("none of the products could be timed", "tune",
                  "name products with aligned rows (multiples of eight), or another model");
    }
    const double ratio = after_ > 0 ? before_ / after_ : 1;
    if (flags_.json) {
      const nlohmann::ordered_json json = {{"machine", timer_.context().device().name},
                                           {"table", path_.string()},
                                           {"products", rows_.size()},
                                           {"not_timed", not_timed_},
                                           {"changed", changed_},
                                           {"predicted_seconds", before_},
                                           {"tuned_seconds", after_},
                                           {"rows", rows_}};
      fmt::print("{}\n", json.dump(2));
      return;
    }
    fmt::print(
        "{} products, {} of them with a faster kernel than the predicted one: {:.2f} ms instead of {:.2f} "
        "({:.3f} times as fast)\ntable: {} ({} products); use it with --tuned\n",
        rows_.size(), changed_, after_ * 1e3, before_ * 1e3, ratio, path_.string(), table_.size());
    if (not_timed_ > 0) fmt::print("{} products could not be timed and stay as predicted\n", not_timed_);
  }

 private:
  void report(const std::string& product, const matmul::TimedKernel& own, const matmul::TimedKernel& chosen,
              std::size_t kernels) {
    const bool changed = chosen.choice != own.choice;
    changed_ += changed;
    before_ += own.seconds;
    after_ += chosen.seconds;
    rows_.push_back({{"product", product},
                     {"kernels", kernels},
                     {"predicted", own.choice},
                     {"predicted_seconds", own.seconds},
                     {"tuned", chosen.choice},
                     {"tuned_seconds", chosen.seconds}});
    if (flags_.json) return;
    progress_.clear();
    fmt::print("{:<60} {:>9.2f} us  {}\n", product, own.seconds * 1e6, own.choice);
    if (changed) fmt::print("{:>60} {:>9.2f} us  {}\n", "faster:", chosen.seconds * 1e6, chosen.choice);
    require_whole_output();
  }

  const TuneFlags& flags_;
  TunedTable& table_;
  fs::path path_;
  std::size_t problems_, begun_ = 0, changed_ = 0, not_timed_ = 0;
  double before_ = 0, after_ = 0;
  nlohmann::ordered_json rows_ = nlohmann::ordered_json::array();
  matmul::ProductTimer timer_;
  ProgressLine progress_;
};

// The table to add to: the existing file's, or a new one if there is no file or it cannot be used.
TunedTable table_at(const fs::path& path, Device device) {
  if (path_exists(path)) {
    const auto table = usable_table(path, device, notify_of("tune"));
    if (table) return *table;
  }
  return TunedTable(tuned_for(device));
}

void finish_step(TuneFlags& flags) {
  flags.step.finish(flags.options, decoder_of(flags.model, flags.vocab));
  require_trainable(flags.options, 1);
}

// A CPU's kernels are chosen by their order alone.
void require_gpu(Device device) {
  if (device.kind != DeviceKind::cuda) {
    throw UsageError("needs an NVIDIA GPU", "tune", "give --device cuda on a machine that has one");
  }
  try {
    device_info(device);
  } catch (const Error& error) {  // its remedy is the CPU
    throw Error(error.problem(), error.where(), "tune needs an NVIDIA GPU: run it on a machine that has one");
  }
}

void run(TuneFlags& flags) {
  const Device device = flags.device.place();
  require_gpu(device);
  const TunedFor machine = tuned_for(device);
  const fs::path path = flags.out.empty() ? tuned_path(machine) : flags.out;
  if (flags.shapes.empty()) finish_step(flags);
  const Problems problems = flags.shapes.empty() ? problems_of_step(flags) : problems_of_shapes(flags.shapes);
  TunedTable table = table_at(path, device);
  Tuner tuner(flags, table, path, problems.size());
  for (const auto& problem : problems.forward) tuner.tune(matmul_forward_op(), problem);
  for (const auto& problem : problems.dx) tuner.tune(matmul_dx_op(), problem);
  for (const auto& problem : problems.dw) tuner.tune(matmul_dw_op(), problem);
  tuner.finish();
}

}  // namespace

void add_tune(CLI::App& app) {
  CLI::App* command = app.add_subcommand("tune",
                                         "Measure the kernels of a model's matrix products on this GPU, for "
                                         "--tuned; other operations are not tuned");
  auto f = std::make_shared<TuneFlags>();
  f->options.B = 64;
  f->options.T = 0;
  command->add_option("--model", f->model, fmt::format("{}; or a folder", known_sizes()))
      ->capture_default_str();
  command->add_option("--vocab", f->vocab, "Vocabulary, as in train; 0: the model's")
      ->check(at_least(0))
      ->capture_default_str();
  f->step.add_to(*command, f->options);
  command->add_option("shape", f->shapes,
                      "Products of bf16 to measure, named as in `bench products`; default: those of --model");
  command
      ->add_option(
          "--within", f->timing.within,
          "Measure our kernels that are predicted to take at most this many times as long as the fastest "
          "(plus everything that cuBLASLt proposes)")
      ->check(CLI::Range(1.0, 1e6))
      ->capture_default_str();
  command->add_option("--rounds", f->timing.rounds, "Samples of each kernel")
      ->check(CLI::Range(1, 1000))
      ->capture_default_str();
  command->add_option(
      "--out", f->out,
      "The table, which is added to; default: warpwright/tuned/GPU.json in the user's cache folder "
      "($XDG_CACHE_HOME, or ~/.cache), GPU being this GPU's name");
  command->add_flag("--json", f->json, "Print JSON");
  f->device.add_to(*command);
  command->callback([f] { run(*f); });
}

}  // namespace warpwright::cli
