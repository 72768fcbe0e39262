// Names, shapes and initial values of a GPT-2's tensors.
#include <fmt/format.h>

#include <cmath>

#include "model/gpt2.hpp"
#include "runtime/host_view.hpp"
#include "runtime/philox.hpp"
#include "runtime/threads.hpp"

namespace warpwright {
namespace {

// Allocates tensors of one dtype and category whose names share a prefix.
struct Namer {
  Allocator& allocator;
  std::string prefix;
  DType dtype;
  Category category;

  Tensor operator()(std::string_view name, const Shape& shape) const { return (*this)(name, shape, dtype); }
  Tensor operator()(std::string_view name, const Shape& shape, DType as) const {
    return allocator.allocate(prefix + std::string(name), as, shape, category);
  }
};

bool ends_with(const std::string& name, std::string_view suffix) {
  return name.size() >= suffix.size() &&
         name.compare(name.size() - suffix.size(), suffix.size(), suffix) == 0;
}

// Standard deviation of a parameter's initial values; 0 for biases and layer normalization.
double initial_deviation(const GPT2Config& config, const std::string& name) {
  if (ends_with(name, "bias") || name.find("ln_") != std::string::npos) return 0;
  if (ends_with(name, "c_proj.weight")) return 0.02 / std::sqrt(2.0 * static_cast<double>(config.layers));
  return 0.02;
}

template <class T>
void fill(const Tensor& tensor, std::int64_t count, const PhiloxStream& stream, double mean,
          double deviation) {
  T* data = tensor.as<T>();
#pragma omp parallel for schedule(static) num_threads(claimed_threads())
  for (std::int64_t i = 0; i < count; ++i) {
    const double value =
        deviation == 0 ? mean : mean + deviation * stream.normal(static_cast<std::uint64_t>(i));
    if constexpr (sizeof(T) == 2) {
      data[i] = T(static_cast<float>(value));
    } else {
      data[i] = static_cast<T>(value);
    }
  }
}

// Places for the columns of a normalization whose input cannot be restored from its output (in bf16 those
// with |bias| > 32·|weight|) and is therefore kept. A training starts with none, and no trained GPT-2 comes
// near this number; with more, the gradient is NaN.
std::int64_t kept_columns(const GPT2Config& config) {
  return (config.channels + 15) / 16;
}

GPT2BlockActivations allocate_block(const GPT2Config& config, const DecoderBatch& batch, bool training,
                                    const Namer& in, NormBackwardFrom norms = NormBackwardFrom::input) {
  const std::int64_t N = batch.tokens.shape[0], C = config.channels, NH = config.heads,
                     HS = config.head_size();
  const Shape rows{N, C};
  const DType statistics = ops::accumulation_dtype(in.dtype);
  GPT2BlockActivations b;
  b.ln1 = in("ln1", rows);
  b.qkv = in("qkv", {N, 3, NH, HS});
  b.att = in("att", {N, NH, HS});
  b.residual_mid = in("residual_mid", rows);
  b.ln2 = in("ln2", rows);
  b.fc = in("fc", {N, 4 * C});
  b.residual = in("residual", rows);
  if (training) {
    b.fc_preact = in("fc_preact", {N, 4 * C});
    b.ln1_mean = in("ln1_mean", {N}, statistics);
    b.ln1_rstd = in("ln1_rstd", {N}, statistics);
    b.ln2_mean = in("ln2_mean", {N}, statistics);
    b.ln2_rstd = in("ln2_rstd", {N}, statistics);
    b.lse = in("lse", {NH, N}, statistics);
    if (norms == NormBackwardFrom::output) {
      const std::int64_t K = kept_columns(config);
      b.ln1_lost.columns = in("ln1_columns", {1 + K}, DType::i32);
      b.ln1_lost.x = in("ln1_kept", {N, K});
      b.ln2_lost.columns = in("ln2_columns", {1 + K}, DType::i32);
      b.ln2_lost.x = in("ln2_kept", {N, K});
    }
  }
  return b;
}

// The tensors that the backward of a block computes again.
GPT2BlockActivations allocate_again(const GPT2Config& config, const DecoderBatch& batch, Recompute recompute,
                                    const Namer& in) {
  if (recompute == Recompute::block) return allocate_block(config, batch, true, in);
  const std::int64_t N = batch.tokens.shape[0], C = config.channels;
  GPT2BlockActivations again;
  if (recompute != Recompute::none) again.fc = in("fc", {N, 4 * C});
  if (recompute == Recompute::norm) {
    again.ln1 = in("ln1", {N, C});
    again.ln2 = in("ln2", {N, C});
  }
  return again;
}

}  // namespace

DecoderParameters allocate_parameters(const GPT2Config& config, DType dtype, Category category,
                                      std::string_view prefix, Allocator& allocator) {
  const std::int64_t C = config.channels;
  const DType norms = ops::accumulation_dtype(dtype);
  DecoderParameters p;
  const auto add = [&](const std::string& name, const Shape& shape, DType as) {
    p.append(name, allocator.allocate(std::string(prefix) + name, as, shape, category));
  };
  const auto norm = [&](const std::string& name) {
    add(name + ".weight", {C}, norms);
    add(name + ".bias", {C}, norms);
  };
  const auto linear = [&](const std::string& name, std::int64_t out, std::int64_t in) {
    add(name + ".weight", {out, in}, dtype);
    add(name + ".bias", {out}, dtype);
  };
  add("wte.weight", {config.padded_vocab(), C}, dtype);
  add("wpe.weight", {config.context, C}, dtype);
  for (std::int64_t l = 0; l < config.layers; ++l) {
    const std::string block = fmt::format("h.{}.", l);
    norm(block + "ln_1");
    linear(block + "attn.c_attn", 3 * C, C);
    linear(block + "attn.c_proj", C, C);
    norm(block + "ln_2");
    linear(block + "mlp.c_fc", 4 * C, C);
    linear(block + "mlp.c_proj", C, 4 * C);
  }
  norm("ln_f");
  return p;
}

std::vector<ParameterShape> parameter_shapes(const GPT2Config& config) {
  Recorder recorder;
  std::vector<ParameterShape> shapes;
  for (const auto& [name, t] : allocate_parameters(config, DType::f32, Category::parameters, "", recorder)) {
    shapes.push_back({name, t.shape});
  }
  return shapes;
}

GPT2Parameters gpt2_parameters(const GPT2Config& config, const DecoderParameters& parameters) {
  auto next = parameters.begin();
  const auto take = [&] { return (next++)->tensor; };  // in the order of allocate_parameters
  GPT2Parameters p;
  p.wte = take();
  p.wpe = take();
  for (std::int64_t l = 0; l < config.layers; ++l) {
    p.blocks.push_back({.ln1_weight = take(),
                        .ln1_bias = take(),
                        .qkv_weight = take(),
                        .qkv_bias = take(),
                        .attproj_weight = take(),
                        .attproj_bias = take(),
                        .ln2_weight = take(),
                        .ln2_bias = take(),
                        .fc_weight = take(),
                        .fc_bias = take(),
                        .fcproj_weight = take(),
                        .fcproj_bias = take()});
  }
  p.lnf_weight = take();
  p.lnf_bias = take();
  return p;
}

void initialize(const GPT2Config& config, std::uint64_t seed, const ParameterWriter& write) {
  constexpr std::uint32_t kInitialization = 0x494e4954;  // its own random stream: "INIT"
  std::uint32_t index = 0;
  for (const auto& [name, shape] : parameter_shapes(config)) {
    const PhiloxStream stream(seed, kInitialization, index);
    const double mean = name.find("ln_") != std::string::npos && ends_with(name, "weight") ? 1 : 0;
    const double deviation = initial_deviation(config, name);
    const std::int64_t count = name == "wte.weight" ? config.vocab * config.channels : shape.elements();
    write(index++, [&](const Tensor& host) {
      visit_dtype(host.dtype, [&](auto tag) {
        fill<typename decltype(tag)::type>(host, count, stream, mean, deviation);
      });
    });
  }
}

GPT2Activations allocate_activations(const GPT2Config& config, const DecoderBatch& batch, DType dtype,
                                     Purpose purpose, Allocator& allocator, NormBackwardFrom norms) {
  const std::int64_t N = batch.tokens.shape[0];
  const Shape rows{N, config.channels};
  const DType statistics = ops::accumulation_dtype(dtype);
  const bool training = purpose == Purpose::training;
  GPT2Activations a;
  const Namer top{.allocator = allocator, .prefix = "", .dtype = dtype, .category = Category::activations};
  a.embedding = top("embedding", rows);
  for (std::int64_t l = 0; l < config.layers; ++l) {
    const Namer in{.allocator = allocator,
                   .prefix = fmt::format("h.{}.", l),
                   .dtype = dtype,
                   .category = Category::activations};
    a.blocks.push_back(allocate_block(config, batch, training, in, norms));
  }
  a.lnf = top("lnf", rows);
  if (training) {
    a.lnf_mean = top("lnf_mean", {N}, statistics);
    a.lnf_rstd = top("lnf_rstd", {N}, statistics);
    if (norms == NormBackwardFrom::output) {
      a.lnf_lost.columns = top("lnf_columns", {1 + kept_columns(config)}, DType::i32);
      a.lnf_lost.x = top("lnf_kept", {N, kept_columns(config)});
    }
  }
  return a;
}

GPT2Activations narrow(const GPT2Activations& a, std::int64_t n) {
  const auto rows = [n](const Tensor& t) { return t ? t.slice(0, 0, n) : t; };
  GPT2Activations result;
  result.embedding = rows(a.embedding);
  for (const GPT2BlockActivations& b : a.blocks) {
    GPT2BlockActivations r;
    r.ln1 = rows(b.ln1);
    r.att = rows(b.att);
    r.residual_mid = rows(b.residual_mid);
    r.ln2 = rows(b.ln2);
    r.fc = rows(b.fc);
    r.residual = rows(b.residual);
    r.qkv = rows(b.qkv);
    result.blocks.push_back(r);
  }
  result.lnf = rows(a.lnf);
  return result;
}

GPT2BackwardBuffers allocate_backward(const GPT2Config& config, const DecoderBatch& batch, DType dtype,
                                      Recompute recompute, Allocator& allocator) {
  const std::int64_t N = batch.tokens.shape[0], C = config.channels, NH = config.heads,
                     HS = config.head_size();
  const Namer top{.allocator = allocator, .prefix = "", .dtype = dtype, .category = Category::activations};
  GPT2BackwardBuffers d;
  d.dlnf = top("dlnf", {N, C});
  d.dresidual = top("dresidual", {N, C});
  for (std::int64_t l = 0; l < config.layers; ++l) {
    const Namer in{.allocator = allocator,
                   .prefix = fmt::format("h.{}.", l),
                   .dtype = dtype,
                   .category = Category::activations};
    const Namer again{.allocator = allocator,
                      .prefix = fmt::format("again.h.{}.", l),
                      .dtype = dtype,
                      .category = Category::activations};
    d.blocks.push_back({.dfc = in("dfc", {N, 4 * C}),
                        .dln2 = in("dln2", {N, C}),
                        .datt = in("datt", {N, NH, HS}),
                        .dqkv = in("dqkv", {N, 3, NH, HS}),
                        .dln1 = in("dln1", {N, C}),
                        .again = allocate_again(config, batch, recompute, again)});
  }
  return d;
}

}  // namespace warpwright
