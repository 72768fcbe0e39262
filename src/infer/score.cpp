#include "infer/score.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>

#include "core/error.hpp"
#include "infer/batch_views.hpp"
#include "ops/classifier/classifier.hpp"
#include "runtime/planned.hpp"

namespace warpwright {

struct Scorer::Tensors {
  DecoderBatch batch;
  std::unique_ptr<ScoringPass> pass;
  Tensor logits, targets, losses;
};

struct Scorer::HostViews {
  explicit HostViews(const Tensors& t) : batch(t.batch), targets(t.targets), losses(t.losses) {}

  BatchViews batch;
  HostView targets, losses;
};

Scorer::Tensors Scorer::allocate(const DecoderWeights& weights, std::int64_t sequences,
                                 std::int64_t max_tokens, Allocator& allocator) {
  const Decoder& decoder = *weights.decoder;
  Tensors t;
  t.batch = allocate_batch(sequences, max_tokens, allocator);
  t.pass = decoder.allocate_scoring(weights.parameters, weights.dtype, t.batch, allocator);
  t.logits = decoder.allocate_logits(max_tokens, weights.dtype, allocator);
  t.targets = allocator.allocate("targets", DType::i32, {max_tokens}, Category::batch);
  t.losses =
      allocator.allocate("losses", ops::accumulation_dtype(weights.dtype), {max_tokens}, Category::batch);
  return t;
}

Scorer::Scorer(Context& context, DecoderWeights weights, std::int64_t sequences, std::int64_t max_tokens)
    : context_(context), weights_(std::move(weights)) {
  const auto allocate = [=, this](Allocator& allocator) {
    return Scorer::allocate(weights_, sequences, max_tokens, allocator);
  };
  const auto work = [this](const Tensors& t, std::int64_t N) { run(t, N); };
  tensors_ =
      std::make_unique<Planned<Tensors>>(context, allocate, [&](const Tensors& t) { work(t, max_tokens); });
  tensors_->reserve_scratch_for_fewer(context, max_tokens, work);
  tensors_->take(context);
  tensors_->tensors().pass->fill_constants(context.stream());
  host_ = std::make_unique<HostViews>(tensors_->tensors());
}

Scorer::~Scorer() = default;

void Scorer::run(const Tensors& t, std::int64_t N) {
  const Tensor logits = t.logits.slice(0, 0, N);
  t.pass->head(context_, t.pass->forward(context_, N), logits);
  ops::classifier(context_, {.logits = logits,
                             .targets = t.targets.slice(0, 0, N),
                             .weights = {},
                             .losses = t.losses.slice(0, 0, N),
                             .probabilities = {},
                             .V = weights_.decoder->vocab(),
                             .gradient = false});
}

std::span<const float> Scorer::score(std::span<const Sequence> sequences) {
  const Tensors& t = tensors_->tensors();
  const auto most = static_cast<std::size_t>(t.batch.tokens.shape[0]);
  auto* cu_seqlens = host_->batch.cu_seqlens.tensor().as<std::int32_t>();
  if (static_cast<std::int64_t>(sequences.size()) >= t.batch.cu_seqlens.shape[0]) {
    throw Error(fmt::format("{} sequences at once", sequences.size()), "scoring", "give fewer");
  }
  std::size_t n = 0;
  for (std::size_t s = 0; s < sequences.size(); ++s) {
    const auto& [inputs, targets] = sequences[s];
    if (inputs.empty() || inputs.size() != targets.size()) {
      throw Error(fmt::format("a sequence has {} inputs and {} targets", inputs.size(), targets.size()),
                  "scoring", "give at least one input, and a target for each");
    }
    if (inputs.size() > static_cast<std::size_t>(weights_.decoder->context()) || n + inputs.size() > most) {
      throw Error(fmt::format("a sequence of {} tokens does not fit", inputs.size()), "scoring",
                  fmt::format("give at most {} a sequence and {} in all", weights_.decoder->context(), most));
    }
    std::copy(inputs.begin(), inputs.end(), host_->batch.tokens.tensor().as<std::int32_t>() + n);
    std::copy(targets.begin(), targets.end(), host_->targets.tensor().as<std::int32_t>() + n);
    for (std::size_t i = 0; i < inputs.size(); ++i) {
      host_->batch.positions.tensor().as<std::int32_t>()[n + i] = static_cast<std::int32_t>(i);
    }
    n += inputs.size();
    cu_seqlens[s + 1] = static_cast<std::int32_t>(n);
  }
  // Fewer sequences than planned: the rest are empty.
  std::fill(cu_seqlens + sequences.size() + 1, cu_seqlens + t.batch.cu_seqlens.shape[0],
            static_cast<std::int32_t>(n));
  host_->batch.upload(context_.stream());
  host_->targets.upload(context_.stream());
  run(t, static_cast<std::int64_t>(n));
  host_->losses.download(context_.stream());
  context_.synchronize();
  const std::span<const float> losses(host_->losses.tensor().as<float>(), n);
  if (!std::all_of(losses.begin(), losses.end(), [](float loss) { return std::isfinite(loss); })) {
    throw Error("a loss is not finite", "evaluation", "check the model's weights");
  }
  return losses;
}

namespace {

// The numbers of the parts of all processes, in the order of the parts, on process 0.
std::vector<double> in_order(const Share& share, std::int64_t parts, const std::vector<double>& mine) {
  if (share.ranks == 1) return mine;
  const char* bytes = reinterpret_cast<const char*>(mine.data());
  const std::vector<std::string> all = share.gather({bytes, mine.size() * sizeof(double)});
  std::vector<double> ordered;
  for (std::int64_t part = 0; part < parts && !all.empty(); ++part) {
    const std::string& of_process = all[static_cast<std::size_t>(part % share.ranks)];
    const std::size_t at = static_cast<std::size_t>(part / share.ranks) * sizeof(double);
    std::memcpy(&ordered.emplace_back(), of_process.substr(at, sizeof(double)).data(), sizeof(double));
  }
  return ordered;
}

}  // namespace

LossReport evaluate_loss(Context& context, const DecoderWeights& weights, const TokenStream& stream,
                         std::int64_t B, std::int64_t T, std::int64_t max_batches,
                         const std::function<void(std::int64_t done, std::int64_t total)>& progress,
                         const Share& share) {
  const ValidationLoader loader(stream, T);
  const std::int64_t all = (loader.samples() + B - 1) / B;
  const std::int64_t batches = max_batches > 0 ? std::min(all, max_batches) : all;
  stream.check(std::min(batches * B, loader.samples()) * T + 1);
  Scorer scorer(context, weights, B, B * T);
  std::vector<std::int32_t> inputs(static_cast<std::size_t>(B * T)), targets(inputs.size());
  std::vector<double> sums;  // of this process's batches
  LossReport report;
  for (std::int64_t batch = 0; batch < batches; ++batch) {
    if (!share.has(batch)) continue;
    const std::int64_t rows = std::min(B, loader.samples() - batch * B);
    loader.load(batch * B, Tensor(inputs.data(), DType::i32, {rows, T}),
                Tensor(targets.data(), DType::i32, {rows, T}));
    std::vector<Scorer::Sequence> sequences;
    for (std::int64_t r = 0; r < rows; ++r) {
      const auto length = static_cast<std::size_t>(T);
      sequences.push_back({{inputs.data() + r * T, length}, {targets.data() + r * T, length}});
    }
    double of_batch = 0;  // added up in the order of a validation in training
    for (const float loss : scorer.score(sequences)) of_batch += static_cast<double>(loss);
    sums.push_back(of_batch);
    if (progress) progress(batch + 1, batches);
  }
  double sum = 0;
  for (const double of_batch : in_order(share, batches, sums)) sum += of_batch;
  report.tokens = std::min(batches * B, loader.samples()) * T;
  report.loss = sum / static_cast<double>(report.tokens);
  return report;
}

namespace {

// The losses of one ending after its text.
struct Ending {
  std::vector<std::int32_t> inputs, targets;
};

Ending prepare(const std::vector<std::int32_t>& text, const std::vector<std::int32_t>& ending) {
  Ending e;
  e.inputs = text;
  e.inputs.insert(e.inputs.end(), ending.begin(), ending.end());
  e.targets.assign(text.size() - 1, -1);
  e.targets.insert(e.targets.end(), ending.begin(), ending.end());
  e.inputs.pop_back();
  return e;
}

void require_tokens(const Choice& choice) {
  const bool has_empty = std::ranges::any_of(choice.endings, [](const auto& e) { return e.empty(); });
  if (!choice.text.empty() && !choice.endings.empty() && !has_empty) return;
  throw Error("a question has no text, no endings or an empty ending", "evaluation",
              "give text and endings of at least one token each");
}

}  // namespace

ChoiceReport evaluate_choices(Context& context, const DecoderWeights& weights,
                              std::span<const Choice> choices,
                              const std::function<void(std::int64_t done)>& progress, const Share& share) {
  std::size_t sequences = 1, tokens = 1;
  for (const Choice& choice : choices) {
    require_tokens(choice);
    std::size_t together = 0;
    for (const auto& ending : choice.endings) together += choice.text.size() + ending.size() - 1;
    sequences = std::max(sequences, choice.endings.size());
    tokens = std::max(tokens, together);
  }
  Scorer scorer(context, weights, static_cast<std::int64_t>(sequences), static_cast<std::int64_t>(tokens));
  // For each question of this process: 1 if right by the sum, plus 2 if right by the mean.
  std::vector<double> results;
  const auto count = static_cast<std::int64_t>(choices.size());
  for (std::int64_t question = 0; question < count; ++question) {
    if (!share.has(question)) continue;
    const Choice& choice = choices[static_cast<std::size_t>(question)];
    std::vector<Ending> prepared;
    for (const auto& ending : choice.endings) prepared.push_back(prepare(choice.text, ending));
    std::vector<Scorer::Sequence> batch;
    for (const Ending& e : prepared) batch.push_back({e.inputs, e.targets});
    std::span<const float> losses = scorer.score(batch);
    std::vector<double> sums, means;
    for (std::size_t e = 0; e < prepared.size(); ++e) {
      double sum = 0;
      for (const float loss : losses.first(prepared[e].inputs.size())) sum += static_cast<double>(loss);
      losses = losses.subspan(prepared[e].inputs.size());
      sums.push_back(sum);
      means.push_back(sum / static_cast<double>(choice.endings[e].size()));
    }
    const auto best = [](const std::vector<double>& v) {
      return std::min_element(v.begin(), v.end()) - v.begin();
    };
    results.push_back((best(sums) == choice.label ? 1 : 0) + (best(means) == choice.label ? 2 : 0));
    if (progress) progress(question + 1);
  }
  ChoiceReport report{.questions = count};
  for (const double result : in_order(share, count, results)) {
    report.right += result == 1 || result == 3;
    report.right_normalized += result >= 2;
  }
  return report;
}

}  // namespace warpwright
