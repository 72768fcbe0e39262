#include "capi/encoder_attention.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <string>

#include "capi/dtype.hpp"
#include "capi/guard.hpp"
#include "core/error.hpp"
#include "ops/padding/mask.hpp"

namespace warpwright::capi {
namespace {

Tensor tensor_of(std::string_view function, const std::string& argument, const void* data,
                 const std::int64_t (&sizes)[4], std::int32_t rank, DType dtype, Device device) {
  const std::string where(function);
  if (rank < 1 || rank > 4) throw Error(fmt::format("{}_rank is {}", argument, rank), where, "use 1 to 4");
  constexpr std::int64_t kMost = std::int64_t{1} << 40;
  Shape shape;
  std::int64_t elements = 1;
  for (int axis = 0; axis < rank; ++axis) {
    const std::int64_t size = sizes[axis];
    if (size < 0 || size > kMost / std::max<std::int64_t>(elements, 1)) {
      throw Error(fmt::format("{}_shape[{}] is {}", argument, axis, size), where,
                  fmt::format("use 0 or more, with at most {} elements", kMost));
    }
    shape.append(size);
    elements *= size;
  }
  check_alignment(function, argument, data, size_of(dtype));
  return Tensor(const_cast<void*>(data), dtype, shape, device);
}

// An empty tensor may have no memory, and is given all the same.
bool is_empty(const std::int64_t (&sizes)[4], std::int32_t rank) {
  return rank >= 1 && rank <= 4 && std::count(sizes, sizes + rank, 0) > 0;
}

}  // namespace

EncoderAttention attention_of(std::string_view function, const warpwright_encoder_tokens_args& args,
                              DType dtype, Device device) {
  EncoderAttention attention;
  if (!args.attention) return attention;
  const warpwright_encoder_attention known = known_part(function, "args.attention", args.attention);
  attention.changes.temperature = static_cast<float>(known.temperature);
  if (known.bias || is_empty(known.bias_shape, known.bias_rank)) {
    attention.changes.bias =
        tensor_of(function, "attention.bias", known.bias, known.bias_shape, known.bias_rank, dtype, device);
  }
  if (!known.mask) return attention;
  const DType mask_dtype = mask_dtype_of(function, "attention.mask_dtype", known.mask_dtype);
  const Tensor mask = tensor_of(function, "attention.mask", known.mask, known.mask_shape, known.mask_rank,
                                mask_dtype, known.mask_on_device ? device : Device{});
  const bool packed = args.cu_seqlens != nullptr;
  if (packed ||
      ops::mask_form(kMaskArgument, mask.shape, args.sequences, args.length) == ops::MaskForm::pairs) {
    attention.changes.mask = mask;
    return attention;
  }
  if (args.mask)
    throw Error("mask is given with attention.mask", std::string(function), "give one of the two");
  attention.tokens = mask;
  return attention;
}

std::vector<std::uint8_t> token_bytes(Context& context, const Tensor& tokens) {
  if (tokens.device.kind == DeviceKind::cpu) return ops::read_mask(kMaskArgument, tokens);
  std::vector<std::byte> memory(tokens.bytes());
  const Tensor host(memory.data(), tokens.dtype, tokens.shape);
  copy(host, tokens, context.stream());
  context.synchronize();
  return ops::read_mask(kMaskArgument, host);
}

}  // namespace warpwright::capi
