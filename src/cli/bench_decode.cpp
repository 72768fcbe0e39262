// warpwright bench decode: a decoding step of many sequences, by operation.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <numeric>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "cli/bench.hpp"
#include "cli/command.hpp"
#include "cli/lengths.hpp"
#include "cli/model_flags.hpp"
#include "cli/op_table.hpp"
#include "core/error.hpp"
#include "infer/decoding_engine.hpp"
#include "infer/decoding_memory.hpp"
#include "model/families.hpp"
#include "runtime/ceiling.hpp"
#include "runtime/philox.hpp"

namespace warpwright::cli {
namespace {

constexpr std::int64_t kWarmUp = 8;           // steps
constexpr std::int64_t kBatchTokens = 16384;  // of prompts in a pass

struct BenchDecodeFlags {
  std::string model = "gpt2:124M", dtype = "fp32", lengths = "128";
  std::int64_t steps = 64;
  bool batch_invariant = false, json = false;
  DeviceFlags device;
};

struct DecodeMeasurement {
  double prompts_seconds = 0;   // until every sequence has drawn a token; the first ones draw more meanwhile
  std::vector<double> seconds;  // of each step
  double weight_bytes = 0;      // that a step reads
  double cache_bytes = 0;       // that a step in the middle of the measurement reads
  double read_bandwidth = 0;
  OpTable table;
  Disturbance disturbance;

  double median() const {
    std::vector<double> sorted = seconds;
    std::ranges::nth_element(sorted, sorted.begin() + std::ssize(sorted) / 2);
    return sorted[sorted.size() / 2];
  }
  // The least seconds of a step, if it only read weights and cache.
  double bound() const { return (weight_bytes + cache_bytes) / read_bandwidth; }
};

// All weights, but those of which a token looks up a row: positions, and the embedding if the head is another
// matrix.
double bytes_read_by_a_step(const DecoderWeights& weights) {
  const std::vector<ForwardMatrix> matrices = weights.decoder->forward_matrices();
  const std::size_t first_of_layers = weights.decoder->layer_parameters().first;
  double bytes = 0;
  std::size_t index = 0;
  for (const DecoderParameters::Entry& entry : weights.parameters) {
    const bool multiplies = std::ranges::find(matrices, index, &ForwardMatrix::parameter) != matrices.end();
    const bool only_looked_up = index < first_of_layers && !multiplies;
    const Tensor packed = weights.parameters.packed_at(index);
    if (!only_looked_up) bytes += static_cast<double>((packed ? packed : entry.tensor).bytes());
    ++index;
  }
  return bytes;
}

double now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// Tokens of the longest sequence at the end. While prompts are computed, earlier sequences draw a token after
// each pass.
std::int64_t longest_end(const BenchDecodeFlags& flags, const std::vector<std::int64_t>& lengths) {
  const std::int64_t passes = std::reduce(lengths.begin(), lengths.end()) / kBatchTokens + 2;
  return std::ranges::max(lengths) + passes + kWarmUp + flags.steps + 2;
}

using Lengths = std::map<DecodingEngine::Id, std::int64_t>;

// Adds a sequence of random tokens for each length, which goes on for longer than the measurement.
Lengths add_sequences(DecodingEngine& engine, const Decoder& decoder,
                      const std::vector<std::int64_t>& lengths) {
  Lengths tokens;
  const PhiloxStream random(1, 2);
  std::uint64_t drawn = 0;
  for (const std::int64_t length : lengths) {
    std::vector<std::int32_t> ids(static_cast<std::size_t>(length));
    for (std::int32_t& id : ids) {
      id = static_cast<std::int32_t>(random.uniform(drawn++) * static_cast<double>(decoder.vocab()));
    }
    tokens[engine.add(ids, {.max_tokens = decoder.context(), .sampling = {.temperature = 0}})] = length;
  }
  return tokens;
}

// Tokens whose keys and values a step reads, on average over the layers.
double tokens_read(const Decoder& decoder, const Lengths& lengths) {
  double tokens = 0;
  for (const auto& [id, length] : lengths) tokens += decoder.keys_seen(length);
  return tokens;
}

DecodeMeasurement measure(Context& context, const DecoderWeights& weights, const BenchDecodeFlags& flags,
                          const std::vector<std::int64_t>& lengths) {
  const auto sequences = std::ssize(lengths);
  DecodingOptions options{.sequences = sequences, .batch_invariant = flags.batch_invariant};
  options.context = context_for(*weights.decoder, longest_end(flags, lengths));
  options.batch_tokens = kBatchTokens;
  require_room(context, weights, options);
  DecodingEngine engine(context, weights, options);
  DecodeMeasurement m;
  const OtherLoad others;
  Lengths tokens = add_sequences(engine, *weights.decoder, lengths);
  std::set<DecodingEngine::Id> begun;
  const auto step = [&] {
    for (const DecodingEngine::Drawn& drawn : engine.step()) {
      if (drawn.error) throw *drawn.error;
      begun.insert(drawn.sequence);
      ++tokens.at(drawn.sequence);
    }
  };
  const double begin = now();
  while (std::ssize(begun) < sequences) step();
  m.prompts_seconds = now() - begin;
  for (std::int64_t i = 0; i < kWarmUp; ++i) step();
  const double before = tokens_read(*weights.decoder, tokens);
  for (std::int64_t i = 0; i < flags.steps; ++i) {
    const double from = now();
    step();
    m.seconds.push_back(now() - from);
  }
  constexpr std::int64_t kBlock = DecodingEngine::kBlockSize;
  const double held = static_cast<double>(sequences * ((options.context + kBlock - 1) / kBlock * kBlock));
  const double per_token =
      static_cast<double>(engine.plan().arena_bytes[static_cast<int>(Category::cache)]) / held;
  m.weight_bytes = bytes_read_by_a_step(weights);
  m.cache_bytes = per_token * (before + tokens_read(*weights.decoder, tokens)) / 2;
  context.synchronize();
  m.read_bandwidth = measure_bandwidth(context.device(), std::size_t{1} << 30, 0.5).read;
  {
    const Timing timing(context, [&](const Context::CallRecord& call) { m.table.add(call); });
    for (int i = 0; i < 2 && m.table.empty(); ++i) step();  // what the first one returns may run already
  }
  m.disturbance = {.other_processors =
                       context.device().device.kind == DeviceKind::cpu ? others.processors() : 0};
  return m;
}

void print(const BenchDecodeFlags& flags, const DecodeMeasurement& m, const Context& context,
           const std::vector<std::int64_t>& lengths) {
  const double median = m.median(), rate = static_cast<double>(lengths.size()) / median;
  const double prompts = static_cast<double>(std::reduce(lengths.begin(), lengths.end()));
  if (!flags.json) {
    m.table.print();
    fmt::print(
        "{} {}, {} sequences from {} to {} tokens on {} ({} threads): {:.3f} ms a step (median of {}, "
        "fastest {:.3f}), {:.0f} tokens/s, {:.0f}% of the bound of reading weights ({:.2f} GB) and cache "
        "({:.2f} GB) at {:.0f} GB/s; prompts: {:.0f} tokens in {:.1f} ms\n",
        flags.model, flags.dtype, lengths.size(), std::ranges::min(lengths), std::ranges::max(lengths),
        context.device().name, context.threads(), median * 1e3, m.seconds.size(),
        std::ranges::min(m.seconds) * 1e3, rate, 100 * m.bound() / median, m.weight_bytes * 1e-9,
        m.cache_bytes * 1e-9, m.read_bandwidth * 1e-9, prompts, m.prompts_seconds * 1e3);
    return;
  }
  std::vector<double> milliseconds;
  for (const double s : m.seconds) milliseconds.push_back(s * 1e3);
  const nlohmann::json out = {{"model", flags.model},
                              {"dtype", flags.dtype},
                              {"batch_invariant", flags.batch_invariant},
                              {"machine", context.device().name},
                              {"threads", context.threads()},
                              {"sequences", lengths.size()},
                              {"lengths", flags.lengths},
                              {"ms", milliseconds},
                              {"ms_median", median * 1e3},
                              {"tokens_per_second", rate},
                              {"weight_bytes", m.weight_bytes},
                              {"cache_bytes", m.cache_bytes},
                              {"read_bytes_per_second", m.read_bandwidth},
                              {"share_of_bound", m.bound() / median},
                              {"prompts_ms", m.prompts_seconds * 1e3},
                              {"disturbed", m.disturbance.found()},
                              {"ops", m.table.to_json()}};
  fmt::print("{}\n", out.dump(2));
}

void run(const BenchDecodeFlags& flags) {
  const std::vector<std::int64_t> lengths = parse_lengths(flags.lengths);
  if (std::ranges::min(lengths) == 0)
    throw UsageError("has a length of 0", "--lengths", "give each sequence a token");
  Context context(flags.device.context_options(flags.dtype), flags.device.place());
  const std::shared_ptr<const Decoder> decoder = decoder_of(flags.model);
  if (const std::int64_t longest = longest_end(flags, lengths); longest > decoder->context()) {
    throw UsageError(
        fmt::format("the longest sequence would end with {} tokens, but the model's context is {}", longest,
                    decoder->context()),
        "--lengths", "give shorter sequences, or fewer --steps");
  }
  const DecoderWeights weights =
      inference_weights(context, decoder, precision_named(flags.dtype, context.device()),
                        [&](const ParameterWriter& write) { decoder->initialize(1, write); });
  const DecodeMeasurement m = measure(context, weights, flags, lengths);
  warn_if_disturbed(m.disturbance);
  print(flags, m, context, lengths);
}

}  // namespace

void add_bench_decode(CLI::App& bench) {
  CLI::App* command = bench.add_subcommand("decode", "Time a decoding step of many sequences, by operation");
  auto f = std::make_shared<BenchDecodeFlags>();
  command->add_option("--model", f->model, fmt::format("{}; or a folder, for its sizes", known_sizes()))
      ->capture_default_str();
  add_dtype_flag(*command, f->dtype, {"fp16", "int8"});
  command
      ->add_option("--lengths", f->lengths,
                   "Tokens of each sequence before the first step, as 5,17x3 (17 three times) or @FILE")
      ->capture_default_str();
  command->add_option("--steps", f->steps, "Steps to time")
      ->capture_default_str()
      ->check(CLI::Range(1, 1 << 20));
  command->add_flag("--batch-invariant", f->batch_invariant, "As in generate");
  command->add_flag("--json", f->json, "Print JSON");
  f->device.add_to(*command);
  command->callback([f] { run(*f); });
}

}  // namespace warpwright::cli
