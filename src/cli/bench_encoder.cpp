// warpwright bench encoder: a BERT-family forward over packed texts, by operation.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <memory>
#include <nlohmann/json.hpp>
#include <numeric>
#include <sstream>
#include <string>
#include <vector>

#include "cli/bench.hpp"
#include "cli/checks.hpp"
#include "cli/command.hpp"
#include "cli/encoder_flags.hpp"
#include "cli/lengths.hpp"
#include "cli/model_flags.hpp"
#include "cli/op_table.hpp"
#include "core/error.hpp"
#include "model/bert_session.hpp"
#include "ops/element.hpp"
#include "runtime/ceiling.hpp"
#include "runtime/host_view.hpp"
#include "runtime/json.hpp"
#include "runtime/philox.hpp"

namespace warpwright::cli {
namespace {

struct BenchEncoderFlags {
  std::string model = "minilm", dtype = "fp32";
  std::string lengths = "128x64";
  bool batch_invariant = false, layers_alone = false, padded = false;
  std::int64_t batch_tokens = 16384, rounds = 5;
  bool json = false;
  DeviceFlags device;
};

// Random texts of these lengths, longest first, in batches that the model's memory holds. padded: all texts
// of a batch count as its longest.
std::vector<PackedBatch> make_batches(const BertSession& model, std::vector<std::int64_t> lengths,
                                      bool padded) {
  const BertOptions& limits = model.options();
  std::sort(lengths.rbegin(), lengths.rend());
  const PhiloxStream stream(1, 2);
  std::vector<PackedBatch> batches(1);
  std::vector<std::int32_t> ids;
  std::uint64_t drawn = 0;
  for (const std::int64_t length : lengths) {
    ids.resize(static_cast<std::size_t>(length));
    for (auto& id : ids)
      id = static_cast<std::int32_t>(stream.uniform(drawn++) * static_cast<double>(model.config().vocab));
    const PackedBatch& last = batches.back();
    const auto taken = static_cast<std::int64_t>(last.tokens.size());
    const std::int64_t rows =
        padded && taken > 0 ? (last.sequences() + 1) * last.cu_seqlens[1] : taken + length;
    const bool is_full = last.sequences() == limits.max_batch_sequences;
    if (is_full || (taken > 0 && rows > limits.max_batch_tokens)) batches.emplace_back();
    batches.back().append(ids);
  }
  return batches;
}

// A batch whose texts all have the length of the longest, and a mask that hides the padding from every query.
struct PaddedBatch {
  PaddedBatch(const Context& context, const BertConfig& config, const PackedBatch& batch) {
    const std::int64_t S = batch.sequences();
    for (std::int64_t s = 0; s < S; ++s) L = std::max(L, length(batch, s));
    for (std::int64_t s = 0; s < S; ++s) {
      const auto first = batch.tokens.begin() + batch.cu_seqlens[static_cast<std::size_t>(s)];
      std::vector<std::int32_t> ids(first, first + length(batch, s));
      ids.resize(static_cast<std::size_t>(L),
                 static_cast<std::int32_t>(std::max<std::int64_t>(config.padding_token, 0)));
      texts.append(ids);
    }
    const Device device = context.device().device;
    memory = Buffer(static_cast<std::size_t>(S * L * L), device, "an attention mask");
    mask = Tensor(memory.data(), DType::u8, {S, 1, L, L}, device);
    write_on_host(mask, context.stream(), [&](const Tensor& host) {
      auto* bytes = host.as<std::uint8_t>();
      for (std::int64_t i = 0; i < S * L * L; ++i) bytes[i] = i % L < length(batch, i / (L * L));
    });
  }

  static std::int64_t length(const PackedBatch& batch, std::int64_t s) {
    return batch.cu_seqlens[static_cast<std::size_t>(s) + 1] - batch.cu_seqlens[static_cast<std::size_t>(s)];
  }

  PackedBatch texts;
  Buffer memory;
  Tensor mask;
  std::int64_t L = 0;
};

// ‖padded − packed‖ / ‖packed‖ over the hidden states of all tokens.
double difference(BertSession& model, const PackedBatch& packed, const PaddedBatch& padded) {
  const std::int64_t H = model.config().hidden;
  std::vector<float> wanted(packed.tokens.size() * static_cast<std::size_t>(H)),
      found(padded.texts.tokens.size() * static_cast<std::size_t>(H));
  model.hidden(packed, wanted);
  model.hidden(padded.texts, found, {.mask = padded.mask});
  double error = 0, norm = 0;
  for (std::int64_t s = 0, at = 0; s < packed.sequences(); ++s) {
    for (std::int64_t i = 0; i < PaddedBatch::length(packed, s) * H; ++i, ++at) {
      const double x = static_cast<double>(wanted[static_cast<std::size_t>(at)]);
      const double d = static_cast<double>(found[static_cast<std::size_t>(s * padded.L * H + i)]) - x;
      error += d * d;
      norm += x * x;
    }
  }
  return norm > 0 ? std::sqrt(error / norm) : 0;
}

// The timed work: from texts to vectors, from padded texts to hidden states, or from hidden states in memory
// to hidden states.
class Work {
 public:
  Work(Context& context, BertSession& model, std::vector<PackedBatch> batches, const BenchEncoderFlags& flags)
      : context_(context), model_(model), batches_(std::move(batches)), layers_alone_(flags.layers_alone) {
    if (layers_alone_) write_random_states();
    if (!flags.padded) return;
    for (const PackedBatch& batch : batches_) {
      padded_.emplace_back(context, model.config(), batch);
      difference_ = std::max(difference_, difference(model, batch, padded_.back()));
    }
  }

  BertSession& model() const { return model_; }
  std::int64_t batches() const { return std::ssize(batches_); }

  // Between padded and packed texts, of the batch with the largest.
  double largest_difference() const { return difference_; }

  void run() {
    for (const PaddedBatch& batch : padded_) {
      model_.launch(batch.texts, BertSession::Result::hidden, BertSession::From::tokens,
                    {.mask = batch.mask});
      context_.synchronize();
    }
    if (!padded_.empty()) return;
    for (const PackedBatch& batch : batches_) {
      if (layers_alone_) {
        model_.launch(batch, BertSession::Result::hidden, BertSession::From::states);
        context_.synchronize();
      } else {
        vectors_.resize(static_cast<std::size_t>(batch.sequences() * model_.vector_size()));
        model_.embed(batch, vectors_);
      }
    }
  }

 private:
  void write_random_states() {
    std::size_t most = 0;
    for (const PackedBatch& batch : batches_) most = std::max(most, batch.tokens.size());
    const PhiloxStream random(1, 3);
    write_on_host(model_.states(static_cast<std::int64_t>(most)), context_.stream(),
                  [&](const Tensor& states) {
                    for (std::int64_t i = 0; i < states.elements(); ++i) {
                      ops::store_element(states, i, 2 * random.uniform(static_cast<std::uint64_t>(i)) - 1);
                    }
                  });
  }

  Context& context_;
  BertSession& model_;
  std::vector<PackedBatch> batches_;
  std::vector<PaddedBatch> padded_;
  double difference_ = 0;
  bool layers_alone_;
  std::vector<float> vectors_;
};

// Mean seconds of a forward on a GPU, over `forwards` repetitions of the last batch.
double time_forwards(Context& context, BertSession& model, int forwards) {
  Event start(context.device().device), end(context.device().device);
  start.record(context.stream());
  for (int i = 0; i < forwards; ++i) model.repeat();
  end.record(context.stream());
  end.synchronize();
  return end.seconds_since(start) / forwards;
}

// Seconds for all batches, from the first id to the last vector. For a single batch on a GPU: seconds of the
// forward alone, repeated if it is short.
double time_once(Context& context, Work& work) {
  if (context.device().device.kind == DeviceKind::cuda && work.batches() == 1) {
    constexpr double kLeastSeconds = 0.012;  // the same in bench/peers/encoder_gpu.py
    const double one = time_forwards(context, work.model(), 2);
    return time_forwards(context, work.model(), static_cast<int>(std::clamp(kLeastSeconds / one, 2.0, 20.0)));
  }
  const auto start = std::chrono::steady_clock::now();
  work.run();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

OpTable table_of(Context& context, Work& work) {
  OpTable table;
  const Timing timing(context, [&](const Context::CallRecord& call) { table.add(call); });
  work.run();
  return table;
}

struct EncoderMeasurement {
  std::int64_t batches = 0;
  double median = 0, least = 0;  // seconds for all texts
  OpTable table;
  std::int64_t wasted_tokens = 0;
  double difference = 0;
};

EncoderMeasurement measure(Context& context, BertSession& model, const BenchEncoderFlags& flags,
                           const std::vector<std::int64_t>& lengths) {
  Work work(context, model, make_batches(model, lengths, flags.padded), flags);
  for (int i = 0; i < 3; ++i) work.run();  // touches the memory's pages, captures graphs
  std::vector<double> seconds;
  for (std::int64_t i = 0; i < flags.rounds; ++i) seconds.push_back(time_once(context, work));
  std::sort(seconds.begin(), seconds.end());
  EncoderMeasurement m;
  m.batches = work.batches();
  m.difference = work.largest_difference();
  m.median = seconds[seconds.size() / 2];
  m.least = seconds.front();
  const std::int64_t before = model.wasted_tokens();
  m.table = table_of(context, work);
  m.wasted_tokens = model.wasted_tokens() - before;
  return m;
}

// Times texts of these lengths, prints a table unless --json is given, and returns the result.
nlohmann::json report(Context& context, BertSession& model, const BenchEncoderFlags& flags,
                      const std::vector<std::int64_t>& lengths) {
  const EncoderMeasurement m = measure(context, model, flags, lengths);
  const auto tokens = std::accumulate(lengths.begin(), lengths.end(), std::int64_t{0});
  const double tokens_per_second = static_cast<double>(tokens) / m.median;
  const double flops = model.config().flops(lengths);
  if (!flags.json) {
    m.table.print();
    fmt::print(
        "{} {}, {}, {} in all, {}, on {} ({} threads): {:.3f} ms (median of {}, fastest "
        "{:.3f}), {:.0f} tokens/s, {:.1f} GFLOP/s, {} rows wasted\n",
        flags.model, flags.dtype, counted(std::ssize(lengths), "text"), counted(tokens, "token"),
        counted(m.batches, "batch"), context.device().name, context.threads(), m.median * 1e3, flags.rounds,
        m.least * 1e3, tokens_per_second, flops / m.median * 1e-9, m.wasted_tokens);
    if (flags.padded) fmt::print("padded and packed hidden states differ by {:.1e}\n", m.difference);
  }
  nlohmann::json result{{"model", flags.model},
                        {"dtype", flags.dtype},
                        {"batch_invariant", flags.batch_invariant},
                        {"layers_alone", flags.layers_alone},
                        {"padded", flags.padded},
                        {"machine", context.device().name},
                        {"threads", context.threads()},
                        {"texts", lengths.size()},
                        {"tokens", tokens},
                        {"batches", m.batches},
                        {"ms_median", m.median * 1e3},
                        {"ms_min", m.least * 1e3},
                        {"tokens_per_second", tokens_per_second},
                        {"flops", flops},
                        {"wasted_tokens", m.wasted_tokens},
                        {"ops", m.table.to_json()}};
  if (flags.padded) result["difference_from_packed"] = m.difference;
  return result;
}

// The model in the named folder, or a named size with random weights and enough positions for all lengths.
std::shared_ptr<const BertWeights> make_weights(const Context& context, const BenchEncoderFlags& flags,
                                                const std::vector<std::vector<std::int64_t>>& lists) {
  const BertWeightsOptions options{.precision = precision_named(flags.dtype, context.device())};
  if (is_folder(flags.model)) return std::make_shared<BertWeights>(context, flags.model, options);
  BertConfig config = BertConfig::named(flags.model);
  for (const auto& list : lists) {
    const std::int64_t longest = *std::max_element(list.begin(), list.end());
    config.positions = std::max(config.positions, longest + config.first_position());
  }
  return std::make_shared<BertWeights>(context, config, options);
}

void require_lengths_fit(const BertSession& model, const std::vector<std::vector<std::int64_t>>& lists) {
  std::int64_t longest = 0;
  for (const auto& list : lists) longest = std::max(longest, *std::max_element(list.begin(), list.end()));
  if (longest > model.config().max_length()) {
    throw UsageError(fmt::format("has {} tokens, but the model has positions for {}", longest,
                                 model.config().max_length()),
                     "--lengths", "give shorter texts");
  }
  if (longest > model.options().max_batch_tokens) {
    throw UsageError(
        fmt::format("has {} tokens, but a batch holds {}", longest, model.options().max_batch_tokens),
        "--lengths", "give shorter texts, or raise --batch-tokens");
  }
}

void run(const BenchEncoderFlags& flags) {
  std::vector<std::vector<std::int64_t>> lists;
  std::istringstream texts(flags.lengths);
  for (std::string text; std::getline(texts, text, ';');) lists.push_back(parse_lengths(text));
  if (lists.empty()) throw UsageError("is empty", "--lengths", "give at least one length");
  Context context(flags.device.context_options(flags.dtype), flags.device.place());
  const BertOptions options{.max_batch_tokens = flags.batch_tokens, .batch_invariant = flags.batch_invariant};
  BertSession model =
      naming_flags([&] { return BertSession(context, make_weights(context, flags, lists), options); });
  require_lengths_fit(model, lists);
  nlohmann::json reports = nlohmann::json::array();
  for (const auto& list : lists) reports.push_back(report(context, model, flags, list));
  if (flags.json) fmt::print("{}\n", (reports.size() == 1 ? reports[0] : reports).dump(2));
}

}  // namespace

void add_bench_encoder(CLI::App& bench) {
  CLI::App* command = bench.add_subcommand("encoder", "Time an encoder's forward over texts, by operation");
  auto f = std::make_shared<BenchEncoderFlags>();
  command->add_option("--model", f->model, "minilm, bert-base, bert-large or a folder")
      ->capture_default_str();
  add_encoder_dtype_flag(*command, f->dtype);
  command
      ->add_option("--lengths", f->lengths,
                   "Tokens of each text, as 5,17x3 (17 three times) or @FILE; several lists with ; between "
                   "them are timed one after the other")
      ->capture_default_str();
  command->add_option("--batch-tokens", f->batch_tokens, "Most tokens of a batch")
      ->capture_default_str()
      ->check(at_least(1));
  command->add_flag("--batch-invariant", f->batch_invariant, "As in embed");
  CLI::Option* layers_alone =
      command->add_flag("--layers-alone", f->layers_alone,
                        "The layers alone, from hidden states to hidden states: no embedding, no pooling");
  command
      ->add_flag(
          "--padded", f->padded,
          "Pad the texts of a batch to its longest, with a mask, and compare with packed texts; from texts "
          "to hidden states")
      ->excludes(layers_alone);
  command->add_option("--rounds", f->rounds, "Forwards over all texts to time")
      ->capture_default_str()
      ->check(at_least(1));
  command->add_flag("--json", f->json, "Print JSON");
  f->device.add_to(*command);
  command->callback([f] { run(*f); });
}

}  // namespace warpwright::cli
