// Compares the whole model with PyTorch in float64 (tests/goldens/make_goldens.py) and with finite
// differences.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>

#include "model/gpt2_decoder.hpp"
#include "ops/element.hpp"
#include "ops/registry.hpp"
#include "runtime/host_view.hpp"
#include "tests/golden.hpp"

namespace warpwright {
namespace {

struct Golden {
  nlohmann::json spec;
  GPT2Config sizes;
  StepOptions options;

  Golden(const std::string& name, DType dtype) {
    std::ifstream(golden::kFolder / (name + ".json")) >> spec;
    GPT2Config& m = sizes;
    m.layers = spec["layers"];
    m.heads = spec["heads"];
    m.channels = spec["channels"];
    m.vocab = spec["vocab"];
    m.context = spec["T"];
    m.activation = spec["activation"] == "gelu" ? ops::Activation::gelu_erf : ops::Activation::gelu_tanh;
    options = golden::options_of(spec, std::make_shared<GPT2Decoder>(sizes), dtype);
  }
};

// Draws the weights as make_goldens.py does: 24-bit integers scaled by a power of two.
void draw_parameters(const GPT2Config& config, DType rounding, const ParameterWriter& write) {
  std::uint32_t index = 0;
  for (const ParameterShape& parameter : parameter_shapes(config.description())) {
    const bool norm_weight = parameter.kind == ParameterKind::norm_weight;
    const std::int64_t count = parameter.kind == ParameterKind::vocabulary ? config.vocab * config.channels
                                                                           : parameter.shape.elements();
    write(index, [&](const Tensor& host) {
      for (std::int64_t i = 0; i < count; ++i) {
        ops::store_element(host, i, golden::drawn(i, index, 0x1p-3, norm_weight ? 1 : 0, rounding));
      }
    });
    ++index;
  }
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

TEST_P(GoldenTest, LogitsLossAndEveryGradient) {
  const auto& [name, dtype, device, products] = GetParam();
  const Golden model(name, dtype);
  const std::string kind(name_of(dtype));
  const SafetensorsFile file(golden::kFolder / (name + ".safetensors"));
  const nlohmann::json& expected = model.spec[kind];
  const golden::Bound bound{dtype};
  Context context(GetParam().options(), {device, 0});
  TrainingStep step(context, model.options);
  step.allocate();
  const auto& t = step.tensors();
  const GPT2Config& m = model.sizes;
  draw_parameters(m, dtype, step.full_precision());

  const double N = static_cast<double>(model.options.B * model.options.T);
  golden::draw_batch(model.options, 0, step.host_batch());
  const double loss = step.forward() / N;
  EXPECT_LE(golden::relative_error(t.pass->logits(), context.stream(), golden::tensor(file, kind + ".logits"),
                                   m.vocab, model.options.model->padded_vocab()),
            bound(expected["error"]["logits"]));
  EXPECT_NEAR(loss, expected["loss"], bound(expected["error"]["loss"]) * expected["loss"].get<double>());

  step.begin();
  golden::draw_batch(model.options, 0, step.host_batch());
  step.forward_backward();
  context.synchronize();
  for (const auto& [parameter, gradient] : t.gradients.front()) {
    const std::vector<float> wanted = golden::tensor(file, kind + "." + parameter);
    EXPECT_LE(golden::relative_error(gradient, context.stream(), wanted, 1, 1),
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
  const Golden model(name, dtype);
  const nlohmann::json& expected = model.spec[std::string(name_of(dtype))];
  Context context(GetParam().options(), {device, 0});
  TrainingStep step(context, model.options);
  step.allocate();
  draw_parameters(model.sizes, dtype, step.full_precision());
  const double N = static_cast<double>(model.options.B * model.options.T);
  double worst = 0;
  for (std::int64_t i = 0; i < model.spec["steps"].get<std::int64_t>(); ++i) {
    step.begin();
    golden::draw_batch(model.options, i, step.host_batch());
    step.forward_backward();
    step.gradient_norm();
    const double loss = step.collect().loss_sum / N;
    const double wanted = expected["losses"][static_cast<std::size_t>(i)];
    worst = std::max(worst, std::abs(loss - wanted) / wanted);
    step.update(model.spec["lr"], i + 1);
  }
  EXPECT_LE(worst, golden::Bound{dtype}(expected["trajectory_error"], 1e-4));
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
  golden::draw_batch(options, 0, step.host_batch());
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
