// The encoder against transformers: tiny random models whose goldens
// testdata/make_bert_goldens.py wrote, and what must not load or run.
#include "model/bert_session.hpp"

#include <gtest/gtest.h>

#include <chrono>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <thread>

#include "core/error.hpp"
#include "model/bert_packed.hpp"
#include "model/safetensors.hpp"
#include "model/test_distance.hpp"
#include "model/test_models.hpp"
#include "ops/matmul/packed.hpp"
#include "runtime/host_view.hpp"
#include "runtime/test_folder.hpp"

namespace warpwright {
namespace {

namespace fs = std::filesystem;

std::shared_ptr<const BertWeights> weights_of(const Context& context, const fs::path& folder,
                                              const BertWeightsOptions& options = {}) {
  return std::make_shared<BertWeights>(context, folder, options);
}
std::shared_ptr<const BertWeights> weights_of(const Context& context, const BertConfig& config,
                                              const std::vector<BertTensor>& tensors,
                                              const BertWeightsOptions& options = {}) {
  return std::make_shared<BertWeights>(context, config, tensors, options);
}
std::shared_ptr<const BertWeights> weights_of(const Context& context, const BertConfig& config,
                                              const BertWeightsOptions& options = {}) {
  return std::make_shared<BertWeights>(context, config, options);
}

template <class T>
std::vector<T> golden(const std::string& model, const std::string& name) {
  const SafetensorsFile file(folder_of(model) / "golden.safetensors");
  const SafetensorsEntry* entry = file.find(name);
  if (!entry) throw Error("has no tensor " + name, model, "make the goldens anew");
  const auto bytes = file.bytes(*entry);
  std::vector<T> values(bytes.size() / sizeof(T));
  std::memcpy(values.data(), bytes.data(), bytes.size());
  return values;
}

PackedBatch golden_batch(const std::string& model) {
  PackedBatch batch;
  batch.tokens = golden<std::int32_t>(model, "tokens");
  batch.types = golden<std::int32_t>(model, "types");
  batch.cu_seqlens = golden<std::int32_t>(model, "cu_seqlens");
  return batch;
}

PackedBatch one_of(const PackedBatch& batch, std::size_t s) {
  const auto first = static_cast<std::size_t>(batch.cu_seqlens[s]),
             count = static_cast<std::size_t>(batch.cu_seqlens[s + 1]) - first;
  PackedBatch one;
  one.append(std::span(batch.tokens).subspan(first, count), std::span(batch.types).subspan(first, count));
  return one;
}

Device gpu() {
  return {DeviceKind::cuda, 0};
}

struct Place {
  Device device;
  DType dtype;
};

// The devices and dtypes to test on this machine.
std::vector<Place> places() {
  std::vector<Place> list{{{}, DType::f32}, {{}, DType::bf16}};
  if (cuda_device_count() > 0) {
    for (const DType dtype : {DType::f32, DType::bf16, DType::f16}) list.push_back({gpu(), dtype});
  }
  return list;
}

class Golden : public ::testing::TestWithParam<std::string> {};

void check_hidden_states(const std::string& name, const ContextOptions& options, Device device, DType dtype) {
  const auto batch = golden_batch(name);
  const auto wanted = golden<float>(name, "hidden");
  const double bf16_error = static_cast<double>(golden<float>(name, "bf16_error")[0]);
  Context context(options, device);
  BertSession model(context, weights_of(context, folder_of(name), {.precision = {.dtype = dtype}}),
                    {.max_batch_tokens = 100});
  std::vector<float> out(wanted.size());
  for (int run = 0; run < 3; ++run) {  // on a GPU: as it is, captured, launched again
    std::fill(out.begin(), out.end(), NAN);
    model.hidden(batch, out);
    EXPECT_LE(relative_error(out, wanted), dtype == DType::f32 ? 1e-5 : 2 * bf16_error)
        << name_of(dtype) << " run " << run;
  }
}

TEST_P(Golden, HiddenStates) {
  for (const auto& [device, dtype] : places()) check_hidden_states(GetParam(), {}, device, dtype);
}

TEST(Bert, HiddenStatesWithVdpbf16psOnCpu) {
  if (!cpu_device_info().cpu.avx512_bf16) GTEST_SKIP() << "needs AVX512_BF16";
  ContextOptions options;
  options.force = {{"matmul", "cpu.avx512_bf16"}};
  for (const char* name : {"bert", "roberta"}) check_hidden_states(name, options, {}, DType::bf16);
}

TEST_P(Golden, Results) {
  const auto batch = golden_batch(GetParam());
  const bool sentence = GetParam() == "sentence";
  const auto wanted = golden<float>(GetParam(), sentence ? "vectors" : "logits");
  for (const auto& [device, dtype] : places()) {
    if (dtype != DType::f32) continue;
    Context context(ContextOptions{}, device);
    BertSession model(context, weights_of(context, folder_of(GetParam())));
    std::vector<float> out(wanted.size());
    if (sentence) {
      EXPECT_EQ(model.labels(), 0);
      EXPECT_EQ(model.vector_size(), 13);
      EXPECT_EQ(model.max_length(), 35);
      EXPECT_THROW(model.classify(batch, out), Error);
      model.embed(batch, out);
    } else {
      EXPECT_EQ(model.labels() * batch.sequences(), static_cast<std::int64_t>(wanted.size()));
      model.classify(batch, out);
    }
    EXPECT_LE(relative_error(out, wanted), 1e-5);
  }
}

std::vector<float> values_of(const Tensor& tensor, const Context& context) {
  const HostView view = downloaded(tensor, context.stream());
  std::vector<float> values;
  visit_dtype(tensor.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    for (std::int64_t i = 0; i < tensor.elements(); ++i) {
      values.push_back(static_cast<float>(view.tensor().as<T>()[i]));
    }
  });
  return values;
}

std::vector<BertTensor> tensors_of(const SafetensorsFile& file) {
  std::vector<BertTensor> tensors;
  for (const SafetensorsEntry& e : file.entries()) {
    tensors.push_back({e.name, e.stored_dtype, e.dtype, e.shape, file.bytes(e)});
  }
  return tensors;
}

// The tensors with this layer alone, as layer 0.
std::vector<BertTensor> layer_of(int layer, const std::vector<BertTensor>& tensors) {
  constexpr std::string_view kLayer = "layer.";
  std::vector<BertTensor> chosen;
  for (BertTensor tensor : tensors) {
    const std::size_t at = tensor.name.find(kLayer);
    if (at != std::string::npos) {
      char& digit = tensor.name[at + kLayer.size()];
      if (digit != '0' + layer) continue;
      digit = '0';
    }
    chosen.push_back(std::move(tensor));
  }
  return chosen;
}

// Weights out of memory, results that stay on the device: the same bits.
TEST_P(Golden, Tensors) {
  const auto batch = golden_batch(GetParam());
  const SafetensorsFile file(folder_of(GetParam()) / "model.safetensors");
  for (const auto& [device, dtype] : places()) {
    Context context(ContextOptions{}, device, Stream::borrowed(device, nullptr));
    const BertWeightsOptions w = {.precision = {.dtype = dtype}};
    const BertOptions options = {.max_batch_tokens = 100};
    BertSession model(context, weights_of(context, folder_of(GetParam()), w), options);
    BertSession twin(
        context, weights_of(context, read_bert_config(folder_of(GetParam())), tensors_of(file), w), options);
    std::vector<float> wanted(golden<float>(GetParam(), "hidden").size());
    model.hidden(batch, wanted);
    for (int run = 0; run < 3; ++run) {  // on a GPU: as it is, captured, launched again
      EXPECT_EQ(values_of(model.launch(batch, BertSession::Result::hidden), context), wanted);
      EXPECT_EQ(values_of(twin.launch(batch, BertSession::Result::hidden), context), wanted);
    }
  }
}

// A model cut in two after its first layer gives the results of the whole.
TEST(Bert, LayersFromStates) {
  const auto batch = golden_batch("bert");
  const std::vector<float> golden_states = golden<float>("bert", "hidden");
  const SafetensorsFile file(folder_of("bert") / "model.safetensors");
  const std::vector<BertTensor> tensors = tensors_of(file);
  const BertConfig config = read_bert_config(folder_of("bert"));
  BertConfig half = config;
  half.layers = 1;
  PackedBatch lengths = batch;
  std::fill(lengths.tokens.begin(), lengths.tokens.end(), 0);
  using Result = BertSession::Result;
  for (const auto& [device, dtype] : places()) {
    Context context(ContextOptions{}, device, Stream::borrowed(device, nullptr));
    const BertWeightsOptions w = {.precision = {.dtype = dtype}};
    const BertOptions options = {.max_batch_tokens = 100};
    BertSession model(context, weights_of(context, config, tensors, w), options);
    BertSession lower(context, weights_of(context, half, layer_of(0, tensors), w), options);
    BertSession upper(context, weights_of(context, half, layer_of(1, tensors), w), options);
    std::vector<float> wanted(golden_states.size());
    model.hidden(batch, wanted);
    for (int run = 0; run < 3; ++run) {
      const Tensor between = lower.launch(batch, Result::hidden);
      copy(upper.states(between.shape[0]), between, context.stream());
      EXPECT_EQ(values_of(upper.launch(lengths, Result::hidden, BertSession::From::states), context), wanted);
    }
  }
}

TEST(Bert, RefusesTensorsThatDoNotFit) {
  const SafetensorsFile file(folder_of("bert") / "model.safetensors");
  const BertConfig config = read_bert_config(folder_of("bert"));
  Context context{ContextOptions{}};
  const auto refusal = [&](const std::function<void(std::vector<BertTensor>&)>& change) {
    std::vector<BertTensor> tensors = tensors_of(file);
    change(tensors);
    return message_of([&] { BertSession(context, weights_of(context, config, tensors)); });
  };
  EXPECT_EQ(refusal([](auto&) {}), "no error");
  EXPECT_NE(refusal([](auto& t) { t.clear(); }).find("has no tensor embeddings"), std::string::npos);
  const auto is_needed = [](const BertTensor& t) { return t.name.find("query.weight") != std::string::npos; };
  EXPECT_NE(refusal([&](auto& t) { std::erase_if(t, is_needed); }).find("has no tensor"), std::string::npos);
  EXPECT_NE(refusal([](auto& t) { t.push_back(t[0]); }).find("two"), std::string::npos);
  EXPECT_NE(refusal([](auto& t) { t[0].name += "s"; }).find("the encoder's tensors"), std::string::npos);
  EXPECT_NE(refusal([](auto& t) { t[0].dtype = DType::i64; }).find("config.json asks"), std::string::npos);
}

// A text's vector in a batch and alone, with several threads and with one.
TEST_P(Golden, ATextDoesNotDependOnItsBatch) {
  const auto batch = golden_batch(GetParam());
  for (const bool invariant : {false, true}) {
    ContextOptions options;
    options.threads = 3;
    Context context(options), single(ContextOptions{});
    single.set_threads(1);
    const BertOptions bert{.max_batch_tokens = 100, .batch_invariant = invariant};
    BertSession model(context, weights_of(context, folder_of(GetParam())), bert),
        other(single, weights_of(single, folder_of(GetParam())), bert);
    const auto D = static_cast<std::size_t>(model.vector_size());
    std::vector<float> all(static_cast<std::size_t>(batch.sequences()) * D), one(D);
    model.embed(batch, all);
    for (std::size_t s = 0; s < static_cast<std::size_t>(batch.sequences()); ++s) {
      other.embed(one_of(batch, s), one);
      const std::span<const float> packed(all.data() + s * D, D);
      if (invariant) {
        EXPECT_TRUE(std::equal(one.begin(), one.end(), packed.begin())) << s;
      } else {
        EXPECT_LE(relative_error(one, packed), 1e-5) << s;
      }
    }
  }
}

// Two sessions on two threads, each with a Context, read one copy of the
// weights.
TEST_P(Golden, SessionsShareWeights) {
  const PackedBatch batch = golden_batch(GetParam());
  for (const auto& [device, dtype] : places()) {
    const Device place = device;
    Context context(ContextOptions{}, device);
    const auto weights = weights_of(context, folder_of(GetParam()), {.precision = {.dtype = dtype}});
    const BertOptions options{.max_batch_tokens = 100};
    BertSession alone(context, weights, options);
    const std::size_t values = batch.tokens.size() * static_cast<std::size_t>(alone.config().hidden);
    std::vector<float> wanted(values);
    alone.hidden(batch, wanted);
    EXPECT_GT(weights->bytes(), 0u);
    EXPECT_EQ(alone.plan().arena_bytes[static_cast<int>(Category::parameters)], 0u);
    std::vector<std::vector<float>> found(2, std::vector<float>(values));
    std::vector<std::thread> threads;
    for (std::vector<float>& states : found) {
      threads.emplace_back([&] {
        ContextOptions single;
        single.threads = 1;
        Context own(single, place);
        BertSession session(own, weights, options);
        for (int run = 0; run < 3; ++run)
          session.hidden(batch, states);  // on a GPU the last one from its graph
      });
    }
    for (std::thread& thread : threads) thread.join();
    for (const std::vector<float>& states : found) EXPECT_EQ(states, wanted) << name_of(dtype);
    EXPECT_EQ(weights.use_count(), 2);
  }
}

TEST_P(Golden, NothingIsWastedOnACpu) {
  Context context{ContextOptions{}};
  BertSession model(context, weights_of(context, folder_of(GetParam())), {.max_batch_tokens = 100});
  const auto batch = golden_batch(GetParam());
  std::vector<float> out(static_cast<std::size_t>(batch.sequences() * model.vector_size()));
  model.embed(batch, out);
  EXPECT_EQ(model.wasted_tokens(), 0);
}

INSTANTIATE_TEST_SUITE_P(Bert, Golden, ::testing::Values("bert", "roberta", "sentence"),
                         [](const auto& model) { return model.param; });

// 1 − cosine, of vectors in fp64.
double distance(std::span<const float> a, std::span<const float> b) {
  double ab = 0, aa = 0, bb = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    const double x = static_cast<double>(a[i]), y = static_cast<double>(b[i]);
    ab += x * y, aa += x * x, bb += y * y;
  }
  return 1 - ab / std::sqrt(aa * bb);
}

// Texts of random ids, with types.
PackedBatch random_batch(const std::vector<std::size_t>& lengths) {
  PackedBatch batch;
  std::uint32_t drawn = 1;
  for (const std::size_t length : lengths) {
    std::vector<std::int32_t> ids(length);
    for (auto& id : ids) id = static_cast<std::int32_t>((drawn = drawn * 1664525 + 1013904223) >> 8) % 1000;
    batch.append(ids);
  }
  batch.types.assign(batch.tokens.size(), 0);
  return batch;
}

// Kernels of a graph begin while the one before them runs: each waits for what
// it reads, whatever the batch before has left there.
TEST(Bert, OnCudaAGraphGivesTheBitsOfItsOperations) {
  if (cuda_device_count() == 0) GTEST_SKIP() << "needs an NVIDIA GPU";
  BertConfig config = BertConfig::named("minilm");
  config.vocab = 1000;
  config.layers = 3;
  config.heads = 2;
  config.intermediate = 512;
  for (const std::int64_t hidden : {64, 128}) {
    config.hidden = hidden;
    for (const DType dtype : {DType::f32, DType::f16, DType::bf16}) {
      Context context(ContextOptions{}, gpu());
      BertSession model(context, weights_of(context, config, {.precision = {.dtype = dtype}}),
                        {.max_batch_tokens = 1024});
      for (const std::vector<std::size_t>& lengths :
           {std::vector<std::size_t>{5}, {200}, {1, 7, 16, 33, 64, 90}}) {
        const PackedBatch batch = random_batch(lengths), other = random_batch({lengths.front()});
        const auto S = static_cast<std::size_t>(batch.sequences()),
                   D = static_cast<std::size_t>(model.vector_size());
        std::vector<float> apart(S * D), captured(S * D), rest(D);
        {
          const Timing timing(context, [](const Context::CallRecord&) {});  // operation by operation
          model.embed(batch, apart);
        }
        for (int again = 0; again < 4; ++again) {
          model.embed(other, rest);
          model.embed(batch, captured);
          EXPECT_EQ(captured, apart) << name_of(dtype) << " hidden " << hidden << ", " << batch.tokens.size();
        }
      }
    }
  }
}

// In fp32 each number of tokens has a graph of its own, until others take its
// room.
TEST(Bert, OnCudaMoreSizesThanGraphs) {
  if (cuda_device_count() == 0) GTEST_SKIP() << "needs an NVIDIA GPU";
  BertConfig config = BertConfig::named("minilm");
  config.vocab = 1000;
  config.layers = 1;
  Context context(ContextOptions{}, gpu());
  BertSession model(context, weights_of(context, config, {.precision = {.dtype = DType::f32}}),
                    {.max_batch_tokens = 512});
  const auto D = static_cast<std::size_t>(model.vector_size());
  std::vector<float> vector(D);
  std::map<std::size_t, std::vector<float>> first;
  for (const std::size_t start : {300, 40, 40, 300, 40, 40}) {
    for (std::size_t length = start; length > 0; --length) {
      model.embed(random_batch({length}), vector);
      EXPECT_EQ(first.try_emplace(length, vector).first->second, vector) << length << " tokens";
    }
    model.embed(PackedBatch(), std::span(vector).first(0));
  }
  EXPECT_EQ(model.wasted_tokens(), 0);
}

// MiniLM's sizes with random weights: texts of 1 to 250 tokens together and
// alone, on a GPU, whose products change with the number of rows; and no row is
// computed that is not asked for.
TEST(Bert, OnCudaATextHardlyDependsOnItsBatch) {
  if (cuda_device_count() == 0) GTEST_SKIP() << "needs an NVIDIA GPU";
  BertConfig config = BertConfig::named("minilm");
  config.vocab = 1000;
  const PackedBatch batch = random_batch({1, 2, 7, 16, 33, 64, 65, 120, 128, 200, 250});
  for (const auto& [dtype, most] : {std::pair{DType::f32, 1e-6}, {DType::f16, 1e-5}, {DType::bf16, 1e-4}}) {
    for (const bool invariant : {false, true}) {
      Context context(ContextOptions{}, gpu());
      BertSession model(context, weights_of(context, config, {.precision = {.dtype = dtype}}),
                        {.max_batch_tokens = 1024, .batch_invariant = invariant});
      const auto D = static_cast<std::size_t>(model.vector_size());
      std::vector<float> all(static_cast<std::size_t>(batch.sequences()) * D), one(D);
      double worst = 0;
      for (int again = 0; again < 3; ++again) model.embed(batch, all);  // the last one from its graph
      for (std::size_t s = 0; s < static_cast<std::size_t>(batch.sequences()); ++s) {
        model.embed(one_of(batch, s), one);
        const std::span<const float> packed(all.data() + s * D, D);
        worst = std::max(worst, distance(one, packed));
        if (invariant) {
          EXPECT_TRUE(std::equal(one.begin(), one.end(), packed.begin())) << s;
        }
      }
      EXPECT_LE(worst, most) << name_of(dtype);
      RecordProperty(std::string(name_of(dtype)) + (invariant ? "_invariant" : ""),
                     std::to_string(worst * 1e9) + "e-9");
      EXPECT_EQ(model.wasted_tokens(), 0);
    }
  }
}

TEST(Bert, PoolsAsAsked) {
  Context context{ContextOptions{}};
  const auto batch = golden_batch("bert");
  const auto hidden = golden<float>("bert", "hidden");
  const std::size_t H = 20;
  BertSession model(context, weights_of(context, folder_of("bert")),
                    {.pooling = ops::Pooling::cls, .normalize = true});
  std::vector<float> out(static_cast<std::size_t>(batch.sequences()) * H);
  model.embed(batch, out);
  for (std::size_t s = 0; s < static_cast<std::size_t>(batch.sequences()); ++s) {
    std::vector<float> wanted(hidden.begin() + batch.cu_seqlens[s] * 20,
                              hidden.begin() + batch.cu_seqlens[s] * 20 + 20);
    double norm = 0;
    for (const float x : wanted) norm += static_cast<double>(x) * static_cast<double>(x);
    for (float& x : wanted) x /= static_cast<float>(std::sqrt(norm));
    EXPECT_LE(relative_error(std::span(out).subspan(s * H, H), wanted), 1e-5);
  }
}

TEST(Bert, EmptyTextsAndBatches) {
  Context context{ContextOptions{}};
  BertSession model(context, weights_of(context, folder_of("sentence")));
  PackedBatch batch;
  model.embed(batch, {});
  batch.append({});
  std::vector<float> out(13, NAN);
  model.embed(batch, out);
  for (const float x : out) EXPECT_TRUE(std::isfinite(x));
  EXPECT_EQ(one_of(golden_batch("bert"), 1).types.size(), 1u);
}

TEST(Bert, RefusesBatchesThatDoNotFit) {
  Context context{ContextOptions{}};
  BertSession model(context, weights_of(context, folder_of("bert")),
                    {.max_batch_tokens = 50, .max_batch_sequences = 2});
  std::vector<float> out(2 * 20);
  const auto expect_refused = [&](std::vector<std::vector<std::int32_t>> texts, const std::string& named) {
    PackedBatch batch;
    for (const auto& text : texts) batch.append(text);
    const std::string message =
        message_of([&] { model.embed(batch, std::span(out).subspan(0, texts.size() == 1 ? 20 : 40)); });
    EXPECT_NE(message.find(named), std::string::npos) << message;
  };
  expect_refused({{1, 2}, {3, 53}}, "text 1 of the batch: has the token 53");
  expect_refused({{-1}}, "text 0 of the batch: has the token -1");
  expect_refused({{1}, std::vector<std::int32_t>(38, 1)}, "text 1 of the batch: has 38 tokens");
  expect_refused({std::vector<std::int32_t>(30, 1), std::vector<std::int32_t>(30, 1)},
                 "60 tokens in 2 sequences");
  expect_refused({{1}, {2}, {3}}, "3 tokens in 3 sequences");
  PackedBatch batch;
  batch.append(std::vector<std::int32_t>{1, 2}, std::vector<std::int32_t>{0, 3});
  EXPECT_THROW(model.embed(batch, std::span(out).subspan(0, 20)), Error);
  batch.clear();
  batch.append(std::vector<std::int32_t>{1, 2});
  EXPECT_THROW(model.embed(batch, out), Error);  // room for two
  EXPECT_THROW(batch.append(std::vector<std::int32_t>{1, 2}, std::vector<std::int32_t>{0}), Error);
}

class BertFolder : public TestFolder {
 protected:
  // A copy of a model's folder with a change.
  void expect_unloadable(const std::string& model, const std::string& named,
                         const std::function<void(const fs::path&)>& change) const {
    fs::remove_all(folder);
    fs::copy(folder_of(model), folder, fs::copy_options::recursive);
    change(folder);
    Context context{ContextOptions{}};
    const std::string message = message_of([&] { BertSession(context, weights_of(context, folder)); });
    EXPECT_NE(message.find(named), std::string::npos) << named << ": " << message;
  }
};

void set_json(const fs::path& path, const std::string& key, const nlohmann::json& value) {
  nlohmann::json json = nlohmann::json::parse(std::ifstream(path));
  json[key] = value;
  std::ofstream(path) << json;
}

TEST_F(BertFolder, AValueThatIsNotFiniteNamesItsText) {
  fs::remove_all(folder);
  fs::copy(folder_of("bert"), folder, fs::copy_options::recursive);
  const fs::path path = folder / "model.safetensors";
  constexpr std::int64_t kToken = 7, kHidden = 20;
  std::uint64_t header = 0, at = 0;
  {
    const SafetensorsFile file(path);
    at = file.find("bert.embeddings.word_embeddings.weight")->begin + kToken * kHidden * sizeof(float);
  }
  std::fstream weights(path, std::ios::binary | std::ios::in | std::ios::out);
  weights.read(reinterpret_cast<char*>(&header), sizeof(header));
  const float nan = NAN;
  weights.seekp(static_cast<std::streamoff>(sizeof(header) + header + at));
  weights.write(reinterpret_cast<const char*>(&nan), sizeof(nan));
  weights.close();
  Context context{ContextOptions{}};
  BertSession model(context, weights_of(context, folder));
  PackedBatch batch;
  for (const std::vector<std::int32_t>& text : {std::vector{1, 2}, std::vector{3, 7, 4}, std::vector{5}}) {
    batch.append(text);
  }
  std::vector<float> vectors(3 * kHidden), logits(3 * 3), states(6 * kHidden);
  const std::string wanted = "text 1 of the batch: has values that are not finite";
  EXPECT_NE(message_of([&] { model.embed(batch, vectors); }).find(wanted), std::string::npos);
  EXPECT_NE(message_of([&] { model.classify(batch, logits); }).find("text 1 of the batch"),
            std::string::npos);
  EXPECT_NE(message_of([&] { model.hidden(batch, states); }).find(wanted), std::string::npos);
  for (std::size_t i = 0; i < kHidden; ++i) EXPECT_TRUE(std::isfinite(vectors[i])) << "of text 0";
}

// The file is made if it is missing, mapped if it is whole, and made again if it is damaged. Another model's
// file is never used.
TEST_F(BertFolder, WeightsFromACacheGiveTheSameBits) {
  const PackedBatch batch = golden_batch("bert");
  for (const DType dtype : {DType::f32, DType::bf16}) {
    Context context({}, Device{});
    const auto hidden = [&](const fs::path& cache) {
      BertSession model(
          context, weights_of(context, folder_of("bert"), {.precision = {.dtype = dtype}, .cache = cache}),
          {.max_batch_tokens = 100, .batch_invariant = true});
      std::vector<float> states(batch.tokens.size() * static_cast<std::size_t>(model.config().hidden));
      model.hidden(batch, states);
      return states;
    };
    const fs::path cache = folder / "users" / "cache";
    const std::vector<float> wanted = hidden({});
    EXPECT_EQ(hidden(cache), wanted);
    if (ops::packed_layout(dtype, context.device()).empty()) {
      EXPECT_FALSE(fs::exists(cache)) << "a dtype without packed weights leaves no file";
      continue;
    }
    const fs::path file = fs::directory_iterator(cache)->path();
    const auto made = fs::last_write_time(file) - std::chrono::hours(1);
    fs::last_write_time(file, made);
    EXPECT_EQ(hidden(cache), wanted);
    EXPECT_EQ(fs::last_write_time(file), made) << "a whole file is taken as it is";
    for (const std::uintmax_t offset : {std::uintmax_t{30}, fs::file_size(file) - 1}) {
      std::fstream bytes(file, std::ios::binary | std::ios::in | std::ios::out);
      bytes.seekp(static_cast<std::streamoff>(offset));
      bytes.put('\x55');
      bytes.close();
      EXPECT_EQ(hidden(cache), wanted) << "damaged at " << offset;
    }
    fs::resize_file(file, 100);
    EXPECT_EQ(hidden(cache), wanted);
    fs::remove_all(cache);
  }
}

// A batch of a few tokens has kernels of its own for weights as they lie in a
// model's file.
TEST_F(BertFolder, AShortTextsBitsDoNotDependOnTheCache) {
  PackedBatch batch;
  batch.append(std::vector<std::int32_t>{2, 7, 3});
  Context context({}, Device{});
  const auto vector = [&](const fs::path& cache) {
    BertSession model(context, weights_of(context, folder_of("bert"), {.cache = cache}),
                      {.max_batch_tokens = 100});
    std::vector<float> out(static_cast<std::size_t>(model.vector_size()));
    model.embed(batch, out);
    return out;
  };
  const std::vector<float> without = vector({});
  EXPECT_EQ(vector(folder / "cache"), without);  // made
  EXPECT_EQ(vector(folder / "cache"), without);  // mapped
  EXPECT_EQ(vector(put("a file", "") / "cache"),
            without);  // no folder can be there
  const SafetensorsFile file(folder_of("bert") / "model.safetensors");
  BertSession listed(context, weights_of(context, read_bert_config(folder_of("bert")), tensors_of(file)),
                     {.max_batch_tokens = 100});
  std::vector<float> out(without.size());
  listed.embed(batch, out);
  EXPECT_EQ(out, without);  // its pooling is the folder's, too
}

TEST_F(BertFolder, AForcedKernelTakesTheWeightsAsItCan) {
  PackedBatch batch;
  batch.append(std::vector<std::int32_t>{2, 7, 3});
  ContextOptions options;
  options.force["matmul.forward"] = "reference";
  Context context(options, Device{});
  BertSession model(context, weights_of(context, folder_of("bert"), {.cache = folder / "cache"}),
                    {.max_batch_tokens = 100});
  std::vector<float> out(static_cast<std::size_t>(model.vector_size()));
  model.embed(batch, out);
}

// Another model may take the name of one that is being loaded.
TEST_F(BertFolder, ARenamedModelDoesNotPoisonTheCache) {
  Context context({}, Device{});
  if (ops::packed_layout(DType::f32, context.device()).empty()) GTEST_SKIP() << "needs AVX2";
  const PackedBatch batch = golden_batch("bert");
  const fs::path cache = folder / "cache", model = folder / "model";
  fs::copy(folder_of("bert"), model, fs::copy_options::recursive);
  const auto hidden = [&](const fs::path& from, const fs::path& in) {
    BertSession loaded(context, weights_of(context, from, {.cache = in}), {.max_batch_tokens = 100});
    std::vector<float> states(batch.tokens.size() * static_cast<std::size_t>(loaded.config().hidden));
    loaded.hidden(batch, states);
    return states;
  };
  std::string other = read_file(model / "model.safetensors", 1 << 26);
  for (std::size_t i = other.size() / 2; i < other.size(); i += 4)
    other[i] = static_cast<char>(other[i] ^ 0x40);
  put("other", other);
  const BertConfig config = read_bert_config(model);
  const BertFile mapped(model, config);
  fs::rename(folder / "other", model / "model.safetensors");
  BertPackedWeights::open(context, mapped, config, {}, cache);
  EXPECT_EQ(hidden(model, cache), hidden(model, {}));
  EXPECT_EQ(hidden(folder_of("bert"), cache), hidden(folder_of("bert"), {}));
  EXPECT_EQ(std::distance(fs::directory_iterator(cache), fs::directory_iterator()), 2);
}

TEST(BertFile, WeightsWithoutFilesHaveNoChecksum) {
  const SafetensorsFile file(folder_of("bert") / "model.safetensors");
  const BertConfig config = read_bert_config(folder_of("bert"));
  EXPECT_THROW(BertFile(tensors_of(file), "list", config).checksum(), Error);
  EXPECT_NE(BertFile(folder_of("bert"), config).checksum(), "");
}

TEST_F(BertFolder, MayBeShards) {
  const fs::path whole = folder_of("bert");
  fs::copy(whole, folder, fs::copy_options::recursive);
  const SafetensorsFile file(whole / "model.safetensors");
  nlohmann::json index;
  for (std::size_t part = 0; part < 3; ++part) {
    const std::string name = "model-0000" + std::to_string(part + 1) + "-of-00003.safetensors";
    std::vector<TensorInfo> infos;
    for (std::size_t i = part; i < file.entries().size(); i += 3) {
      const SafetensorsEntry& e = file.entries()[i];
      infos.push_back({e.name, *e.dtype, e.shape});
      index["weight_map"][e.name] = name;
    }
    TensorFileWriter writer = write_safetensors(folder / name, infos);
    for (const TensorInfo& info : infos) writer.write(info.name, file.bytes(*file.find(info.name)));
    writer.commit();
  }
  fs::remove(folder / "model.safetensors");
  put("model.safetensors.index.json", index.dump());
  const PackedBatch batch = golden_batch("bert");
  Context context({}, Device{});
  const auto hidden = [&](const fs::path& from, const fs::path& cache) {
    BertSession model(context, weights_of(context, from, {.cache = cache}), {.max_batch_tokens = 100});
    std::vector<float> states(batch.tokens.size() * static_cast<std::size_t>(model.config().hidden));
    model.hidden(batch, states);
    return states;
  };
  const std::vector<float> wanted = hidden(whole, {});
  EXPECT_EQ(hidden(folder, {}), wanted);
  EXPECT_EQ(hidden(folder, folder / "cache"), wanted);
  EXPECT_EQ(hidden(folder, folder / "cache"), wanted);
}

TEST_F(BertFolder, ACacheThatCannotBeUsedIsDoneWithout) {
  const PackedBatch batch = golden_batch("bert");
  Context context({}, Device{});
  BertSession model(context, weights_of(context, folder_of("bert"), {.cache = put("a file", "") / "cache"}),
                    {.max_batch_tokens = 100});
  std::vector<float> states(batch.tokens.size() * static_cast<std::size_t>(model.config().hidden));
  model.hidden(batch, states);
}

TEST_F(BertFolder, MayBeOfSentenceTransformers6) {
  const fs::path old = folder_of("sentence");
  fs::copy(old, folder, fs::copy_options::recursive);
  const BertConfig config = read_bert_config(folder);
  const BertPooling wanted = read_bert_pooling(old, config);
  ASSERT_EQ(wanted.kind, ops::Pooling::max);
  for (const char* mode : {R"("max")", R"(["max"])"}) {
    std::ofstream(folder / "1_Pooling/config.json")
        << R"({"embedding_dimension": 16, "pooling_mode": )" << mode << "}";
    EXPECT_EQ(read_bert_pooling(folder, config).kind, wanted.kind);
  }
  for (const char* mode : {R"(["max", "mean"])", R"("lasttoken")", "[]", "3", "null"}) {
    std::ofstream(folder / "1_Pooling/config.json") << R"({"pooling_mode": )" << mode << "}";
    EXPECT_THROW(read_bert_pooling(folder, config), Error) << mode;
  }
}

TEST_F(BertFolder, SaysHowLongATextMayBe) {
  fs::copy(folder_of("bert"), folder, fs::copy_options::recursive);
  const BertConfig config = read_bert_config(folder);
  const auto tokenizer = [&](const char* length) {
    std::ofstream(folder / "tokenizer_config.json") << R"({"model_max_length": )" << length << "}";
    return read_bert_pooling(folder, config).max_length;
  };
  EXPECT_EQ(tokenizer("24"), 24);
  EXPECT_EQ(tokenizer("1000000000000000019884624838656"), 0);
  EXPECT_EQ(tokenizer("null"), 0);
  EXPECT_THROW(tokenizer("0"), Error);
  EXPECT_THROW(tokenizer(R"("24")"), Error);
  std::ofstream(folder / "sentence_bert_config.json") << R"({"max_seq_length": 12})";
  EXPECT_EQ(tokenizer("24"), 12);
}

TEST_F(BertFolder, MustBeOfAnEncoder) {
  const auto config = [](const std::string& key, const nlohmann::json& value) {
    return [=](const fs::path& f) { set_json(f / "config.json", key, value); };
  };
  expect_unloadable("bert", "config.json", [](const fs::path& f) { fs::remove(f / "config.json"); });
  expect_unloadable("bert", "not JSON", [](const fs::path& f) { std::ofstream(f / "config.json") << "{"; });
  expect_unloadable("bert", "no model.safetensors",
                    [](const fs::path& f) { fs::remove(f / "model.safetensors"); });
  expect_unloadable("bert", "model_type", config("model_type", "gpt2"));
  expect_unloadable("bert", "hidden_act", config("hidden_act", "silu"));
  expect_unloadable("bert", "position_embedding_type", config("position_embedding_type", "relative_key"));
  expect_unloadable("bert", "heads do not divide", config("num_attention_heads", 3));
  expect_unloadable("bert", "config.json asks for", config("vocab_size", 54));
  expect_unloadable("bert", "config.json asks for", config("intermediate_size", 28));
  expect_unloadable("bert", "has no tensor", config("num_hidden_layers", 3));
  expect_unloadable("bert", "has a tensor", config("num_hidden_layers", 1));
  expect_unloadable("bert", "layer_norm_eps", config("layer_norm_eps", 0));
  expect_unloadable("roberta", "max_position_embeddings", config("max_position_embeddings", 2));
  expect_unloadable("sentence", "max_seq_length is -5", [](const fs::path& f) {
    set_json(f / "sentence_bert_config.json", "max_seq_length", -5);
  });
  expect_unloadable("sentence", "module \"Whitening\"", [](const fs::path& f) {
    std::ofstream(f / "modules.json")
        << R"([{"type": "sentence_transformers.models.Whitening", "path": "4"}])";
  });
  expect_unloadable("sentence", "leads out of the folder", [](const fs::path& f) {
    std::ofstream(f / "modules.json")
        << R"([{"type": "sentence_transformers.models.Dense", "path": "../2_Dense"}])";
  });
  expect_unloadable("sentence", "pooling", [](const fs::path& f) {
    set_json(f / "1_Pooling/config.json", "pooling_mode_mean_tokens", true);
  });
  expect_unloadable("sentence", "features",
                    [](const fs::path& f) { set_json(f / "2_Dense/config.json", "in_features", 17); });
}

}  // namespace
}  // namespace warpwright
