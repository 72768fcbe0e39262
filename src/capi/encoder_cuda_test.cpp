// An encoder's masks, bias and temperature through the C ABI on a GPU: the same call on a CPU gives the
// values and the messages.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "runtime/device.hpp"
#include "runtime/host_view.hpp"
#include "warpwright/warpwright.h"

namespace warpwright {
namespace {

constexpr std::int64_t kSequences = 3, kLength = 6, kPairs = kLength * kLength;
constexpr std::int32_t kIds[] = {5, 6, 52, 7, 9, 10, 11, 12, 13, 14, 15}, kBounds[] = {0, 4, 9, 11};
constexpr std::int64_t kTokens = 11;

struct Destroy {
  void operator()(warpwright_context* context) const { warpwright_context_destroy(context); }
  void operator()(warpwright_encoder* encoder) const { warpwright_encoder_destroy(encoder); }
};

// A test model on one device.
class Model {
 public:
  explicit Model(Device device) : device_(device), stream_(Stream::borrowed(device, nullptr)) {
    const bool gpu = device.kind == DeviceKind::cuda;
    const warpwright_context_options options = {
        .size = sizeof options,
        .device = gpu ? WARPWRIGHT_DEVICE_CUDA : WARPWRIGHT_DEVICE_CPU,
        .device_index = device.index,
        .threads = gpu ? 0 : 1,
        .reserved = 0,
        .log = nullptr,
        .log_data = nullptr};
    warpwright_context* context = nullptr;
    EXPECT_EQ(warpwright_context_create(&options, &context), WARPWRIGHT_OK) << warpwright_last_error();
    context_.reset(context);
    warpwright_encoder_options of_encoder = {};
    of_encoder.size = sizeof of_encoder;
    of_encoder.folder = WARPWRIGHT_BERT;
    of_encoder.dtype = WARPWRIGHT_F32;
    of_encoder.max_batch_tokens = 64;
    warpwright_encoder* encoder = nullptr;
    EXPECT_EQ(warpwright_encoder_create(context, &of_encoder, &encoder), WARPWRIGHT_OK)
        << warpwright_last_error();
    encoder_.reset(encoder);
    info_.size = sizeof info_;
    EXPECT_EQ(warpwright_encoder_get_info(encoder, &info_), WARPWRIGHT_OK);
  }

  const warpwright_encoder_info& info() const { return info_; }

  // The numbers on the device, for as long as the model lives.
  Tensor tensor(const std::vector<float>& numbers) {
    const auto count = static_cast<std::int64_t>(numbers.size());
    memory_.emplace_back(numbers.size() * sizeof(float), device_, "a test's tensor");
    const Tensor made(memory_.back().data(), DType::f32, {count}, device_);
    write_on_host(made, stream_,
                  [&](const Tensor& host) { std::copy(numbers.begin(), numbers.end(), host.as<float>()); });
    return made;
  }

  // The last hidden states of three packed sequences.
  std::vector<float> hidden(const warpwright_encoder_attention& attention) {
    const auto count = static_cast<std::size_t>(kTokens * info_.hidden_size);
    const Tensor out = tensor(std::vector<float>(count, NAN));
    warpwright_encoder_tokens_args args = {};
    args.size = sizeof args;
    args.sequences = kSequences;
    args.ids = kIds;
    args.cu_seqlens = kBounds;
    args.out = out.data;
    args.result = WARPWRIGHT_HIDDEN;
    args.attention = &attention;
    status_ = warpwright_encoder_tokens(encoder_.get(), &args);
    if (status_ == WARPWRIGHT_OK) status_ = warpwright_encoder_check_mask(encoder_.get());
    const HostView host = downloaded(out, stream_);
    const auto* values = host.tensor().as<float>();
    return {values, values + count};
  }
  std::string refusal(const warpwright_encoder_attention& attention) {
    hidden(attention);
    EXPECT_EQ(status_, WARPWRIGHT_INVALID_ARGUMENT);
    return warpwright_last_error();
  }
  warpwright_status status() const { return status_; }

 private:
  Device device_;
  Stream stream_;
  std::deque<Buffer> memory_;
  std::unique_ptr<warpwright_context, Destroy> context_;
  std::unique_ptr<warpwright_encoder, Destroy> encoder_;
  warpwright_encoder_info info_ = {};
  warpwright_status status_ = WARPWRIGHT_OK;
};

// Two of three keys are visible, and a different bias for every pair.
std::vector<float> mask_for_pairs() {
  std::vector<float> mask;
  for (std::int64_t i = 0; i < kSequences * kPairs; ++i) mask.push_back(i * 7 % 3 != 0);
  return mask;
}
std::vector<float> bias_for(std::int64_t matrices) {
  std::vector<float> bias;
  for (std::int64_t i = 0; i < matrices * kPairs; ++i) {
    bias.push_back(static_cast<float>(i * 13 % 29) / 10 - 1);
  }
  return bias;
}

warpwright_encoder_attention with_mask(const Tensor& mask) {
  warpwright_encoder_attention attention = {};
  attention.size = sizeof attention;
  attention.temperature = 1;
  attention.mask = mask.data;
  attention.mask_rank = 4;
  attention.mask_dtype = WARPWRIGHT_F32;
  attention.mask_on_device = 1;
  const std::int64_t shape[] = {kSequences, 1, kLength, kLength};
  std::copy(std::begin(shape), std::end(shape), attention.mask_shape);
  return attention;
}

class EncoderAttention : public ::testing::Test {
 protected:
  void SetUp() override {
    if (cuda_device_count() == 0) GTEST_SKIP() << "needs an NVIDIA GPU";
  }
};

TEST_F(EncoderAttention, CudaGivesTheValuesOfTheCpu) {
  Model cpu({}), gpu({DeviceKind::cuda, 0});
  ASSERT_EQ(cpu.status(), WARPWRIGHT_OK);
  const std::int64_t heads = cpu.info().heads;
  const auto expect_equal = [&](auto&& attention_of, const std::string& what) {
    std::vector<float> wanted = cpu.hidden(attention_of(cpu));
    const std::vector<float> got = gpu.hidden(attention_of(gpu));
    EXPECT_EQ(cpu.status(), WARPWRIGHT_OK) << what;
    EXPECT_EQ(gpu.status(), WARPWRIGHT_OK) << what << ": " << warpwright_last_error();
    float worst = 0;
    for (std::size_t i = 0; i < wanted.size(); ++i) {
      const float error = std::abs(got[i] - wanted[i]) / (1 + std::abs(wanted[i]));
      worst = error <= worst ? worst : error;  // keeps a NaN
    }
    EXPECT_LE(worst, 1e-5f) << what;
    return wanted;
  };
  const auto masked = [&](Model& model) { return with_mask(model.tensor(mask_for_pairs())); };
  const std::vector<float> plain = expect_equal(masked, "mask");
  for (const bool each : {false, true}) {
    const auto changed = expect_equal(
        [&](Model& model) {
          warpwright_encoder_attention attention = masked(model);
          attention.bias = model.tensor(bias_for((each ? kSequences : 1) * heads)).data;
          attention.bias_rank = each ? 4 : 3;
          std::int64_t* axis = attention.bias_shape;
          if (each) *axis++ = kSequences;
          *axis++ = heads, *axis++ = kLength, *axis++ = kLength;
          return attention;
        },
        each ? "mask and a bias for each sequence" : "mask and bias");
    EXPECT_NE(changed, plain);
  }
  const auto cooler = expect_equal(
      [&](Model& model) {
        warpwright_encoder_attention attention = masked(model);
        attention.temperature = 0.5;
        return attention;
      },
      "mask and temperature");
  EXPECT_NE(cooler, plain);
}

TEST_F(EncoderAttention, CudaRefusesWithTheWordsOfTheCpu) {
  Model cpu({}), gpu({DeviceKind::cuda, 0});
  const auto expect_equal = [&](auto&& attention_of) {
    const std::string wanted = cpu.refusal(attention_of(cpu));
    EXPECT_EQ(gpu.refusal(attention_of(gpu)), wanted);
    EXPECT_NE(wanted, "");
  };
  for (const float odd : {0.5f, NAN}) {  // a GPU finds these after the call
    expect_equal([&](Model& model) {
      std::vector<float> mask = mask_for_pairs();
      mask[8] = odd;
      return with_mask(model.tensor(mask));
    });
  }
  expect_equal([&](Model& model) {
    warpwright_encoder_attention attention = with_mask(model.tensor(mask_for_pairs()));
    attention.mask_shape[1] = 2;
    return attention;
  });
  expect_equal([&](Model& model) {
    warpwright_encoder_attention attention = with_mask(model.tensor(mask_for_pairs()));
    attention.temperature = 0;
    return attention;
  });
  expect_equal([&](Model& model) {
    warpwright_encoder_attention attention = with_mask(model.tensor(mask_for_pairs()));
    attention.bias = model.tensor(bias_for(model.info().heads + 1)).data;
    attention.bias_rank = 3;
    const std::int64_t shape[] = {model.info().heads + 1, kLength, kLength};
    std::copy(std::begin(shape), std::end(shape), attention.bias_shape);
    return attention;
  });
}

}  // namespace
}  // namespace warpwright
