#include "cli/bench_encoder.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <numeric>
#include <sstream>

#include "cli/op_table.hpp"
#include "core/error.hpp"
#include "model/bert.hpp"
#include "ops/element.hpp"
#include "runtime/ceiling.hpp"
#include "runtime/file.hpp"
#include "runtime/host_view.hpp"
#include "runtime/philox.hpp"

namespace warpwright::cli {
namespace {

DType dtype_named(const std::string& name) {
  for (const DType dtype : {DType::f32, DType::bf16, DType::f16}) {
    if (name == name_of(dtype)) return dtype;
  }
  if (name == "tf32") return DType::f32;
  throw UsageError(fmt::format("is '{}'", name), "--dtype", "give fp32, tf32 (GPU), bf16 or fp16");
}

std::int64_t number(const std::string& text) {
  std::size_t used = 0;
  std::int64_t value = 0;
  try {
    value = std::stoll(text, &used);
  } catch (const std::exception&) {
    used = 0;
  }
  if (used == 0 || used != text.size() || value < 0 || value > (1 << 24)) {
    throw UsageError(fmt::format("'{}' is no length", text), "--lengths",
                     "give lengths with commas, as 5,17x3 (17 three times), or @FILE with one a line");
  }
  return value;
}

std::vector<std::int64_t> parse_lengths(std::string text) {
  constexpr std::uint64_t kMostBytes = 1 << 26;
  constexpr std::int64_t kMostTexts = 1 << 24;
  if (!text.empty() && text[0] == '@') text = read_file(text.substr(1), kMostBytes);
  std::replace_if(
      text.begin(), text.end(), [](char c) { return c == ',' || c == '\n' || c == '\r'; }, ' ');
  std::istringstream words(text);
  std::vector<std::int64_t> lengths;
  for (std::string word; words >> word;) {
    const std::size_t times = word.find('x');
    const std::int64_t length = number(word.substr(0, times));
    const std::int64_t count = times == std::string::npos ? 1 : number(word.substr(times + 1));
    if (static_cast<std::int64_t>(lengths.size()) + count > kMostTexts) break;
    lengths.insert(lengths.end(), static_cast<std::size_t>(count), length);
  }
  if (lengths.empty()) throw UsageError("is empty", "--lengths", "give at least one length");
  return lengths;
}

// Random texts of these lengths, longest first, in batches of at most so many tokens.
std::vector<PackedBatch> make_batches(const BertConfig& config, std::vector<std::int64_t> lengths,
                                      std::int64_t batch_tokens) {
  std::sort(lengths.rbegin(), lengths.rend());
  const PhiloxStream stream(1, 2);
  std::vector<PackedBatch> batches(1);
  std::vector<std::int32_t> ids;
  std::uint64_t drawn = 0;
  for (const std::int64_t length : lengths) {
    ids.resize(static_cast<std::size_t>(length));
    for (auto& id : ids)
      id = static_cast<std::int32_t>(stream.uniform(drawn++) * static_cast<double>(config.vocab));
    const auto taken = static_cast<std::int64_t>(batches.back().tokens.size());
    if (taken > 0 && taken + length > batch_tokens) batches.emplace_back();
    batches.back().append(ids);
  }
  return batches;
}

// The timed work: texts to vectors, or the hidden states already in memory to hidden states.
class Work {
 public:
  Work(Context& context, BertModel& model, std::vector<PackedBatch> batches, bool layers_alone)
      : context_(context), model_(model), batches_(std::move(batches)), layers_alone_(layers_alone) {
    if (layers_alone_) write_random_states();
  }

  BertModel& model() const { return model_; }
  std::size_t batches() const { return batches_.size(); }

  void run() {
    for (const PackedBatch& batch : batches_) {
      if (layers_alone_) {
        model_.launch(batch, BertModel::Result::hidden, BertModel::From::states);
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
  BertModel& model_;
  std::vector<PackedBatch> batches_;
  bool layers_alone_;
  std::vector<float> vectors_;
};

// Seconds of a forward on a GPU, of the batch before, as the mean of so many.
double time_forwards(Context& context, BertModel& model, int forwards) {
  Event start(context.device().device), end(context.device().device);
  start.record(context.stream());
  for (int i = 0; i < forwards; ++i) model.repeat();
  end.record(context.stream());
  end.synchronize();
  return end.seconds_since(start) / forwards;
}

// Seconds for all batches: of a GPU's single batch that of its forward alone, many times over where it is
// short; else from the first id to the last vector.
double time_once(Context& context, Work& work) {
  if (context.device().device.kind == DeviceKind::cuda && work.batches() == 1) {
    constexpr double kLeastSeconds = 0.012;  // as bench/peers/encoder_gpu.py times others
    const double one = time_forwards(context, work.model(), 2);
    return time_forwards(context, work.model(), static_cast<int>(std::clamp(kLeastSeconds / one, 2.0, 20.0)));
  }
  const auto start = std::chrono::steady_clock::now();
  work.run();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

OpTable table_of(Context& context, Work& work) {
  OpTable table;
  context.set_timer([&](const Context::CallRecord& call) { table.add(call); });
  work.run();
  context.set_timer(nullptr);
  return table;
}

// Times the texts of these lengths; prints a table, or returns what it would say.
nlohmann::json measure(Context& context, BertModel& model, const BenchEncoderFlags& flags,
                       const std::vector<std::int64_t>& lengths) {
  Work work(context, model, make_batches(model.config(), lengths, flags.batch_tokens), flags.layers_alone);
  for (int i = 0; i < 3; ++i) work.run();  // takes the memory's pages, captures graphs
  std::vector<double> seconds;
  for (std::int64_t i = 0; i < flags.repetitions; ++i) {
    seconds.push_back(time_once(context, work));
  }
  std::sort(seconds.begin(), seconds.end());
  const double median = seconds[seconds.size() / 2];
  const std::int64_t wasted_before = model.wasted_tokens();
  const OpTable table = table_of(context, work);
  const std::int64_t wasted = model.wasted_tokens() - wasted_before;
  const auto tokens = std::accumulate(lengths.begin(), lengths.end(), std::int64_t{0});
  const double flops = model.config().flops(lengths);
  if (!flags.json) {
    table.print();
    fmt::print(
        "{} {}, {} texts of {} tokens in {} batches on {} ({} threads): {:.3f} ms (median of {}, fastest "
        "{:.3f}), {:.0f} tokens/s, {:.1f} GFLOP/s, {} rows wasted\n",
        flags.model, flags.dtype, lengths.size(), tokens, work.batches(), context.device().name,
        context.threads(), median * 1e3, seconds.size(), seconds.front() * 1e3,
        static_cast<double>(tokens) / median, flops / median * 1e-9, wasted);
  }
  return {{"model", flags.model},
          {"dtype", flags.dtype},
          {"batch_invariant", flags.batch_invariant},
          {"layers_alone", flags.layers_alone},
          {"machine", context.device().name},
          {"threads", context.threads()},
          {"texts", lengths.size()},
          {"tokens", tokens},
          {"batches", work.batches()},
          {"ms_median", median * 1e3},
          {"ms_min", seconds.front() * 1e3},
          {"tokens_per_second", static_cast<double>(tokens) / median},
          {"flops", flops},
          {"wasted_tokens", wasted},
          {"ops", table.to_json()}};
}

}  // namespace

void bench_encoder(const BenchEncoderFlags& flags, const DeviceFlags& device) {
  if (flags.repetitions < 1)
    throw UsageError(fmt::format("is {}", flags.repetitions), "--steps", "give at least 1");
  std::vector<std::vector<std::int64_t>> lists;
  std::istringstream texts(flags.lengths);
  for (std::string text; std::getline(texts, text, ';');) lists.push_back(parse_lengths(text));
  if (lists.empty()) throw UsageError("is empty", "--lengths", "give at least one length");
  Context context(device.context_options(flags.dtype), device.place());
  const BertOptions options{.dtype = dtype_named(flags.dtype),
                            .max_batch_tokens = flags.batch_tokens,
                            .batch_invariant = flags.batch_invariant};
  std::unique_ptr<BertModel> model;
  if (is_folder(flags.model)) {
    model = std::make_unique<BertModel>(context, flags.model, options);
  } else {
    BertConfig config = BertConfig::named(flags.model);
    for (const auto& list : lists) {
      const std::int64_t longest = *std::max_element(list.begin(), list.end());
      config.positions = std::max(config.positions, longest + config.first_position());
    }
    model = std::make_unique<BertModel>(context, config, options);
  }
  nlohmann::json reports = nlohmann::json::array();
  for (const auto& list : lists) reports.push_back(measure(context, *model, flags, list));
  if (flags.json) fmt::print("{}\n", (reports.size() == 1 ? reports[0] : reports).dump(2));
}

}  // namespace warpwright::cli
