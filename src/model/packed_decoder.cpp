#include "model/packed_decoder.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>

#include "core/error.hpp"
#include "model/decoder_files.hpp"
#include "runtime/planned.hpp"

namespace warpwright {
namespace {

// The decoder's parameters, without memory.
DecoderParameters described(const Decoder& decoder, DType dtype) {
  Recorder recorder;
  return decoder.allocate_parameters(dtype, Category::parameters, "", recorder);
}

// The same with the matrices packed.
DecoderParameters allocate(const DecoderParameters& plain, const std::vector<ForwardMatrix>& matrices,
                           const PackedLayout& layout, Allocator& allocator) {
  DecoderParameters parameters;
  parameters.int8 = layout.int8;
  std::size_t index = 0;
  for (const auto& [name, tensor] : plain) {
    const auto matrix = std::ranges::find(matrices, index, &ForwardMatrix::parameter);
    const bool is_packed = matrix != matrices.end();
    if (is_packed) {
      const std::int64_t bytes = layout.bytes(tensor.shape[0], tensor.shape[1]);
      parameters.packed[index] =
          allocator.allocate(name + ".packed", DType::u8, {bytes}, Category::parameters);
    }
    parameters.append(name, is_packed && !matrix->looked_up
                                ? Tensor(nullptr, tensor.dtype, tensor.shape)
                                : allocator.allocate(name, tensor.dtype, tensor.shape, Category::parameters));
    ++index;
  }
  return parameters;
}

// Gets the matrices one after the other, in memory for the largest.
class Packer {
 public:
  Packer(const Context& context, const PackedLayout& layout, const DecoderParameters& parameters,
         const std::vector<ForwardMatrix>& matrices)
      : context_(context), layout_(layout), parameters_(parameters), matrices_(matrices) {
    std::size_t largest = 0;
    for (const ForwardMatrix& m : matrices) largest = std::max(largest, weight_of(m, nullptr).bytes());
    buffer_ = Buffer(largest, Device{}, "a weight");
  }

  void pack(std::size_t index, const std::function<void(const Tensor& host)>& fill) const {
    const auto matrix = std::ranges::find(matrices_, index, &ForwardMatrix::parameter);
    if (matrix == matrices_.end()) return;
    const Tensor weight = weight_of(*matrix, buffer_.data());
    std::memset(weight.data, 0, weight.bytes());  // `fill` leaves padding rows as they are
    fill(weight);
    std::vector<float> factors = factors_for(*matrix, weight);
    const Tensor known = factors.empty() ? Tensor() : Tensor(factors.data(), DType::f32, {weight.shape[1]});
    try {
      layout_.pack(context_, weight, known, parameters_.packed_at(index));
    } catch (const Error& error) {
      throw Error(error.problem(), entry(index).name, "check the model's weights, or use fp32");
    }
  }

 private:
  const DecoderParameters::Entry& entry(std::size_t index) const {
    return parameters_.begin()[static_cast<std::ptrdiff_t>(index)];
  }
  static void require_finite(const DecoderParameters::Entry& norm) {
    for (std::int64_t i = 0; i < norm.tensor.elements(); ++i) {
      if (std::isfinite(norm.tensor.as<float>()[i])) continue;
      throw Error(fmt::format("element {} is not finite", i), norm.name, "check the model's weights");
    }
  }
  Tensor weight_of(const ForwardMatrix& matrix, void* data) const {
    return {data, layout_.dtype, entry(matrix.parameter).tensor.shape};
  }
  std::vector<float> factors_for(const ForwardMatrix& matrix, const Tensor& weight) const {
    if (!layout_.int8 || !matrix.norm_weight) return {};
    for (const auto& norm : {matrix.norm_weight, matrix.norm_bias}) {
      if (norm) require_finite(entry(*norm));
    }
    const Tensor shift = matrix.norm_bias ? entry(*matrix.norm_bias).tensor : Tensor();
    const std::int64_t rows = weight.shape[0] - matrix.first_row;
    return factors_after_norm(entry(*matrix.norm_weight).tensor, shift,
                              weight.slice(0, matrix.first_row, rows));
  }

  const Context& context_;
  const PackedLayout& layout_;
  const DecoderParameters& parameters_;
  const std::vector<ForwardMatrix>& matrices_;
  Buffer buffer_;
};

}  // namespace

DecoderWeights inference_weights(const Context& context, std::shared_ptr<const Decoder> decoder,
                                 const Precision& precision,
                                 const std::function<void(const ParameterWriter&)>& write) {
  const PackedLayout layout(precision, context.device());
  if (layout.name.empty()) {
    DecoderWeights weights =
        unpacked_weights(std::move(decoder), precision.dtype, context.device().device, write);
    weights.parameters.int8 = precision.int8;
    return weights;
  }
  const std::vector<ForwardMatrix> matrices = decoder->forward_matrices();
  const DecoderParameters plain = described(*decoder, precision.dtype);
  const auto planned = std::make_shared<Planned<DecoderParameters>>(
      [=](Allocator& allocator) { return allocate(plain, matrices, layout, allocator); });
  planned->take(context.device().device);
  const DecoderParameters& parameters = planned->tensors();
  const std::vector<Tensor> tensors = parameters.tensors();
  const ParameterWriter write_elements = writer_to(parameters);
  write([&](std::size_t index, const auto& fill) {
    if (tensors[index]) write_elements(index, fill);
  });
  const Packer packer(context, layout, parameters, matrices);
  write([&](std::size_t index, const auto& fill) { packer.pack(index, fill); });
  return {
      .decoder = std::move(decoder), .dtype = precision.dtype, .parameters = parameters, .memory = planned};
}

DecoderWeights load_inference_weights(const Context& context, const std::filesystem::path& source,
                                      const Precision& precision) {
  verify_model(source);
  const std::shared_ptr<const Decoder> decoder = read_decoder(source);
  return inference_weights(context, decoder, precision,
                           [&](const ParameterWriter& write) { decoder->load(source, write); });
}

}  // namespace warpwright
