// Encoders whose products are in int8, on tiny random models.
#include <gtest/gtest.h>

#include <chrono>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <memory>
#include <vector>

#include "core/error.hpp"
#include "model/bert_session.hpp"
#include "model/safetensors.hpp"
#include "model/test_distance.hpp"
#include "model/test_models.hpp"
#include "ops/int8_linear/int8_linear.hpp"
#include "ops/matmul/packed.hpp"
#include "runtime/test_folder.hpp"

namespace warpwright {
namespace {

namespace fs = std::filesystem;

PackedBatch some_texts() {
  PackedBatch batch;
  for (const int length : {1, 3, 17, 9}) {
    std::vector<std::int32_t> ids;
    for (int i = 0; i < length; ++i) ids.push_back(2 + (7 * i + length) % 20);
    batch.append(ids);
  }
  return batch;
}

std::vector<float> hidden_states(Context& context, std::shared_ptr<const BertWeights> weights) {
  const PackedBatch batch = some_texts();
  BertSession model(context, std::move(weights), {.max_batch_tokens = 100});
  std::vector<float> states(batch.tokens.size() * static_cast<std::size_t>(model.config().hidden));
  model.hidden(batch, states);
  return states;
}

class BertInt8 : public TestFolder {
 protected:
  void SetUp() override {
    TestFolder::SetUp();
    if (const std::string reason = ops::refuse_int8(context.device()); !reason.empty())
      GTEST_SKIP() << reason;
  }
  std::vector<float> states_of(const std::string& model, const BertWeightsOptions& options) {
    return hidden_states(context, std::make_shared<BertWeights>(context, folder_of(model), options));
  }

  Context context{ContextOptions{}};
};

TEST_F(BertInt8, IsCloseToFp32) {
  int models = 0;
  for (const auto& entry : fs::directory_iterator(fs::path(WARPWRIGHT_TESTDATA) / "bert")) {
    if (!fs::exists(entry.path() / "golden.safetensors")) continue;
    ++models;
    const std::string model = entry.path().filename();
    const std::vector<float> wanted = states_of(model, {});
    for (const DType rest : {DType::f32, DType::bf16}) {
      const double error =
          relative_error(states_of(model, {.precision = {.dtype = rest, .int8 = true}}), wanted);
      EXPECT_LT(error, 0.05) << model << ", the rest in " << name_of(rest);
      EXPECT_GT(error, 1e-4) << model << ": the products are not in int8";
    }
  }
  EXPECT_GE(models, 3);
}

TEST_F(BertInt8, TheKernelsAgree) {
  const BertWeightsOptions int8{.precision = {.int8 = true}};
  const std::vector<float> wanted = states_of("bert", int8);
  for (const auto& variant : ops::int8_linear_op().variants) {
    if (!ops::refuse_device(variant.needs(), context.device()).empty()) continue;
    ContextOptions options;
    options.force["int8_linear"] = variant.name;
    Context forced(options);
    const auto states = hidden_states(forced, std::make_shared<BertWeights>(forced, folder_of("bert"), int8));
    // The reference takes no packed weights, and the model gives it no factors. The activation of a kernel
    // may differ in its last bit, and then a number at a tie is rounded to the other side.
    EXPECT_LT(relative_error(states, wanted), variant.name == ops::kReference ? 0.05 : 2e-3) << variant.name;
  }
}

TEST_F(BertInt8, HasAFileOfItsOwnInTheCache) {
  const fs::path cache = folder / "cache";
  const auto files = [&] { return std::distance(fs::directory_iterator(cache), fs::directory_iterator()); };
  const BertWeightsOptions int8{.precision = {.int8 = true}, .cache = cache};
  const std::vector<float> wanted = states_of("bert", {.precision = {.int8 = true}});
  EXPECT_EQ(states_of("bert", int8), wanted);
  ASSERT_EQ(files(), 1);
  const fs::path file = fs::directory_iterator(cache)->path();
  const auto made = fs::last_write_time(file) - std::chrono::hours(1);
  fs::last_write_time(file, made);
  EXPECT_EQ(states_of("bert", int8), wanted);
  EXPECT_EQ(fs::last_write_time(file), made) << "it was made again";
  const std::vector<float> fp32 = states_of("bert", {});
  EXPECT_EQ(states_of("bert", {.cache = cache}), fp32);
  EXPECT_GE(files(), ops::packed_layout(DType::f32, context.device()).empty() ? 1 : 2);
}

TEST_F(BertInt8, NamesAWeightThatIsNotFinite) {
  const SafetensorsFile file(folder_of("bert") / "model.safetensors");
  std::vector<std::vector<std::byte>> copies;
  std::vector<BertTensor> tensors;
  for (const SafetensorsEntry& entry : file.entries()) {
    const auto bytes = file.bytes(entry);
    copies.emplace_back(bytes.begin(), bytes.end());
    if (entry.name.ends_with("encoder.layer.1.intermediate.dense.weight")) {
      const float infinity = INFINITY;
      std::memcpy(copies.back().data() + 8, &infinity, sizeof(infinity));
    }
    tensors.push_back({entry.name, entry.stored_dtype, entry.dtype, entry.shape, copies.back()});
  }
  const BertConfig config = read_bert_config(folder_of("bert"));
  try {
    BertWeights(context, config, tensors, {.precision = {.int8 = true}});
    FAIL() << "took an infinite weight";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("layer 1's fc: row 0 of weight has a value that is not finite"),
              std::string::npos)
        << error.what();
  }
}

TEST_F(BertInt8, RunsOnRandomWeights) {
  BertConfig config = read_bert_config(folder_of("bert"));
  for (const float state : hidden_states(
           context,
           std::make_shared<BertWeights>(context, config, BertWeightsOptions{.precision = {.int8 = true}}))) {
    EXPECT_TRUE(std::isfinite(state));
  }
}

TEST(BertInt8Precision, ChooseTheRestByTheProcessor) {
  DeviceInfo device;
  device.cpu.avx2 = device.cpu.avx_vnni = true;
  EXPECT_EQ(int8_precision(device).dtype, DType::f32);
  device.cpu.avx512 = device.cpu.avx512_vnni = device.cpu.avx512_bf16 = true;
  EXPECT_EQ(int8_precision(device).dtype, DType::bf16);
  device.cpu.avx512_fp16 = true;  // its vdpbf16ps is slower than fp32
  EXPECT_EQ(int8_precision(device).dtype, DType::f32);
  device.cpu.amx_bf16 = device.cpu.amx_int8 = true;
  EXPECT_EQ(int8_precision(device).dtype, DType::bf16);
  device.cpu = {.avx2 = true};
  EXPECT_THROW(int8_precision(device), UsageError);
  device.device.kind = DeviceKind::cuda;
  EXPECT_THROW(int8_precision(device), UsageError);
}

}  // namespace
}  // namespace warpwright
