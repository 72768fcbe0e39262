// A kernel describes itself: its file ends with one object that says what it needs, what it refuses and how
// it runs.
//
//   WARPWRIGHT_KERNEL(ResidualForward, "cuda.packed"_kernel) = {
//       .needs = Needs::gpu, .dtypes = kGpuDTypes, .run = residual::forward};
//
// An operation's variants.cpp lists its kernels by these names, and that is all that adding one takes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "core/dtype.hpp"
#include "runtime/device.hpp"

namespace warpwright {
class Context;
}

namespace warpwright::ops {

// "cuda.packed": the backend and the kernel, the same in file, test, bench and log. An aggregate, since nvcc
// writes a template's argument out as one.
struct KernelName {
  char text[32];

  constexpr std::string_view view() const { return text; }
};
consteval KernelName kernel_name(std::string_view text) {
  KernelName name{};
  if (text.size() >= sizeof(name.text)) throw "a kernel's name is too long";
  for (std::size_t i = 0; i < text.size(); ++i) name.text[i] = text[i];
  return name;
}
consteval KernelName operator""_kernel(const char* text, std::size_t length) {
  return kernel_name({text, length});
}
consteval KernelName operator+(KernelName name, const char* ending) {
  std::size_t length = name.view().size();
  while (*ending) name.text[length++] = *ending++;
  if (name.text[sizeof(name.text) - 1] != '\0') throw "a kernel's name is too long";
  return name;
}

// What a device must have before a kernel for it may be asked anything else.
enum class Needs : std::uint8_t { cpu, avx2, avx512, amx_bf16, gpu, tf32, hopper };
// Why this device does not do; "" if it does.
std::string refuse_device(Needs needs, const DeviceInfo& device);

// "no fp16".
std::string refuse_dtype(DType dtype);

// A set of element types.
class DTypes {
 public:
  template <class... T>
  consteval DTypes(T... dtypes) : bits_(static_cast<std::uint8_t>((0u | ... | bit(dtypes)))) {}
  constexpr bool has(DType dtype) const { return bits_ & bit(dtype); }

 private:
  static constexpr unsigned bit(DType dtype) { return 1u << static_cast<unsigned>(dtype); }
  std::uint8_t bits_;
};
inline constexpr DTypes kCpuDTypes{DType::f32, DType::bf16};
inline constexpr DTypes kGpuDTypes{DType::f32, DType::bf16, DType::f16};
inline constexpr DTypes k16Bits{DType::bf16, DType::f16};
inline constexpr DTypes kFloatingDTypes{DType::f64, DType::f32, DType::bf16, DType::f16};

// Why a kernel does not run a problem; empty if it does. Its functions are never inlined, so that code
// compiled for one instruction set can return it (see "ISA files" in HACKING.md).
class Refusal {
 public:
  Refusal();
  Refusal(const char* reason);
  Refusal(std::string reason);
  Refusal(const Refusal& other);
  Refusal& operator=(const Refusal& other);
  ~Refusal();
  explicit operator bool() const;
  const std::string& reason() const;

 private:
  std::string reason_;
};

struct Configuration {
  std::string text;
  double seconds = 0;  // predicted
};

template <class Args>
struct Kernel {
  using Problem = typename Args::Problem;

  Needs needs;
  DTypes dtypes;  // of the problem
  void (*run)(const Context&, const Args&);
  // Called only for a device and a dtype that fit; null: it takes every problem.
  Refusal (*refuse)(const Problem&, const DeviceInfo&) = nullptr;
  // Bytes of scratch; null: none.
  std::size_t (*workspace)(const Problem&, const DeviceInfo&) = nullptr;
  // Predicted seconds: the lowest wins, and the order of the list breaks ties. Null: 0.
  double (*cost)(const Problem&, const DeviceInfo&) = nullptr;
  // What run() derives from the problem and the device, such as the tile and the number of workers; null:
  // nothing. The one in the device's tuned table comes first (tuned_configuration).
  std::string (*configuration)(const Problem&, const DeviceInfo&) = nullptr;
  // All that the tuned table may hold for the problem; null: configuration() alone.
  std::vector<Configuration> (*configurations)(const Problem&, const DeviceInfo&) = nullptr;
};

// Where a kernel's object is.
template <class Args, KernelName name>
struct KernelOf {
  static const Kernel<Args> value;
};

// Defines it, in namespace warpwright::ops.
#define WARPWRIGHT_KERNEL(Args, name) \
  template <>                         \
  constinit const Kernel<Args> KernelOf<Args, name>::value

}  // namespace warpwright::ops
