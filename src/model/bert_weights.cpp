#include "model/bert_weights.hpp"

#include <fmt/format.h>

#include <utility>

#include "runtime/host_view.hpp"
#include "runtime/philox.hpp"
#include "runtime/threads.hpp"

namespace warpwright {
namespace {

BertParameters allocate_parameters(const BertConfig& c, const BertPooling& pooling, bool classifier,
                                   const Precision& precision, const BertPackedWeights* packed,
                                   Allocator& allocator) {
  const DType dtype = precision.dtype;
  const auto in = [&](const std::string& name, const Shape& shape, DType as) {
    return allocator.allocate(name, as, shape, Category::parameters);
  };
  const auto vector = [&](const std::string& name) { return in(name, {c.hidden}, dtype); };
  const auto linear = [&](const std::string& name, std::int64_t to, std::int64_t from) {
    return Linear{.weight = in(name + ".weight", {to, from}, dtype), .bias = in(name + ".bias", {to}, dtype)};
  };
  const auto packed_linear = [&](const std::string& name, std::int64_t to, std::int64_t from,
                                 Tensor BertPackedWeights::Layer::*part, std::size_t l) {
    if (!packed) {
      Linear plain = linear(name, to, from);
      plain.int8 = precision.int8;
      return plain;
    }
    return Linear{.weight = Tensor(nullptr, dtype, {to, from}),
                  .bias = in(name + ".bias", {to}, dtype),
                  .packed = packed->layer(l).*part,
                  .int8 = precision.int8};
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
    p.dense.push_back({.weight = in(name + ".weight", {d.out, d.in}, wide),
                       .bias = d.bias ? in(name + ".bias", {d.out}, wide) : Tensor()});
  }
  return p;
}

// Weights N(0, 0.02²), biases 0, normalization 1 and 0.
void randomize(const BertParameters& p) {
  constexpr std::uint32_t kPurpose = 0x42455254;  // its own random stream: "BERT"
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
  const auto linear = [&](const Linear& l) {
    if (!l.packed) matrix(l.weight);
    fill_with(l.bias, 0, 0);
  };
  const auto norm = [&](const Tensor& weight, const Tensor& bias) {
    fill_with(weight, 1, 0);
    fill_with(bias, 0, 0);
  };
  for (const Tensor& table : {p.word, p.position, p.type}) matrix(table);
  norm(p.embnorm_weight, p.embnorm_bias);
  for (const BertBlock& b : p.blocks) {
    for (const Linear& l : {b.qkv, b.attproj, b.fc, b.fcproj}) linear(l);
    norm(b.attnorm_weight, b.attnorm_bias);
    norm(b.outnorm_weight, b.outnorm_bias);
  }
}

}  // namespace

BertWeights::BertWeights(const Context& context, const std::filesystem::path& folder,
                         const BertWeightsOptions& options)
    : config_(read_bert_config(folder)),
      pooling_(read_bert_pooling(folder, config_)),
      precision_(options.precision),
      device_(context.device().device) {
  const BertFile file(folder, config_);
  packed_ = BertPackedWeights::open(context, file, config_, precision_, options.cache);
  allocate(file.has_classifier());
  file.load(parameters());
  for (std::size_t i = 0; i < pooling_.dense.size(); ++i) {
    load_dense(pooling_.dense[i], parameters().dense[i]);
  }
}

BertWeights::BertWeights(const Context& context, const BertConfig& config, std::vector<BertTensor> tensors,
                         const BertWeightsOptions& options)
    : config_(config), precision_(options.precision), device_(context.device().device) {
  config_.validate("the encoder's config");
  const BertFile file(std::move(tensors), "the encoder's tensors", config_);
  packed_ = BertPackedWeights::open(context, file, config_, precision_, {});
  allocate(file.has_classifier());
  file.load(parameters());
}

BertWeights::BertWeights(const Context& context, const BertConfig& config, const BertWeightsOptions& options)
    : config_(config), precision_(options.precision), device_(context.device().device) {
  config_.validate("the encoder's config");
  if (precision_.int8) packed_ = BertPackedWeights::random_int8(context, config_);
  allocate(false);
  randomize(parameters());
}

void BertWeights::allocate(bool classifier) {
  const BertPackedWeights* packed = packed_ ? &*packed_ : nullptr;
  parameters_.emplace([=, this](Allocator& allocator) {
    return allocate_parameters(config_, pooling_, classifier, precision_, packed, allocator);
  });
  parameters_->take(device_);
}

}  // namespace warpwright
