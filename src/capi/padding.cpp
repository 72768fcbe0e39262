// Packing and unpacking in the C ABI, with the caller's memory.
#include <fmt/format.h>

#include <cstdint>
#include <limits>
#include <string>
#include <string_view>

#include "capi/context.hpp"
#include "capi/dtype.hpp"
#include "capi/guard.hpp"
#include "ops/padding/padding.hpp"
#include "runtime/threads.hpp"

using namespace warpwright;

namespace {

// The tensors of one call.
class Arguments {
 public:
  Arguments(std::string_view function, const warpwright_padding_args& args, Device device)
      : function_(function), args_(args), device_(device) {
    constexpr std::int64_t kMost = std::numeric_limits<std::int32_t>::max();
    if (args.sequences < 0 || args.sequences > kMost) fail("sequences", args.sequences, kMost);
    const std::int64_t most_length = args.sequences > 0 ? kMost / args.sequences : kMost;
    if (args.length < 0 || args.length > most_length) fail("length", args.length, most_length);
    places_ = args.sequences * args.length;
  }

  Tensor mask() const {
    const DType dtype = capi::mask_dtype_of(function_, "mask_dtype", args_.mask_dtype);
    return tensor("mask", args_.mask, dtype, {args_.sequences, args_.length});
  }
  Tensor cu_seqlens() const {
    return tensor("cu_seqlens", args_.cu_seqlens, DType::i32, {args_.sequences + 1});
  }
  Tensor odd() const { return tensor("odd", args_.odd, DType::i64, {1}); }
  Tensor indices() const { return tensor("indices", args_.indices, DType::i32, {places_}); }
  Tensor indices_of_rows() const { return indices().slice(0, 0, rows()); }
  Tensor padded() const {
    return tensor("padded", args_.padded, dtype(), {args_.sequences, args_.length, columns()});
  }
  Tensor packed() const { return tensor("packed", args_.packed, dtype(), {rows(), columns()}); }
  std::int64_t places() const { return places_; }

 private:
  [[noreturn]] void fail(std::string_view field, std::int64_t value, std::int64_t most) const {
    throw Error(fmt::format("{} is {}", field, value), std::string(function_),
                fmt::format("use 0 to {}", most));
  }
  DType dtype() const { return capi::dtype_of(function_, "dtype", args_.dtype); }
  std::int64_t rows() const {
    if (args_.rows < 0 || args_.rows > places_) fail("rows", args_.rows, places_);
    return args_.rows;
  }
  std::int64_t columns() const {
    constexpr std::int64_t kMost = std::int64_t{1} << 27;  // the bytes of a row fit in an int
    if (args_.columns >= 1 && args_.columns <= kMost) return args_.columns;
    throw Error(fmt::format("columns is {}", args_.columns), std::string(function_),
                fmt::format("use 1 to {}", kMost));
  }
  Tensor tensor(std::string_view argument, const void* data, DType dtype, const Shape& shape) const {
    alignas(kAlignment) static std::byte nothing[1]{};
    const bool empty = shape.elements() == 0;
    if (!data && !empty) capi::throw_missing(function_, argument);
    capi::check_alignment(function_, argument, data, size_of(dtype));
    return Tensor(empty ? nothing : const_cast<void*>(data), dtype, shape, device_);
  }

  std::string_view function_;
  const warpwright_padding_args& args_;
  Device device_;
  std::int64_t places_ = 0;
};

template <class A>
void check_apart(std::string_view function, A args) {
  args.visit([&](std::string_view name, const Tensor& written, Access access) {
    if (access == Access::read) return;
    args.visit([&](std::string_view other, const Tensor& tensor, Access) {
      const auto *begin = static_cast<const std::byte*>(written.data),
                 *from = static_cast<const std::byte*>(tensor.data);
      if (other == name || begin >= from + tensor.bytes() || from >= begin + written.bytes()) return;
      throw Error("a written tensor overlaps another tensor", std::string(function),
                  "give each memory of its own");
    });
  });
}

// Runs an operation on the arguments that make(Arguments) returns.
template <class Make, class Run>
warpwright_status call(std::string_view function, warpwright_context* handle,
                       const warpwright_padding_args* c_args, Make&& make, Run&& run) {
  return capi::guarded([&](warpwright_status& meaning) {
    const capi::ContextInCall context(function, handle);
    const warpwright_padding_args known = capi::known_part(function, "args", c_args);
    const DeviceInfo& device = context->context.device();
    const auto args = make(Arguments(function, known, device.device));
    check_apart(function, args);
    meaning = WARPWRIGHT_UNSUPPORTED;
    if (device.device.kind == DeviceKind::cpu) claim_threads(device.threads);
    const CurrentDevice current(device.device);
    run(context->context, args);
  });
}

}  // namespace

warpwright_status warpwright_padding_lengths(warpwright_context* context,
                                             const warpwright_padding_args* args) {
  const auto make = [](const Arguments& a) {
    return ops::PaddingLengths{a.mask(), a.cu_seqlens(), a.indices(), a.odd()};
  };
  return call("warpwright_padding_lengths", context, args, make, ops::padding_lengths);
}

warpwright_status warpwright_pack(warpwright_context* context, const warpwright_padding_args* args) {
  const auto make = [](const Arguments& a) {
    const Tensor packed = a.packed();
    return ops::PaddingPack{a.padded().view({a.places(), packed.shape[1]}), a.indices_of_rows(), packed};
  };
  return call("warpwright_pack", context, args, make, ops::padding_pack);
}

warpwright_status warpwright_unpack(warpwright_context* context, const warpwright_padding_args* args) {
  const auto make = [](const Arguments& a) {
    return ops::PaddingUnpack{a.packed(), a.cu_seqlens(), a.indices(), a.padded()};
  };
  return call("warpwright_unpack", context, args, make, ops::padding_unpack);
}
