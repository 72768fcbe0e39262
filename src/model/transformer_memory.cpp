// Names, shapes and initial values of a transformer's tensors.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "model/transformer.hpp"
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

// Columns of the product after norm2: one product makes gate and up.
std::int64_t fc_columns(const TransformerDescription& d) {
  return d.gate ? 2 * d.hidden : d.hidden;
}

std::int64_t window_of(const TransformerDescription& d, std::int64_t layer) {
  return d.windows.empty() ? 0 : d.windows[static_cast<std::size_t>(layer)];
}
// The last of these keys that a layer's query sees.
std::int64_t keys_in_layer(const TransformerDescription& d, std::int64_t layer, std::int64_t keys) {
  const std::int64_t window = window_of(d, layer);
  return window > 0 ? std::min(window, keys) : keys;
}

double initial_deviation(const TransformerDescription& d, ParameterKind kind) {
  switch (kind) {
    case ParameterKind::vocabulary:
    case ParameterKind::positions:
    case ParameterKind::weight:
      return 0.02;
    case ParameterKind::projection:
      return 0.02 / std::sqrt(2.0 * static_cast<double>(d.layers));
    default:
      return 0;
  }
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

// Places for the columns of a normalization whose input cannot be restored from its output and is therefore
// kept: in bf16 those with |bias| > 32·|weight|, and without a bias those with a weight of 0. A training
// starts with none, and no trained GPT-2 comes near this number; with more, the gradient is NaN.
std::int64_t kept_columns(const TransformerDescription& d) {
  return (d.channels + 15) / 16;
}

NormActivations allocate_norm(const TransformerDescription& d, std::int64_t N, bool training,
                              NormBackwardFrom norms, const std::string& name, const Namer& in) {
  const DType statistics = ops::accumulation_dtype(in.dtype);
  NormActivations t;
  t.out = in(name, {N, d.channels});
  if (!training) return t;
  if (d.layer_norm) t.mean = in(name + "_mean", {N}, statistics);
  t.rstd = in(name + "_rstd", {N}, statistics);
  if (norms == NormBackwardFrom::output) {
    t.lost.columns = in(name + "_columns", {1 + kept_columns(d)}, DType::i32);
    t.lost.x = in(name + "_kept", {N, kept_columns(d)});
  }
  return t;
}

TransformerBlockActivations allocate_block(const TransformerDescription& d, const DecoderBatch& batch,
                                           bool training, const Namer& in,
                                           NormBackwardFrom norms = NormBackwardFrom::input) {
  const std::int64_t N = batch.tokens.shape[0], C = d.channels, NH = d.heads, HS = d.head_size;
  TransformerBlockActivations b;
  b.norm1 = allocate_norm(d, N, training, norms, "norm1", in);
  b.qkv = in("qkv", {N, d.all_heads(), HS});
  if (training && d.qk_norm) {
    b.qk = in("qk", {N, NH + d.key_heads, HS});
    b.qk_rstd = in("qk_rstd", {N, NH + d.key_heads}, ops::accumulation_dtype(in.dtype));
  }
  b.att = in("att", {N, NH, HS});
  b.residual_mid = in("residual_mid", {N, C});
  b.norm2 = allocate_norm(d, N, training, norms, "norm2", in);
  if (training || d.gate) b.fc_preact = in("fc_preact", {N, fc_columns(d)});
  b.fc = in("fc", {N, d.hidden});
  b.residual = in("residual", {N, C});
  if (training) b.lse = in("lse", {NH, N}, ops::accumulation_dtype(in.dtype));
  return b;
}

// The tensors that the backward of a block computes again. With a gate, fc takes the place of its gradient
// dfc.
TransformerBlockActivations allocate_again(const TransformerDescription& d, const DecoderBatch& batch,
                                           Recompute recompute, const Tensor& dfc, const Namer& in) {
  if (recompute == Recompute::block) return allocate_block(d, batch, true, in);
  const std::int64_t N = batch.tokens.shape[0], C = d.channels;
  TransformerBlockActivations again;
  if (recompute != Recompute::none) again.fc = d.gate ? dfc : in("fc", {N, d.hidden});
  if (recompute == Recompute::norm) {
    again.norm1.out = in("norm1", {N, C});
    again.norm2.out = in("norm2", {N, C});
  }
  return again;
}

std::string layer_name(std::string_view prefix, std::int64_t layer) {
  return fmt::format(fmt::runtime(prefix), layer);
}

}  // namespace

std::vector<ParameterShape> parameter_shapes(const TransformerDescription& d) {
  using enum ParameterKind;
  const TransformerNames& n = *d.names;
  const std::int64_t C = d.channels;
  std::vector<ParameterShape> list;
  const auto add = [&](const std::string& name, const Shape& shape, ParameterKind kind) {
    list.push_back({name, shape, kind, {}});
  };
  const auto norm = [&](const std::string& name) {
    add(name + ".weight", {C}, norm_weight);
    if (d.layer_norm) add(name + ".bias", {C}, norm_bias);
  };
  const auto linear = [&](const std::string& name, const std::vector<std::int64_t>& matrices, std::int64_t in,
                          bool with_bias, ParameterKind kind = weight) {
    const std::int64_t out = std::accumulate(matrices.begin(), matrices.end(), std::int64_t{0});
    list.push_back({name + ".weight", {out, in}, kind, matrices});
    if (with_bias) add(name + ".bias", {out}, bias);
  };
  const auto named = [](std::string_view prefix, std::string_view name) {
    return std::string(prefix) + std::string(name);
  };
  const std::int64_t queries = d.heads * d.head_size, keys = d.key_heads * d.head_size;
  const std::vector<std::int64_t> fc(d.gate ? 2 : 1, d.hidden);
  add(named(n.wte, ".weight"), {d.padded_vocab(), C}, vocabulary);
  if (!d.rope) add(named(n.wpe, ".weight"), {d.context, C}, positions);
  for (std::int64_t l = 0; l < d.layers; ++l) {
    const std::string block = layer_name(n.block, l);
    norm(named(block, n.norm1));
    linear(named(block, n.qkv), {queries, keys, keys}, C, d.qkv_bias);
    for (const std::string_view name : {n.q_norm, n.k_norm}) {
      if (d.qk_norm) add(named(block, name) + ".weight", {d.head_size}, norm_weight);
    }
    linear(named(block, n.attproj), {C}, queries, d.attproj_bias, projection);
    norm(named(block, n.norm2));
    linear(named(block, n.fc), fc, C, d.mlp_bias);
    linear(named(block, n.fcproj), {C}, d.hidden, d.mlp_bias, projection);
  }
  norm(std::string(n.norm));
  if (!d.tied_head) add(named(n.head, ".weight"), {d.padded_vocab(), C}, vocabulary);
  return list;
}

LayerParameters layer_parameters(const TransformerDescription& d) {
  const std::size_t biases = std::size_t{d.qkv_bias} + d.attproj_bias + 2 * std::size_t{d.mlp_bias};
  const std::size_t norms = (d.layer_norm ? std::size_t{4} : std::size_t{2}) + 2 * std::size_t{d.qk_norm};
  return {.first = d.rope ? std::size_t{1} : std::size_t{2},
          .each = 4 + norms + biases,
          .layers = static_cast<std::size_t>(d.layers)};
}

LayerMatrices layer_matrices(const TransformerDescription& d) {
  LayerMatrices matrices;
  std::size_t index = 0;
  for (const ParameterShape& parameter : parameter_shapes(d)) {
    if (!parameter.matrices.empty()) matrices[index] = parameter.matrices;
    ++index;
  }
  return matrices;
}

std::vector<ForwardMatrix> forward_matrices(const TransformerDescription& d) {
  std::vector<ForwardMatrix> matrices;
  const std::vector<ParameterShape> shapes = parameter_shapes(d);
  std::optional<std::size_t> norm;  // the last one before the matrix
  const auto add = [&](std::size_t parameter, bool after_norm, std::int64_t first_row = 0) {
    ForwardMatrix matrix{.parameter = parameter, .looked_up = parameter == 0, .first_row = first_row};
    if (after_norm) {
      matrix.norm_weight = norm;
      if (d.layer_norm) matrix.norm_bias = *norm + 1;
    }
    matrices.push_back(matrix);
  };
  for (std::size_t i = 0; i < shapes.size(); ++i) {
    const ParameterShape& parameter = shapes[i];
    const bool of_channels = parameter.shape == Shape{d.channels};  // not of QK norm's heads
    if (parameter.kind == ParameterKind::norm_weight && of_channels) norm = i;
    if (parameter.matrices.empty()) continue;
    const bool is_qkv = parameter.matrices.size() == 3;
    add(i, parameter.kind == ParameterKind::weight,
        is_qkv ? parameter.shape[0] - parameter.matrices.back() : 0);
  }
  add(d.tied_head ? 0 : shapes.size() - 1, true);
  return matrices;
}

std::int64_t parameter_count(const TransformerDescription& d) {
  std::int64_t count = 0;
  for (const ParameterShape& p : parameter_shapes(d)) {
    count += p.kind == ParameterKind::vocabulary ? d.vocab * d.channels : p.shape.elements();
  }
  return count;
}

double flops_per_token(const TransformerDescription& d, std::int64_t T) {
  const auto product = [](std::int64_t a, std::int64_t b) {
    return static_cast<double>(a) * static_cast<double>(b);
  };
  const std::int64_t width = d.heads * d.head_size;
  const double layer = product(d.channels, d.all_heads() * d.head_size + width) +
                       product(d.channels, fc_columns(d) + d.hidden);
  const double matrices = static_cast<double>(d.layers) * layer + product(d.padded_vocab(), d.channels);
  double pairs = 0;  // of a query and a key, two for each that is seen
  for (std::int64_t l = 0; l < d.layers; ++l) {
    const std::int64_t W = keys_in_layer(d, l, T);
    pairs += product(W, 2 * T - W);
  }
  return 6 * matrices + 6 * static_cast<double>(width) * pairs / static_cast<double>(T);
}

double keys_seen(const TransformerDescription& d, std::int64_t keys) {
  double sum = 0;
  for (std::int64_t l = 0; l < d.layers; ++l) sum += static_cast<double>(keys_in_layer(d, l, keys));
  return sum / static_cast<double>(d.layers);
}

DecoderParameters allocate_parameters(const TransformerDescription& d, DType dtype, Category category,
                                      std::string_view prefix, Allocator& allocator) {
  DecoderParameters p;
  for (const auto& [name, shape, kind, matrices] : parameter_shapes(d)) {
    const bool of_norm = kind == ParameterKind::norm_weight || kind == ParameterKind::norm_bias;
    p.append(name, allocator.allocate(std::string(prefix) + name,
                                      of_norm ? ops::accumulation_dtype(dtype) : dtype, shape, category));
  }
  return p;
}

TransformerParameters transformer_parameters(const TransformerDescription& d,
                                             const DecoderParameters& parameters) {
  auto next = parameters.begin();
  const auto take = [&] { return (next++)->tensor; };  // in the order of parameter_shapes
  const auto take_if = [&](bool there) { return there ? take() : Tensor(); };
  const auto linear = [&](bool bias) {
    const auto index = static_cast<std::size_t>(next - parameters.begin());
    const Tensor weight = take();
    return Linear{.weight = weight,
                  .bias = take_if(bias),
                  .packed = parameters.packed_at(index),
                  .int8 = parameters.int8};
  };
  const auto both = [&](bool bias) { return NormParameters{.weight = take(), .bias = take_if(bias)}; };
  TransformerParameters p;
  p.wte = take();
  p.wpe = take_if(!d.rope);
  for (std::int64_t l = 0; l < d.layers; ++l) {
    TransformerBlock& b = p.blocks.emplace_back();
    b.norm1 = both(d.layer_norm);
    b.qkv = linear(d.qkv_bias);
    b.q_norm = take_if(d.qk_norm), b.k_norm = take_if(d.qk_norm);
    b.window = window_of(d, l);
    b.attproj = linear(d.attproj_bias);
    b.norm2 = both(d.layer_norm);
    b.fc = linear(d.mlp_bias);
    b.fcproj = linear(d.mlp_bias);
  }
  p.norm = both(d.layer_norm);
  if (d.tied_head) next = parameters.begin();
  p.head = linear(false);
  return p;
}

void initialize(const TransformerDescription& d, std::uint64_t seed, const ParameterWriter& write) {
  constexpr std::uint32_t kInitialization = 0x494e4954;  // its own random stream: "INIT"
  std::uint32_t index = 0;
  for (const ParameterShape& parameter : parameter_shapes(d)) {
    const PhiloxStream stream(seed, kInitialization, index);
    const double mean = parameter.kind == ParameterKind::norm_weight ? 1 : 0;
    const double deviation = initial_deviation(d, parameter.kind);
    const std::int64_t count =
        parameter.kind == ParameterKind::vocabulary ? d.vocab * d.channels : parameter.shape.elements();
    write(index++, [&](const Tensor& host) {
      visit_dtype(host.dtype, [&](auto tag) {
        fill<typename decltype(tag)::type>(host, count, stream, mean, deviation);
      });
    });
  }
}

RopeTables allocate_rope_tables(const TransformerDescription& d, std::int64_t positions, DType dtype,
                                Allocator& allocator) {
  if (!d.rope) return {};
  const auto table = [&](std::string_view name) {
    return allocator.allocate(name, ops::accumulation_dtype(dtype), {positions, d.rope->R / 2},
                              Category::batch);
  };
  return {.cos = table("rope_cos"),
          .sin = table("rope_sin"),
          .wrong = allocator.allocate("rope_wrong", DType::i64, {1}, Category::batch)};
}

void fill_rope_tables(const TransformerDescription& d, const RopeTables& tables, const Stream& stream) {
  if (!d.rope) return;
  write_on_host(tables.cos, stream, [&](const Tensor& cos) {
    write_on_host(tables.sin, stream, [&](const Tensor& sin) { write_rope_tables(*d.rope, cos, sin); });
  });
  write_on_host(tables.wrong, stream, [](const Tensor& host) { *host.as<std::int64_t>() = -1; });
}

TransformerActivations allocate_activations(const TransformerDescription& d, const DecoderBatch& batch,
                                            DType dtype, Purpose purpose, Allocator& allocator,
                                            NormBackwardFrom norms) {
  const std::int64_t N = batch.tokens.shape[0];
  const bool training = purpose == Purpose::training;
  TransformerActivations a;
  const Namer top{.allocator = allocator, .prefix = "", .dtype = dtype, .category = Category::activations};
  a.embedding = top("embedding", {N, d.channels});
  for (std::int64_t l = 0; l < d.layers; ++l) {
    const Namer in{.allocator = allocator,
                   .prefix = fmt::format("h.{}.", l),
                   .dtype = dtype,
                   .category = Category::activations};
    a.blocks.push_back(allocate_block(d, batch, training, in, norms));
  }
  a.norm = allocate_norm(d, N, training, norms, "final_norm", top);
  return a;
}

TransformerActivations narrow(const TransformerActivations& a, std::int64_t n) {
  const auto rows = [n](const Tensor& t) { return t ? t.slice(0, 0, n) : t; };
  TransformerActivations result;
  result.embedding = rows(a.embedding);
  for (const TransformerBlockActivations& b : a.blocks) {
    TransformerBlockActivations r;
    r.norm1.out = rows(b.norm1.out);
    r.qkv = rows(b.qkv);
    r.att = rows(b.att);
    r.residual_mid = rows(b.residual_mid);
    r.norm2.out = rows(b.norm2.out);
    r.fc_preact = rows(b.fc_preact);
    r.fc = rows(b.fc);
    r.residual = rows(b.residual);
    result.blocks.push_back(r);
  }
  result.norm.out = rows(a.norm.out);
  return result;
}

TransformerBackwardBuffers allocate_backward(const TransformerDescription& d, const DecoderBatch& batch,
                                             DType dtype, Recompute recompute, Allocator& allocator) {
  const std::int64_t N = batch.tokens.shape[0], C = d.channels, HS = d.head_size;
  const Namer top{.allocator = allocator, .prefix = "", .dtype = dtype, .category = Category::activations};
  TransformerBackwardBuffers buffers;
  buffers.dnorm = top("dfinal_norm", {N, C});
  buffers.dresidual = top("dresidual", {N, C});
  for (std::int64_t l = 0; l < d.layers; ++l) {
    const Namer in{.allocator = allocator,
                   .prefix = fmt::format("h.{}.", l),
                   .dtype = dtype,
                   .category = Category::activations};
    const Namer again{.allocator = allocator,
                      .prefix = fmt::format("again.h.{}.", l),
                      .dtype = dtype,
                      .category = Category::activations};
    const Tensor dfc = in("dfc", {N, d.hidden});
    buffers.blocks.push_back({.dfc = dfc,
                              .dnorm2 = in("dnorm2", {N, C}),
                              .datt = in("datt", {N, d.heads, HS}),
                              .dqkv = in("dqkv", {N, d.all_heads(), HS}),
                              .dnorm1 = in("dnorm1", {N, C}),
                              .again = allocate_again(d, batch, recompute, dfc, again)});
  }
  return buffers;
}

}  // namespace warpwright
