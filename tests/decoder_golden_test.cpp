// Compares decoders of the Llama and GPT-NeoX families with transformers in float64
// (tests/goldens/make_decoder_goldens.py). Weights go the way of a user's: drawn into a folder of Hugging
// Face's format, and loaded from there.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "infer/decoding_engine.hpp"
#include "model/decoder_files.hpp"
#include "model/packed_decoder.hpp"
#include "model/safetensors_folder.hpp"
#include "runtime/test_folder.hpp"
#include "tests/golden.hpp"

namespace warpwright {
namespace {

struct Run {
  std::string model;
  DType dtype;
  DeviceKind device;
};

std::vector<Run> runs(std::initializer_list<DType> dtypes) {
  std::vector<Run> list;
  for (const char* model : {"llama", "llama3", "mistral", "mistral_window", "qwen2", "qwen3", "qwen3_windows",
                            "gpt_neox", "gpt_neox_serial"}) {
    for (const DType dtype : dtypes) {
      for (const DeviceKind device : {DeviceKind::cpu, DeviceKind::cuda})
        list.push_back({model, dtype, device});
    }
  }
  return list;
}

std::string run_name(const ::testing::TestParamInfo<Run>& info) {
  const auto& [model, dtype, device] = info.param;
  return fmt::format("{}_{}_{}", model, name_of(dtype), device == DeviceKind::cuda ? "cuda" : "cpu");
}

// As in the script.
bool is_projection(const std::string& name) {
  const auto has = [&](const char* part) { return name.find(part) != std::string::npos; };
  return name.ends_with(".weight") && !name.ends_with("norm.weight") &&
         (has("attn.") || has(".attention.") || has(".mlp."));
}

class DecoderGolden : public TestFolder, public ::testing::WithParamInterface<Run> {
 protected:
  void SetUp() override {
    TestFolder::SetUp();
    if (GetParam().device == DeviceKind::cuda && cuda_device_count() == 0)
      GTEST_SKIP() << "needs an NVIDIA GPU";
    std::ifstream(goldens() / "golden.json") >> spec_;
    std::filesystem::copy_file(goldens() / "config.json", folder / "config.json");
    draw_weights();
  }

  std::filesystem::path goldens() const { return golden::kFolder / "decoders" / GetParam().model; }
  std::string kind() const { return std::string(name_of(GetParam().dtype)); }
  const nlohmann::json& expected() const { return spec_.at(kind()); }
  SafetensorsFile golden_file() const { return SafetensorsFile(goldens() / "golden.safetensors"); }

  std::vector<double> losses_of(const StepOptions& o) const;
  StepOptions options() const { return golden::options_of(spec_, read_decoder(folder), GetParam().dtype); }

  // The name that a folder's writer gives a tensor, if it is not the one that transformers 5 has in memory.
  std::string written_name(const std::string& name) const {
    return name == "lm_head.weight" && GetParam().model.starts_with("gpt_neox") ? "embed_out.weight" : name;
  }

  // model.safetensors as the script draws its tensors, which have the shapes of their gradients.
  void draw_weights() const {
    const SafetensorsFile file = golden_file();
    std::vector<TensorInfo> infos;
    for (const std::string name : spec_["parameters"])
      infos.push_back({name, DType::f32, file.find(kind() + "." + name)->shape});
    TensorFileWriter writer = write_safetensors(folder / "model.safetensors", infos);
    std::uint32_t stream = 0;
    for (const TensorInfo& info : infos) {
      const bool projection = is_projection(info.name);
      const double scale = spec_[projection ? "projection_scale" : "scale"];
      const double offset = info.name.ends_with("norm.weight") ? 1 : 0;
      std::vector<float> values(static_cast<std::size_t>(info.shape.elements()));
      for (std::size_t i = 0; i < values.size(); ++i) {
        values[i] = static_cast<float>(
            golden::drawn(static_cast<std::int64_t>(i), stream, scale, offset, GetParam().dtype));
      }
      writer.write(info.name, std::as_bytes(std::span(values)));
      ++stream;
    }
    writer.commit();
  }

  nlohmann::json spec_;
};

TEST_P(DecoderGolden, LogitsLossAndEveryGradient) {
  const StepOptions o = options();
  const SafetensorsFile file = golden_file();
  const golden::Bound bound{o.dtype};
  Context context(ContextOptions{}, {GetParam().device, 0});
  TrainingStep step(context, o);
  step.allocate();
  o.model->load(folder, step.full_precision());
  const auto& t = step.tensors();

  golden::draw_batch(o, 0, step.host_batch());
  const double loss = step.forward() / static_cast<double>(o.B * o.T);
  EXPECT_LE(
      golden::relative_error(t.pass->logits(), context.stream(), golden::tensor(file, kind() + ".logits"),
                             o.model->vocab(), o.model->padded_vocab()),
      bound(expected()["error"]["logits"]));
  EXPECT_NEAR(loss, expected()["loss"],
              bound(expected()["error"]["loss"]) * expected()["loss"].get<double>());

  step.begin();
  golden::draw_batch(o, 0, step.host_batch());
  step.forward_backward();
  context.synchronize();
  // Written as weights are, so that each has the name and the shape of a folder.
  const DecoderParameters& gradients = t.gradients.front();
  const std::filesystem::path saved = folder / "gradients.safetensors";
  o.model->save_weights(saved, gradients, reader_of(gradients, context.stream()));
  const SafetensorsFile ours(saved);
  EXPECT_EQ(ours.entries().size(), spec_["parameters"].size());
  for (const std::string name : spec_["parameters"]) {
    std::vector<float> gradient = golden::tensor(ours, written_name(name));
    const std::vector<float> wanted = golden::tensor(file, kind() + "." + name);
    ASSERT_EQ(gradient.size(), wanted.size()) << name;
    const auto count = static_cast<std::int64_t>(gradient.size());
    EXPECT_LE(
        golden::relative_error(Tensor(gradient.data(), DType::f32, {count}), context.stream(), wanted, 1, 1),
        bound(expected()["error"]["gradients"][name]))
        << name;
  }
}

// The losses of the golden's steps.
std::vector<double> DecoderGolden::losses_of(const StepOptions& o) const {
  Context context(ContextOptions{}, {GetParam().device, 0});
  TrainingStep step(context, o);
  step.allocate();
  o.model->load(folder, step.full_precision());
  std::vector<double> losses;
  for (std::int64_t i = 0; i < spec_["steps"].get<std::int64_t>(); ++i) {
    step.begin();
    golden::draw_batch(o, i, step.host_batch());
    step.forward_backward();
    step.gradient_norm();
    losses.push_back(step.collect().loss_sum / static_cast<double>(o.B * o.T));
    step.update(spec_["lr"], i + 1);
  }
  return losses;
}

double worst_error(const std::vector<double>& losses, const nlohmann::json& wanted) {
  double worst = 0;
  for (std::size_t i = 0; i < losses.size(); ++i) {
    const double loss = wanted[i];
    worst = std::max(worst, std::abs(losses[i] - loss) / loss);
  }
  return worst;
}

// Every way to keep fewer activations has the same losses to the bit, except that in bf16 a GELU that is
// computed again reads a rounded number, and the product's epilogue does not.
TEST_P(DecoderGolden, TenOptimizerSteps) {
  std::vector<double> losses[std::size(kRecomputes)];
  for (const Recompute recompute : kRecomputes) {
    StepOptions o = options();
    o.recompute = recompute;
    losses[static_cast<std::size_t>(recompute)] = losses_of(o);
    EXPECT_LE(worst_error(losses[static_cast<std::size_t>(recompute)], expected()["losses"]),
              golden::Bound{o.dtype}(expected()["trajectory_error"], 1e-4));
    if (o.dtype == DType::f32 || !GetParam().model.starts_with("gpt_neox")) {
      EXPECT_EQ(losses[static_cast<std::size_t>(recompute)], losses[0]) << name_of(recompute);
    }
  }
}

TEST_P(DecoderGolden, TenStepsOfMuon) {
  StepOptions o = options();
  o.optimizer = Optimizer::muon;
  o.muon_momentum = spec_["muon_momentum"];
  const nlohmann::json& muon = expected()["muon"];
  EXPECT_LE(worst_error(losses_of(o), muon["losses"]), golden::Bound{o.dtype}(muon["trajectory_error"]));
}

class DecoderInference : public DecoderGolden {};  // in fp32, of which the tokens are

// The decoding engine continues a prompt as transformers does.
TEST_P(DecoderInference, GreedyTokens) {
  Context context(ContextOptions{}, {GetParam().device, 0});
  const DecoderWeights weights = load_inference_weights(context, folder, {});
  const std::vector<std::int32_t> wanted = spec_["greedy"];
  std::vector<std::int32_t> prompt(8);
  for (std::size_t i = 0; i < prompt.size(); ++i) {
    prompt[i] = static_cast<std::int32_t>(golden::first_word(i, golden::kTokens) %
                                          static_cast<std::uint32_t>(weights.decoder->vocab()));
  }
  DecodingEngine engine(context, weights, {});
  GenerationOptions greedy;
  greedy.sampling.temperature = 0;
  greedy.max_tokens = static_cast<std::int64_t>(wanted.size());
  engine.add(prompt, greedy);
  std::vector<std::int32_t> tokens;
  while (tokens.size() < wanted.size()) {
    for (const DecodingEngine::Drawn& drawn : engine.step()) tokens.push_back(drawn.token);
  }
  EXPECT_EQ(tokens, wanted);
}

// The contents of a folder survive being loaded and written, to the bit, in one file or in shards.
TEST_P(DecoderInference, AFolderSurvivesLoadingAndWriting) {
  const DecoderWeights weights = load_weights(folder, DType::f32);
  const SafetensorsFolder before(folder);
  for (const std::uint64_t most_bytes : {Decoder::kMostFileBytes, std::uint64_t{20'000}}) {
    const std::filesystem::path copy = folder / fmt::format("copy_{}", most_bytes);
    std::filesystem::create_directory(copy);
    weights.decoder->save(copy, weights.parameters, reader_of(weights.parameters, Stream()), {}, most_bytes);
    const SafetensorsFolder after(copy);
    ASSERT_EQ(after.tensors().size(), before.tensors().size());
    for (const SafetensorsFolder::StoredTensor& t : before.tensors()) {
      const auto found = after.find(written_name(t.entry->name));
      ASSERT_TRUE(found) << t.entry->name;
      EXPECT_EQ(found.entry->shape, t.entry->shape) << t.entry->name;
      EXPECT_TRUE(std::ranges::equal(found.bytes(), t.bytes())) << t.entry->name;
    }
    EXPECT_EQ(read_decoder(copy)->config({}), weights.decoder->config({}));
    EXPECT_EQ(shards_in(copy, "model").empty(), most_bytes == Decoder::kMostFileBytes);
    for (const std::string& shard : shards_in(copy, "model")) {
      constexpr std::uint64_t kHeader = 4096;
      EXPECT_LE(std::filesystem::file_size(copy / shard), most_bytes + kHeader);
    }
    require_replaceable(copy, replaceable_model_folder(copy));
  }
}

INSTANTIATE_TEST_SUITE_P(Transformers, DecoderGolden, ::testing::ValuesIn(runs({DType::f32, DType::bf16})),
                         run_name);
INSTANTIATE_TEST_SUITE_P(Transformers, DecoderInference, ::testing::ValuesIn(runs({DType::f32})), run_name);

}  // namespace
}  // namespace warpwright
