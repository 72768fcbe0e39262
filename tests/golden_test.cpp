// Compares the whole model with PyTorch in float64 (tests/goldens/make_goldens.py) and with finite
// differences.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "model/gpt2.hpp"
#include "model/gpt2_decoder.hpp"
#include "model/safetensors.hpp"
#include "ops/element.hpp"
#include "ops/registry.hpp"
#include "runtime/host_view.hpp"
#include "runtime/philox.hpp"
#include "train/step.hpp"

namespace warpwright {
namespace {

const std::filesystem::path kGoldens = std::filesystem::path(WARPWRIGHT_SOURCE_DIR) / "tests" / "goldens";
constexpr std::uint32_t kTokens = 1000;  // the Philox stream of the tokens in make_goldens.py

std::uint32_t first_word(std::uint64_t index, std::uint32_t purpose) {
  return PhiloxStream(0, purpose).block(index)[0];
}

struct Golden {
  nlohmann::json spec;
  GPT2Config sizes;
  StepOptions options;

  Golden(const std::string& name, DType dtype) {
    std::ifstream(kGoldens / (name + ".json")) >> spec;
    GPT2Config& m = sizes;
    m.layers = spec["layers"];
    m.heads = spec["heads"];
    m.channels = spec["channels"];
    m.vocab = spec["vocab"];
    m.context = spec["T"];
    m.activation = spec["activation"] == "gelu" ? ops::Activation::gelu_erf : ops::Activation::gelu_tanh;
    options.model = std::make_shared<GPT2Decoder>(sizes);
    options.dtype = dtype;
    options.B = spec["B"];
    options.T = spec["T"];
    options.clip = spec["clip"];
    options.beta1 = spec["beta1"];
    options.beta2 = spec["beta2"];
    options.eps = spec["eps"];
    options.weight_decay = spec["weight_decay"];
  }
};

// Draws the weights as make_goldens.py does: 24-bit integers scaled by a power of two.
void draw_parameters(const GPT2Config& config, DType rounding, const ParameterWriter& write) {
  std::uint32_t index = 0;
  for (const auto& [name, shape] : parameter_shapes(config)) {
    const bool norm_weight =
        name.find("ln_") != std::string::npos && name.substr(name.size() - 6) == "weight";
    const std::int64_t count = name == "wte.weight" ? config.vocab * config.channels : shape.elements();
    write(index, [&](const Tensor& host) {
      for (std::int64_t i = 0; i < count; ++i) {
        const double uniform =
            (static_cast<double>(first_word(static_cast<std::uint64_t>(i), index) >> 8) - 0x1p23) * 0x1p-23;
        const auto value = static_cast<float>(uniform * 0x1p-3 + (norm_weight ? 1 : 0));
        ops::store_element(
            host, i, static_cast<double>(rounding == DType::bf16 ? static_cast<float>(bf16(value)) : value));
      }
    });
    ++index;
  }
}

void draw_batch(const StepOptions& o, std::int64_t step, const TrainingStep::HostBatch& batch) {
  const std::int64_t N = o.B * o.T;
  const auto id = [&](std::int64_t i) {
    const auto index = static_cast<std::uint64_t>(step * (N + 1) + i);
    return static_cast<std::int32_t>(first_word(index, kTokens) %
                                     static_cast<std::uint32_t>(o.model->vocab()));
  };
  for (std::int64_t n = 0; n < N; ++n) {
    batch.tokens.as<std::int32_t>()[n] = id(n);
    batch.targets.as<std::int32_t>()[n] = id(n + 1);
  }
}

std::vector<float> golden_tensor(const SafetensorsFile& file, const std::string& name) {
  const SafetensorsEntry* entry = file.find(name);
  const auto bytes = file.bytes(*entry);
  std::vector<float> values(bytes.size() / sizeof(float));
  std::memcpy(values.data(), bytes.data(), bytes.size());
  return values;
}

// ‖ours − golden‖ / ‖golden‖ over the first columns of each row. The other columns are padding.
double relative_error(const Tensor& on_device, const Stream& stream, const std::vector<float>& golden,
                      std::int64_t columns, std::int64_t stride) {
  const HostView view = downloaded(on_device, stream);
  const Tensor& ours = view.tensor();
  double error = 0, norm = 0;
  for (std::size_t i = 0; i < golden.size(); ++i) {
    const auto n = static_cast<std::int64_t>(i);
    const double difference =
        ops::load_element(ours, n / columns * stride + n % columns) - static_cast<double>(golden[i]);
    error += difference * difference;
    norm += static_cast<double>(golden[i]) * static_cast<double>(golden[i]);
  }
  return std::sqrt(error / norm);
}

// products: the kernel that computes the matrix products, if it is not the chosen one.
struct Run {
  std::string model;
  DType dtype;
  DeviceKind device;
  std::string products;

  ContextOptions options() const {
    ContextOptions options;
    if (!products.empty()) options.force = {{"matmul", products}};
    return options;
  }
};

constexpr char kDot[] = "cpu.avx512_bf16";

std::vector<Run> runs() {
  std::vector<Run> list;
  for (const char* model : {"small", "odd"}) {
    for (const DType dtype : {DType::f32, DType::bf16}) {
      for (const DeviceKind device : {DeviceKind::cpu, DeviceKind::cuda})
        list.push_back({model, dtype, device, ""});
    }
    list.push_back({model, DType::bf16, DeviceKind::cpu, kDot});
  }
  return list;
}

class GoldenTest : public ::testing::TestWithParam<Run> {
 protected:
  void SetUp() override {
    if (GetParam().device == DeviceKind::cuda && cuda_device_count() == 0) {
      GTEST_SKIP() << "needs an NVIDIA GPU";
    }
    const std::string missing = ops::refuse_device(ops::Needs::avx512_bf16, cpu_device_info());
    if (GetParam().products == kDot && !missing.empty()) GTEST_SKIP() << missing;
  }
};

std::string golden_name(const ::testing::TestParamInfo<Run>& info) {
  const auto& [model, dtype, device, products] = info.param;
  const std::string place = device == DeviceKind::cuda ? "cuda"
                            : products.empty()         ? "cpu"
                                                       : "cpu_avx512_bf16";
  return fmt::format("{}_{}_{}", model, name_of(dtype), place);
}

// The error must be at most twice PyTorch's own error in the same dtype, plus one ulp. A scalar or short
// vector can be off by this much by chance. In fp32 it must also be below 1e-5 (losses of the steps: 1e-4).
struct Bound {
  DType dtype;
  double operator()(double pytorch_error, double most = 1e-5) const {
    const double bound = 2 * pytorch_error + epsilon_of(dtype);
    return dtype == DType::f32 ? std::min(bound, most) : bound;
  }
};

TEST_P(GoldenTest, LogitsLossAndEveryGradient) {
  const auto& [name, dtype, device, products] = GetParam();
  const Golden golden(name, dtype);
  const std::string kind(name_of(dtype));
  const SafetensorsFile file(kGoldens / (name + ".safetensors"));
  const nlohmann::json& expected = golden.spec[kind];
  const Bound bound{dtype};
  Context context(GetParam().options(), {device, 0});
  TrainingStep step(context, golden.options);
  step.allocate();
  const auto& t = step.tensors();
  const GPT2Config& m = golden.sizes;
  draw_parameters(m, dtype, step.full_precision());

  const double N = static_cast<double>(golden.options.B * golden.options.T);
  draw_batch(golden.options, 0, step.host_batch());
  const double loss = step.forward() / N;
  EXPECT_LE(relative_error(t.pass->logits(), context.stream(), golden_tensor(file, kind + ".logits"), m.vocab,
                           m.padded_vocab()),
            bound(expected["error"]["logits"]));
  EXPECT_NEAR(loss, expected["loss"], bound(expected["error"]["loss"]) * expected["loss"].get<double>());

  step.begin();
  draw_batch(golden.options, 0, step.host_batch());
  step.forward_backward();
  context.synchronize();
  for (const auto& [parameter, gradient] : t.gradients.front()) {
    const std::vector<float> wanted = golden_tensor(file, kind + "." + parameter);
    EXPECT_LE(relative_error(gradient, context.stream(), wanted, 1, 1),
              bound(expected["error"]["gradients"][parameter]))
        << parameter;
    const HostView host = downloaded(gradient, context.stream());
    for (auto i = static_cast<std::int64_t>(wanted.size()); i < gradient.elements(); ++i) {
      ASSERT_EQ(ops::load_element(host.tensor(), i), 0) << "padding of " << parameter;
    }
  }
}

TEST_P(GoldenTest, TenOptimizerSteps) {
  const auto& [name, dtype, device, products] = GetParam();
  const Golden golden(name, dtype);
  const nlohmann::json& expected = golden.spec[std::string(name_of(dtype))];
  Context context(GetParam().options(), {device, 0});
  TrainingStep step(context, golden.options);
  step.allocate();
  draw_parameters(golden.sizes, dtype, step.full_precision());
  const double N = static_cast<double>(golden.options.B * golden.options.T);
  double worst = 0;
  for (std::int64_t i = 0; i < golden.spec["steps"].get<std::int64_t>(); ++i) {
    step.begin();
    draw_batch(golden.options, i, step.host_batch());
    step.forward_backward();
    step.gradient_norm();
    const double loss = step.collect().loss_sum / N;
    const double wanted = expected["losses"][static_cast<std::size_t>(i)];
    worst = std::max(worst, std::abs(loss - wanted) / wanted);
    step.update(golden.spec["lr"], i + 1);
  }
  EXPECT_LE(worst, Bound{dtype}(expected["trajectory_error"], 1e-4));
}

INSTANTIATE_TEST_SUITE_P(PyTorch, GoldenTest, ::testing::ValuesIn(runs()), golden_name);

// Runs the whole small model in fp64 on the reference variants. Its backward must be the derivative of its
// loss.
TEST(WholeModel, GradientsMatchFiniteDifferences) {
  ContextOptions forced;
  for (const ops::OpInfo& op : ops::all_ops(cpu_device_info()))
    forced.force[std::string(op.name)] = std::string(ops::kReference);
  Context context(forced);
  StepOptions options;
  const GPT2Config sizes{.layers = 2, .heads = 2, .channels = 8, .vocab = 11, .context = 6};
  options.model = std::make_shared<GPT2Decoder>(sizes);
  options.dtype = DType::f64;
  options.B = 2;
  options.T = 5;
  TrainingStep step(context, options);
  step.allocate();
  draw_parameters(sizes, DType::f64, step.full_precision());
  draw_batch(options, 0, step.host_batch());
  step.begin();
  step.forward_backward();
  const auto& t = step.tensors();
  const double N = static_cast<double>(options.B * options.T);
  for (const auto& [name, p] : t.parameters) {
    const Tensor& gradient = t.gradients.front().at(name);
    const std::int64_t stride = std::max<std::int64_t>(1, p.elements() / 7);
    for (std::int64_t i = 0; i < p.elements(); i += stride) {
      constexpr double h = 1e-5;
      double& x = p.as<double>()[i];
      const double kept = x;
      x = kept + h;
      const double above = step.forward() / N;
      x = kept - h;
      const double below = step.forward() / N;
      x = kept;
      EXPECT_NEAR((above - below) / (2 * h), gradient.as<double>()[i], 1e-8) << name << " element " << i;
    }
  }
}

}  // namespace
}  // namespace warpwright
