#include "ops/matmul/timer_bench.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <utility>

#include "core/error.hpp"
#include "ops/testing/fixture.hpp"

namespace warpwright::ops::matmul {
namespace {

constexpr std::size_t kMostRingBytes = std::size_t{7} << 30;
constexpr double kSampleSeconds = 120e-6;  // target for all calls of one graph
constexpr int kMostCalls = 24;
constexpr double kNearlyTheFastest = 1.08;  // longest time of a finalist, as a multiple of the shortest
constexpr int kPlacements = 3;              // a finalist is timed with matrices at this many more places

std::size_t ring_bytes(Device device) {
  if (device.kind != DeviceKind::cuda) throw UsageError("needs a GPU", "--device", "give cuda or cuda:N");
  return std::min(kMostRingBytes, available_memory(device) / 3) / kAlignment * kAlignment;
}

bool can_be_timed(const MatmulForwardProblem& p) {
  return p.aligned && !p.rows_counted && !p.batch_invariant && !p.packed;
}
bool can_be_timed(const MatmulDxProblem& p) {
  return p.aligned;
}
bool can_be_timed(const MatmulDwProblem& p) {
  return p.aligned;
}

double median(std::vector<double> samples) {
  if (samples.empty()) return 0;
  const auto middle = samples.begin() + static_cast<std::ptrdiff_t>(samples.size() / 2);
  std::ranges::nth_element(samples, middle);
  return *middle;
}

DType result_dtype(DType factors, bool widened) {
  return widened ? DType::f32 : factors;
}

// A variant with one of its configurations.
template <class A>
struct Candidate {
  const Variant<A>* variant;
  TimedKernel timed;
  bool is_exempt = false;  // timed whatever its predicted time
};

template <class A>
std::vector<Candidate<A>> candidates_of(const Op<A>& op, const typename A::Problem& problem,
                                        const DeviceInfo& device, const TimingOptions& options) {
  std::vector<Candidate<A>> list;
  double least = std::numeric_limits<double>::infinity();
  for (const auto& variant : op.variants) {
    if (variant.name == kReference || !variant.refuse(problem, device).empty()) continue;
    const std::string own = variant.configuration(problem, device);
    if (!options.variants.empty()) {
      if (std::ranges::find(options.variants, variant.name) == options.variants.end()) continue;
      list.push_back({&variant, {choice_text(variant.name, own), variant.cost(problem, device)}});
      continue;
    }
    for (const Configuration& c : variant.configurations(problem, device)) {
      const bool is_exempt = c.text == own || variant.kernel->predicts_roughly;
      list.push_back({&variant, {choice_text(variant.name, c.text), c.seconds}, is_exempt});
      least = std::min(least, c.seconds);
    }
  }
  if (!options.variants.empty()) return list;
  // A cost above one second is a rank, not a prediction (kernels.hpp).
  std::erase_if(list, [&](const Candidate<A>& c) {
    const double most = options.within * least;
    return c.timed.predicted > (c.is_exempt ? std::max(1.0, most) : most);
  });
  return list;
}

}  // namespace

Tensor ProductTimer::Ring::take(DType dtype, const Shape& shape, Device device) {
  const std::size_t bytes = warpwright::round_up(static_cast<std::size_t>(shape.elements()) * size_of(dtype));
  if (bytes > buffer_.bytes()) {
    throw Error(fmt::format("a matrix of {} bytes does not fit", bytes), "timing products",
                fmt::format("at most {} bytes are set aside: time smaller products", buffer_.bytes()));
  }
  if (next_ + bytes > buffer_.bytes()) next_ = 0;
  const Tensor tensor(buffer_.data() + next_, dtype, shape, device);
  next_ += bytes;
  return tensor;
}

Tensor ProductTimer::Ring::all(Device device) const {
  return {buffer_.data(), DType::bf16, {static_cast<std::int64_t>(buffer_.bytes() / 2)}, device};
}

ProductTimer::ProductTimer(ContextOptions options, Device device)
    : context_(std::move(options), device),
      inputs_(ring_bytes(device), device),
      outputs_(ring_bytes(device), device),
      start_(device),
      end_(device) {
  // The numbers are random bf16. Read as fp16 or fp32, their bits are ordinary numbers of both signs, too.
  testing::Fixture fixture(1);
  const Tensor numbers = fixture.random(DType::bf16, {std::int64_t{1} << 23});
  const Tensor all = inputs_.all(device);
  for (std::int64_t at = 0; at < all.elements(); at += numbers.elements()) {
    const std::int64_t count = std::min(numbers.elements(), all.elements() - at);
    copy(all.slice(0, at, count), numbers.slice(0, 0, count), context_.stream());
  }
  context_.synchronize();
}

Tensor ProductTimer::input(DType dtype, const Shape& shape) {
  return inputs_.take(dtype, shape, context_.device().device);
}
Tensor ProductTimer::output(DType dtype, const Shape& shape) {
  return outputs_.take(dtype, shape, context_.device().device);
}

MatmulForward ProductTimer::arguments(const MatmulForwardProblem& p) {
  const DType result = result_dtype(p.dtype, p.widened);
  MatmulForward a;
  a.x = input(p.dtype, {p.M, p.K});
  a.weight = input(p.dtype, {p.N, p.K});
  if (p.bias) a.bias = input(p.dtype, {p.N});
  if (p.residual) a.residual = input(result, {p.M, p.N});
  if (p.preact) a.preact = output(p.dtype, {p.M, p.N});
  if (p.scaled) a.scale = 0.5f;
  a.out = output(result, {p.M, p.N});
  a.activation = p.activation;
  return a;
}

MatmulDx ProductTimer::arguments(const MatmulDxProblem& p) {
  MatmulDx a;
  a.dout = input(p.dtype, {p.M, p.N});
  a.weight = input(p.dtype, {p.N, p.K});
  if (p.activation != Activation::none) a.preact = input(p.dtype, {p.M, p.K});
  a.dx = output(result_dtype(p.dtype, p.widened), {p.M, p.K});
  a.activation = p.activation;
  return a;
}

MatmulDw ProductTimer::arguments(const MatmulDwProblem& p) {
  MatmulDw a;
  a.dout = input(p.dtype, {p.M, p.N});
  a.x = input(p.dtype, {p.M, p.K});
  a.dweight = output(accumulation_dtype(p.dtype), {p.N, p.K});
  if (p.bias) a.dbias = output(accumulation_dtype(p.dtype), {p.N});
  a.store = p.store;
  return a;
}

template <class A>
std::vector<TimedKernel> ProductTimer::time(const Op<A>& op, const typename A::Problem& problem,
                                            const TimingOptions& options) {
  if (!can_be_timed(problem)) return {};
  const auto before = context_.options().tuned;
  std::vector<Candidate<A>> candidates = candidates_of(op, problem, context_.device(), options);
  const std::string name = tuned_problem(problem, context_.device());
  std::size_t scratch = 0;
  std::vector<std::shared_ptr<const TunedTable>> tables;  // each names its candidate's configuration
  for (const auto& c : candidates) {
    auto table = std::make_shared<TunedTable>(TunedFor{});
    table->set(op.name, name, c.timed.choice);
    tables.push_back(table);
    context_.set_tuned(table);
    scratch = std::max(scratch, c.variant->workspace(problem, context_.device()));
  }
  context_.reserve_scratch(scratch);
  const int calls =
      std::clamp(static_cast<int>(kSampleSeconds / (problem.flops() / 700e12 + 5e-6)), 1, kMostCalls);
  // Captures a graph of calls for each kernel that is not slower than this, and samples it. A kernel's time
  // depends on where its matrices are, so each graph gets matrices of its own.
  std::vector<TimedKernel> timed;
  for (const auto& c : candidates) timed.push_back(c.timed);
  const auto time_once = [&](double most_seconds) {
    std::vector<Sampled> sampled;
    for (std::size_t i = 0; i < candidates.size(); ++i) {
      if (timed[i].seconds > most_seconds) continue;
      context_.set_tuned(tables[i]);
      const Variant<A>& variant = *candidates[i].variant;
      variant.run(context_, arguments(problem));
      sampled.push_back({&timed[i], Graph(context_.stream(), [&] {
                           for (int call = 0; call < calls; ++call) variant.run(context_, arguments(problem));
                         })});
      sampled.back().graph.launch(context_.stream());
    }
    context_.set_tuned(before);
    sample(sampled, calls, options.rounds);
  };
  time_once(std::numeric_limits<double>::infinity());
  if (timed.empty()) return timed;
  const double least = std::ranges::min_element(timed, {}, &TimedKernel::seconds)->seconds;
  for (int placement = 0; placement < kPlacements; ++placement) time_once(kNearlyTheFastest * least);
  return timed;
}

void ProductTimer::sample(std::vector<Sampled>& sampled, int calls, int rounds) {
  for (int round = 0; round < rounds; ++round) {
    for (std::size_t i = 0; i < sampled.size(); ++i) {
      Sampled& turn = sampled[(i + static_cast<std::size_t>(round) * 7) % sampled.size()];
      start_.record(context_.stream());
      turn.graph.launch(context_.stream());
      end_.record(context_.stream());
      end_.synchronize();
      turn.kernel->samples.push_back(end_.seconds_since(start_) / calls);
    }
  }
  for (const Sampled& one : sampled) one.kernel->seconds = median(one.kernel->samples);
}

template std::vector<TimedKernel> ProductTimer::time(const Op<MatmulForward>&, const MatmulForwardProblem&,
                                                     const TimingOptions&);
template std::vector<TimedKernel> ProductTimer::time(const Op<MatmulDx>&, const MatmulDxProblem&,
                                                     const TimingOptions&);
template std::vector<TimedKernel> ProductTimer::time(const Op<MatmulDw>&, const MatmulDwProblem&,
                                                     const TimingOptions&);

}  // namespace warpwright::ops::matmul
