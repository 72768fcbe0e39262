// The model that owns its parameters and the memory of its forward: one plan, one allocation of each
// category.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <tuple>
#include <utility>

#include "core/error.hpp"
#include "model/bert.hpp"
#include "model/bert_files.hpp"
#include "model/bert_packed.hpp"
#include "runtime/overlap.hpp"
#include "runtime/philox.hpp"
#include "runtime/planned.hpp"
#include "runtime/threads.hpp"

namespace warpwright {
namespace {

constexpr std::int64_t kMostSequences = 4096, kMostBatchTokens = std::int64_t{1} << 28;
constexpr std::size_t kMostGraphs = 256;

struct Tensors {
  BertParameters parameters;
  BertActivations activations;  // of the largest batch; its integers are views of `batch`
  Tensor batch;                 // (2 + S + 3N) int32: all that goes to the device for a batch
};

BertParameters allocate_parameters(const BertConfig& c, const BertPooling& pooling, bool classifier,
                                   DType dtype, const BertPackedWeights* packed, Allocator& allocator) {
  const auto in = [&](const std::string& name, const Shape& shape, DType as) {
    return allocator.allocate(name, as, shape, Category::parameters);
  };
  const auto vector = [&](const std::string& name) { return in(name, {c.hidden}, dtype); };
  const auto linear = [&](const std::string& name, std::int64_t to, std::int64_t from) {
    return BertLinear{in(name + ".weight", {to, from}, dtype), in(name + ".bias", {to}, dtype)};
  };
  const auto packed_linear = [&](const std::string& name, std::int64_t to, std::int64_t from,
                                 Tensor BertPackedWeights::Layer::*part, std::size_t l) {
    if (!packed) return linear(name, to, from);
    return BertLinear{Tensor(nullptr, dtype, {to, from}), in(name + ".bias", {to}, dtype),
                      packed->layer(l).*part};
  };
  using Packed = BertPackedWeights::Layer;
  BertParameters p;
  p.word = in("word", {c.vocab, c.hidden}, dtype);
  p.position = in("position", {c.positions, c.hidden}, dtype);
  p.type = in("type", {c.types, c.hidden}, dtype);
  p.embnorm_weight = vector("embnorm.weight");
  p.embnorm_bias = vector("embnorm.bias");
  for (std::int64_t l = 0; l < c.layers; ++l) {
    const std::string layer = fmt::format("layer.{}.", l);
    BertBlock b;
    b.qkv = packed_linear(layer + "qkv", 3 * c.hidden, c.hidden, &Packed::qkv, p.blocks.size());
    b.attproj = packed_linear(layer + "attproj", c.hidden, c.hidden, &Packed::attproj, p.blocks.size());
    b.attnorm_weight = vector(layer + "attnorm.weight");
    b.attnorm_bias = vector(layer + "attnorm.bias");
    b.fc = packed_linear(layer + "fc", c.intermediate, c.hidden, &Packed::fc, p.blocks.size());
    b.fcproj = packed_linear(layer + "fcproj", c.hidden, c.intermediate, &Packed::fcproj, p.blocks.size());
    b.outnorm_weight = vector(layer + "outnorm.weight");
    b.outnorm_bias = vector(layer + "outnorm.bias");
    p.blocks.push_back(b);
  }
  if (classifier) {
    p.pooler = linear("pooler", c.hidden, c.hidden);
    p.classifier = linear("classifier", c.labels, c.hidden);
  }
  const DType wide = ops::accumulation_dtype(dtype);
  for (std::size_t i = 0; i < pooling.dense.size(); ++i) {
    const BertDense& d = pooling.dense[i];
    const std::string name = fmt::format("dense.{}", i);
    p.dense.push_back(
        {in(name + ".weight", {d.out, d.in}, wide), d.bias ? in(name + ".bias", {d.out}, wide) : Tensor()});
  }
  return p;
}

BertActivations allocate_activations(const BertConfig& c, const BertPooling& pooling, bool classifier,
                                     DType dtype, std::int64_t N, std::int64_t S, Allocator& allocator) {
  const auto in = [&](const std::string& name, const Shape& shape, DType as) {
    return allocator.allocate(name, as, shape, Category::activations);
  };
  BertActivations a;
  a.hidden = in("hidden", {N, c.hidden}, dtype);
  a.other = in("other", {N, c.hidden}, dtype);
  a.qkv = in("qkv", {N, 3, c.heads, c.head_size()}, dtype);
  a.att = in("att", {N, c.heads, c.head_size()}, dtype);
  a.fc = in("fc", {N, c.intermediate}, dtype);
  const DType wide = ops::accumulation_dtype(dtype);
  a.pooled.push_back(in("pooled", {S, c.hidden}, wide));
  for (const BertDense& d : pooling.dense) {
    a.pooled.push_back(in(fmt::format("pooled.{}", a.pooled.size()), {S, d.out}, wide));
  }
  if (pooling.normalize && !pooling.dense.empty()) {
    a.pooled.push_back(in("normalized", a.pooled.back().shape, wide));
  }
  if (classifier) {
    a.first = in("first", {S, c.hidden}, dtype);
    a.pooler = in("pooler", {S, c.hidden}, dtype);
    a.logits = in("logits", {S, c.labels}, dtype);
  }
  return a;
}

// The first N tokens and S sequences of activations that were allocated for more. The batch's integers lie
// one behind the other, so that one copy takes them to a device.
BertActivations narrow(const Tensors& t, std::int64_t N, std::int64_t S, bool batch_invariant) {
  const auto first = [](const Tensor& tensor, std::int64_t n) {
    return tensor ? tensor.slice(0, 0, n) : tensor;
  };
  BertActivations a = t.activations;
  a.batch_invariant = batch_invariant;
  std::int64_t at = 0;
  const auto take = [&](std::int64_t count) {
    at += count;
    return t.batch.slice(0, at - count, count);
  };
  a.rows = take(1);
  a.cu_seqlens = take(S + 1);
  a.tokens = take(N);
  a.positions = take(N);
  a.types = take(N);
  for (Tensor* tensor : {&a.hidden, &a.other, &a.qkv, &a.att, &a.fc}) *tensor = first(*tensor, N);
  for (Tensor* tensor : {&a.first, &a.pooler, &a.logits}) *tensor = first(*tensor, S);
  for (Tensor& tensor : a.pooled) tensor = first(tensor, S);
  return a;
}

std::int64_t batch_integers(std::int64_t N, std::int64_t S) {
  return 2 + S + 3 * N;
}

std::int64_t round_up(std::int64_t n, std::int64_t multiple) {
  return (n + multiple - 1) / multiple * multiple;
}

// Grid sizes for which the forward is captured: steps of a tile's 64 rows, from 2,048 tokens on of 128 (no
// product takes longer for the last tile's empty rows), and of 1/128 where they are many.
std::int64_t token_bucket(std::int64_t N, std::int64_t most) {
  std::int64_t step = N <= 2048 ? 64 : 128;
  while (step * 128 < N) step *= 2;
  return std::min(round_up(std::max<std::int64_t>(N, 1), step), most);
}
std::int64_t sequence_bucket(std::int64_t S, std::int64_t most) {
  std::int64_t bucket = 1;
  while (bucket < S) bucket *= 2;
  return std::min(bucket, most);
}

// A batch as the kernels read it: S sequences, those behind the batch's own being empty.
void write_batch(const BertConfig& config, const PackedBatch& batch, const BertActivations& host) {
  const std::size_t N = batch.tokens.size(), S = batch.cu_seqlens.size() - 1;
  auto* cu_seqlens = host.cu_seqlens.as<std::int32_t>();
  host.rows.as<std::int32_t>()[0] = static_cast<std::int32_t>(N);
  std::copy(batch.cu_seqlens.begin(), batch.cu_seqlens.end(), cu_seqlens);
  std::fill(cu_seqlens + S + 1, cu_seqlens + host.cu_seqlens.shape[0], static_cast<std::int32_t>(N));
  std::copy(batch.tokens.begin(), batch.tokens.end(), host.tokens.as<std::int32_t>());
  auto* types = host.types.as<std::int32_t>();
  batch.types.empty() ? void(std::fill_n(types, N, 0))
                      : void(std::copy(batch.types.begin(), batch.types.end(), types));
  auto* positions = host.positions.as<std::int32_t>();
  const auto padding = static_cast<std::int32_t>(config.padding_token);
  for (std::size_t s = 0; s < S; ++s) {
    auto next = static_cast<std::int32_t>(config.first_position());
    for (auto n = static_cast<std::size_t>(batch.cu_seqlens[s]);
         n < static_cast<std::size_t>(batch.cu_seqlens[s + 1]); ++n) {
      // RoBERTa counts the tokens that are no padding, and gives the padding its own row.
      const bool is_padding = config.family == BertConfig::Family::roberta && batch.tokens[n] == padding;
      positions[n] = is_padding ? padding : next++;
    }
  }
}

// Rows of any floating dtype as fp32; the first row with a value that is not finite, or −1.
std::int64_t read_rows(const Tensor& host, std::int64_t rows, std::span<float> out) {
  const std::int64_t columns = host.shape[1];
  std::int64_t bad = -1;
  visit_dtype(host.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    const T* from = host.as<T>();
    for (std::int64_t r = 0; r < rows; ++r) {
      float check = 0;
      for (std::int64_t i = r * columns; i < (r + 1) * columns; ++i) {
        const auto value = static_cast<float>(from[i]);
        out[static_cast<std::size_t>(i)] = value;
        check += value * 0;  // NaN where the value is NaN or infinite
      }
      if (check != 0 && bad < 0) bad = r;
    }
  });
  return bad;
}

// On a stream of the model's own: what other threads give the caller's meanwhile is not for this graph, and
// CUDA's default stream captures nothing.
Graph capture(Context& context, const Stream& own, const std::function<void()>& work) {
  const Overlap overlap(context);  // no kernel of a graph writes weights or the batch's integers
  Stream callers = context.exchange_stream(Stream::borrowed(context.device().device, own.get()));
  try {
    Graph graph(context.stream(), work);
    context.set_stream(std::move(callers));
    return graph;
  } catch (...) {
    context.set_stream(std::move(callers));
    throw;
  }
}

// Weights N(0, 0.02²), biases 0, normalization 1 and 0.
void randomize(const BertParameters& p) {
  constexpr std::uint32_t kPurpose = 0x42455254;  // a stream of its own: "BERT"
  std::uint32_t index = 0;
  const auto fill_with = [&](const Tensor& tensor, double mean, double deviation) {
    const PhiloxStream stream(1, kPurpose, index++);
    visit_dtype(tensor.dtype, [&](auto tag) {
      using T = typename decltype(tag)::type;
      write_on_host(tensor, Stream(tensor.device), [&](const Tensor& host) {
        T* data = host.as<T>();
        const std::int64_t count = host.elements();
#pragma omp parallel for schedule(static) num_threads(claimed_threads())
        for (std::int64_t i = 0; i < count; ++i) {
          const double noise = deviation == 0 ? 0 : deviation * stream.normal(static_cast<std::uint64_t>(i));
          data[i] = static_cast<T>(static_cast<float>(mean + noise));
        }
      });
    });
  };
  const auto matrix = [&](const Tensor& tensor) { fill_with(tensor, 0, 0.02); };
  const auto linear = [&](const BertLinear& l) {
    matrix(l.weight);
    fill_with(l.bias, 0, 0);
  };
  const auto norm = [&](const Tensor& weight, const Tensor& bias) {
    fill_with(weight, 1, 0);
    fill_with(bias, 0, 0);
  };
  for (const Tensor& table : {p.word, p.position, p.type}) matrix(table);
  norm(p.embnorm_weight, p.embnorm_bias);
  for (const BertBlock& b : p.blocks) {
    for (const BertLinear& l : {b.qkv, b.attproj, b.fc, b.fcproj}) linear(l);
    norm(b.attnorm_weight, b.attnorm_bias);
    norm(b.outnorm_weight, b.outnorm_bias);
  }
}

}  // namespace

// A forward for a bucket of tokens and sequences, or for just these, from where to which result.
struct BertModel::Call {
  std::int64_t rows = 0, sequences = 0;
  Result result = Result::hidden;
  From from = From::tokens;
  bool operator<(const Call& o) const {
    return std::tie(rows, sequences, result, from) < std::tie(o.rows, o.sequences, o.result, o.from);
  }
};

void PackedBatch::clear() {
  tokens.clear();
  types.clear();
  cu_seqlens.assign(1, 0);
}

void PackedBatch::append(std::span<const std::int32_t> ids, std::span<const std::int32_t> type_ids) {
  if (!type_ids.empty() && type_ids.size() != ids.size()) {
    throw Error(fmt::format("{} tokens and {} types", ids.size(), type_ids.size()), "a batch's sequence",
                "give a type for each token, or none");
  }
  if (!type_ids.empty()) types.resize(tokens.size(), 0);
  if (!type_ids.empty() || !types.empty()) {
    types.insert(types.end(), type_ids.begin(), type_ids.end());
    types.resize(tokens.size() + ids.size(), 0);
  }
  tokens.insert(tokens.end(), ids.begin(), ids.end());
  cu_seqlens.push_back(static_cast<std::int32_t>(tokens.size()));
}

struct BertModel::Memory {
  struct Captured {
    Graph graph;
    const void* scratch = nullptr;  // where it was when the graph was captured
    bool warm = false;              // it ran once, so that what is loaded and chosen on first use is there
    std::optional<bool> exact;      // it computes no row but the batch's
    std::int64_t latest = 0;        // of its calls, among all
  };

  // For this call; of those that there are, the one not called for longest makes room.
  Captured& captured(const Call& call) {
    const auto place = graphs.try_emplace(call).first;
    place->second.latest = ++calls;
    const auto older = [](const auto& a, const auto& b) { return a.second.latest < b.second.latest; };
    if (graphs.size() > kMostGraphs) graphs.erase(std::min_element(graphs.begin(), graphs.end(), older));
    return place->second;
  }

  std::optional<BertPackedWeights> packed;
  std::optional<Planned<Tensors>> planned;
  Tensors tensors;
  Buffer host_memory;  // of a GPU's batches and results
  Tensor host_batch;
  std::byte* host_result = nullptr;
  std::optional<Event> batch_copied;  // from host_batch to the device, by the latest call
  Stream own_stream;                  // of a GPU
  bool in_buckets = false;            // its products read from device memory how many rows there are
  std::map<Call, Captured> graphs;
  std::int64_t calls = 0;
  Call last;
};

BertModel::BertModel(Context& context, const std::filesystem::path& folder, const BertOptions& options)
    : context_(context),
      config_(read_bert_config(folder)),
      pooling_(read_bert_pooling(folder, config_)),
      options_(options),
      memory_(std::make_unique<Memory>()) {
  const BertFile file(folder, config_);
  memory_->packed = BertPackedWeights::open(context_, file, config_, options_.dtype, options_.weights_cache);
  allocate(file.has_classifier());
  const BertParameters& p = memory_->tensors.parameters;
  file.load(p);
  for (std::size_t i = 0; i < pooling_.dense.size(); ++i) load_dense(pooling_.dense[i], p.dense[i]);
}

BertModel::BertModel(Context& context, const BertConfig& config, std::vector<BertTensor> tensors,
                     const BertOptions& options)
    : context_(context), config_(config), options_(options), memory_(std::make_unique<Memory>()) {
  config_.validate("the encoder's config");
  const BertFile file(std::move(tensors), "the encoder's tensors", config_);
  memory_->packed = BertPackedWeights::open(context_, file, config_, options_.dtype, {});
  allocate(file.has_classifier());
  file.load(memory_->tensors.parameters);
}

BertModel::BertModel(Context& context, const BertConfig& config, const BertOptions& options)
    : context_(context), config_(config), options_(options), memory_(std::make_unique<Memory>()) {
  config_.validate("the encoder's config");
  allocate(false);
  randomize(memory_->tensors.parameters);
}

void BertModel::allocate(bool classifier) {
  if (options_.max_batch_tokens < 1 || options_.max_batch_tokens > kMostBatchTokens) {
    throw Error(fmt::format("{} tokens in a batch", options_.max_batch_tokens), "the encoder's options",
                fmt::format("give 1 to {}", kMostBatchTokens));
  }
  if (options_.max_batch_sequences > kMostBatchTokens) {
    throw Error(fmt::format("{} sequences in a batch", options_.max_batch_sequences), "the encoder's options",
                fmt::format("give 1 to {}", kMostBatchTokens));
  }
  if (options_.max_batch_sequences <= 0) {
    options_.max_batch_sequences = std::min(options_.max_batch_tokens, kMostSequences);
  }
  if (options_.pooling) pooling_.kind = *options_.pooling;
  if (options_.normalize) pooling_.normalize = *options_.normalize;
  const std::int64_t N = options_.max_batch_tokens, S = options_.max_batch_sequences;
  const BertPackedWeights* packed = memory_->packed ? &*memory_->packed : nullptr;
  const auto tensors_in = [=, this](Allocator& allocator) {
    return Tensors{allocate_parameters(config_, pooling_, classifier, options_.dtype, packed, allocator),
                   allocate_activations(config_, pooling_, classifier, options_.dtype, N, S, allocator),
                   allocator.allocate("batch", DType::i32, {batch_integers(N, S)}, Category::batch)};
  };
  const auto run_whole = [&](const Tensors& t, std::int64_t tokens, std::int64_t sequences) {
    const BertActivations a = narrow(t, tokens, sequences, options_.batch_invariant);
    bert_embed(context_, config_, t.parameters, a);
    bert_layers(context_, config_, t.parameters, a);
    bert_pool(context_, pooling_, t.parameters, a);
    if (classifier) bert_classify(context_, t.parameters, a);
  };
  Memory& m = *memory_;
  m.planned.emplace(context_, tensors_in, [&](const Tensors& t) { run_whole(t, N, S); });
  // A GPU's products of few rows are other kernels, with scratch of their own.
  constexpr std::int64_t kFewest = 64, kFew = 2048;
  for (std::int64_t few = kFewest; few < N && few <= kFew; few += kFewest) {
    if (context_.device().device.kind == DeviceKind::cpu) break;
    m.planned->reserve_scratch_for(context_, [&](const Tensors& t) { run_whole(t, few, std::min(S, few)); });
  }
  m.planned->take(context_);
  m.tensors = m.planned->tensors();
  m.host_batch = m.tensors.batch;
  if (context_.device().device.kind == DeviceKind::cpu) return;
  const std::size_t states = static_cast<std::size_t>(N * config_.hidden) * size_of(options_.dtype);
  const std::size_t results =
      std::max({m.tensors.activations.pooled.back().bytes(), m.tensors.activations.logits.bytes(), states});
  const std::size_t integers = m.tensors.batch.bytes();
  m.host_memory = Buffer::pinned(integers + results + kAlignment, "pinned host memory");
  m.host_batch = Tensor(m.host_memory.data(), DType::i32, m.tensors.batch.shape);
  m.host_result = m.host_memory.data() + (integers + kAlignment - 1) / kAlignment * kAlignment;
  m.own_stream = Stream(context_.device().device);
  m.in_buckets = bert_layers_are_exact(context_, config_, m.tensors.parameters,
                                       narrow(m.tensors, N, S, options_.batch_invariant));
}

BertModel::~BertModel() = default;

std::int64_t BertModel::max_length() const {
  return pooling_.max_length > 0 ? std::min(pooling_.max_length, config_.max_length()) : config_.max_length();
}
std::int64_t BertModel::vector_size() const {
  return memory_->tensors.activations.pooled.back().shape[1];
}
std::int64_t BertModel::labels() const {
  return memory_->tensors.parameters.classifier.weight ? config_.labels : 0;
}

void BertModel::embed(const PackedBatch& batch, std::span<float> vectors) {
  forward(batch, Result::vectors, vectors);
}
void BertModel::classify(const PackedBatch& batch, std::span<float> logits) {
  forward(batch, Result::logits, logits);
}
void BertModel::hidden(const PackedBatch& batch, std::span<float> states) {
  forward(batch, Result::hidden, states);
}

void BertModel::check(const PackedBatch& batch, Result result) const {
  if (result == Result::logits && labels() == 0) {
    throw Error("has no classification head", "the model", "use a folder of a cross-encoder or a classifier");
  }
  const auto fail = [](const std::string& what, const std::string& where, const std::string& remedy) {
    throw Error(what, where, remedy);
  };
  const auto N = static_cast<std::int64_t>(batch.tokens.size());
  const std::int64_t S = batch.sequences();
  if (S < 0 || batch.cu_seqlens.front() != 0 || batch.cu_seqlens.back() != N ||
      (!batch.types.empty() && batch.types.size() != batch.tokens.size())) {
    fail("its sequences do not make up its tokens", "the batch", "append sequences one after the other");
  }
  if (N > options_.max_batch_tokens || S > options_.max_batch_sequences) {
    fail(fmt::format("{} tokens in {} sequences", N, S), "the batch",
         fmt::format("give at most {} in {}, or raise the limits of the arena", options_.max_batch_tokens,
                     options_.max_batch_sequences));
  }
  for (std::int64_t s = 0; s < S; ++s) {
    const auto first = batch.cu_seqlens[static_cast<std::size_t>(s)],
               last = batch.cu_seqlens[static_cast<std::size_t>(s) + 1];
    const std::string text = "text " + std::to_string(s) + " of the batch";
    if (last < first) fail("ends before it begins", text, "append sequences one after the other");
    if (last - first > config_.max_length()) {
      fail(fmt::format("has {} tokens", last - first), text,
           fmt::format("cut it to the model's {}", config_.max_length()));
    }
    for (auto n = static_cast<std::size_t>(first); n < static_cast<std::size_t>(last); ++n) {
      if (batch.tokens[n] < 0 || batch.tokens[n] >= config_.vocab) {
        fail(fmt::format("has the token {}", batch.tokens[n]), text,
             fmt::format("use the tokenizer of this model, whose vocabulary has {} tokens", config_.vocab));
      }
      if (!batch.types.empty() && (batch.types[n] < 0 || batch.types[n] >= config_.types)) {
        fail(fmt::format("has the token type {}", batch.types[n]), text,
             fmt::format("the model has {} token types", config_.types));
      }
    }
  }
}

void BertModel::run(const Call& call) {
  Memory& m = *memory_;
  const auto work = [&] {
    const BertActivations a = narrow(m.tensors, call.rows, call.sequences, options_.batch_invariant);
    if (call.from == From::tokens) bert_embed(context_, config_, m.tensors.parameters, a);
    bert_layers(context_, config_, m.tensors.parameters, a);
    if (call.result == Result::vectors) bert_pool(context_, pooling_, m.tensors.parameters, a);
    if (call.result == Result::logits) bert_classify(context_, m.tensors.parameters, a);
  };
  const bool watched = context_.timer() || context_.inspector() || context_.options().verbose;
  if (watched || context_.device().device.kind == DeviceKind::cpu) return work();
  Memory::Captured& captured = m.captured(call);
  if (!captured.warm) {
    captured.warm = true;
    return work();
  }
  if (!captured.graph || captured.scratch != context_.scratch()) {
    captured.graph = capture(context_, m.own_stream, work);
    captured.scratch = context_.scratch();
  }
  captured.graph.launch(context_.stream());
}

void BertModel::repeat() {
  run(memory_->last);
}

Tensor BertModel::states(std::int64_t tokens) const {
  return memory_->tensors.activations.hidden.slice(0, 0, tokens);
}

Tensor BertModel::result_of(const BertActivations& a, Result result) const {
  if (result == Result::hidden) return a.hidden;
  return result == Result::vectors ? a.pooled.back() : a.logits;
}

Tensor BertModel::launch(const PackedBatch& batch, Result result, From from) {
  check(batch, result);
  return start(batch, result, from);
}

Tensor BertModel::start(const PackedBatch& batch, Result result, From from) {
  Memory& m = *memory_;
  const bool gpu = context_.device().device.kind == DeviceKind::cuda;
  const auto N = static_cast<std::int64_t>(batch.tokens.size());
  const std::int64_t S = batch.sequences();
  // Every tensor has just the batch's rows, but where launches are for a bucket of batches.
  const std::int64_t rows = m.in_buckets ? token_bucket(N, options_.max_batch_tokens) : N;
  const std::int64_t sequences = m.in_buckets ? sequence_bucket(S, options_.max_batch_sequences) : S;
  if (m.batch_copied) m.batch_copied->synchronize();
  Tensors host_view = m.tensors;
  host_view.batch = m.host_batch;
  write_batch(config_, batch, narrow(host_view, rows, sequences, false));
  m.last = {rows, sequences, result, from};
  if (gpu) {
    const std::int64_t integers = batch_integers(rows, sequences);
    copy(m.tensors.batch.slice(0, 0, integers), m.host_batch.slice(0, 0, integers), context_.stream());
    if (!m.batch_copied) m.batch_copied.emplace(context_.device().device);
    m.batch_copied->record(context_.stream());
  }
  run(m.last);
  const BertActivations a = narrow(m.tensors, rows, sequences, options_.batch_invariant);
  if (m.in_buckets) {
    std::optional<bool>& exact = m.captured(m.last).exact;
    if (!exact) exact = bert_layers_are_exact(context_, config_, m.tensors.parameters, a);
    if (!*exact) wasted_tokens_ += rows - N;
  }
  return result_of(a, result).slice(0, 0, result == Result::hidden ? N : S);
}

void BertModel::forward(const PackedBatch& batch, Result result, std::span<float> out) {
  check(batch, result);
  const auto N = static_cast<std::int64_t>(batch.tokens.size());
  const std::int64_t results = result == Result::hidden ? N : batch.sequences();
  const std::int64_t columns = result_of(memory_->tensors.activations, result).shape[1];
  if (static_cast<std::int64_t>(out.size()) != results * columns) {
    throw Error(fmt::format("has room for {} numbers", out.size()), "the encoder's output",
                fmt::format("give {} × {}", results, columns));
  }
  Tensor host = start(batch, result, From::tokens);
  if (host.device.kind == DeviceKind::cuda) {
    const Tensor from = host;
    host = Tensor(memory_->host_result, from.dtype, from.shape);
    copy(host, from, context_.stream());
    context_.synchronize();
  }
  const std::int64_t bad = read_rows(host, results, out);
  if (bad < 0) return;
  std::int64_t text = result == Result::hidden ? 0 : bad;
  while (result == Result::hidden && batch.cu_seqlens[static_cast<std::size_t>(text) + 1] <= bad) ++text;
  throw Error("has values that are not finite", fmt::format("text {} of the batch", text),
              "use fp32, or check the model's weights");
}

}  // namespace warpwright
