// A kernel describes itself: its file ends with one object that states what the kernel needs, what it refuses
// and how it runs.
//
//   WARPWRIGHT_KERNEL(ResidualForward, "cuda.packed"_kernel) = {
//       .needs = Needs::gpu, .dtypes = kGpuDTypes, .run = residual::forward};
//
// To add a kernel, list its name in the operation's variants.cpp. Nothing else is needed.
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

// "cuda.packed": the backend and the kernel. The file, the test, the bench and the log all use this name. It
// is an aggregate because nvcc writes such a template argument into its generated code as one.
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

// The hardware that a kernel needs. It is checked first: no other function of the kernel runs on a device
// without it.
enum class Needs : std::uint8_t {
  cpu,
  avx2,
  avx_vnni,
  avx512,
  avx512_vnni,
  avx512_bf16,
  amx_bf16,
  amx_int8,
  gpu,
  tf32,
  hopper
};
// The reason why this device does not meet the need; "" if it does.
std::string refuse_device(Needs needs, const DeviceInfo& device);

// "no fp16".
std::string refuse_dtype(DType dtype);

// A set of element types.
class DTypes {
 public:
  template <class... T>
  consteval DTypes(T... dtypes) : bits_((std::uint32_t{0} | ... | bit(dtypes))) {}
  constexpr bool has(DType dtype) const { return bits_ & bit(dtype); }

 private:
  static constexpr std::uint32_t bit(DType dtype) { return std::uint32_t{1} << static_cast<int>(dtype); }
  std::uint32_t bits_;
};
inline constexpr DTypes kCpuDTypes{DType::f32, DType::bf16};
inline constexpr DTypes kGpuDTypes{DType::f32, DType::bf16, DType::f16};
inline constexpr DTypes k16Bits{DType::bf16, DType::f16};
inline constexpr DTypes kFloatingDTypes{DType::f64, DType::f32, DType::bf16, DType::f16};

// The reason why a kernel does not run a problem; empty if it does. The functions are never inlined, so that
// code compiled for one instruction set can return a Refusal (see "ISA files" in HACKING.md).
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
  // Called only if the device and the dtype fit. Null: the kernel takes every such problem.
  Refusal (*refuse)(const Problem&, const DeviceInfo&) = nullptr;
  // Bytes of scratch that run() needs with configuration(). Null: none.
  std::size_t (*workspace)(const Problem&, const DeviceInfo&) = nullptr;
  // The lowest cost wins, and the order of the list breaks ties. Null: 0. All kernels of an operation that
  // have a cost predict seconds, or all rank themselves: a negative cost comes before the kernels that have
  // none, a positive one after them. A kernel of matmul that cannot predict has a nominal cost, which is
  // longer than any prediction.
  double (*cost)(const Problem&, const DeviceInfo&) = nullptr;
  // The parameters that run() derives from the problem and the device, such as the tile and the number of
  // workers. A forced configuration and the device's tuned table come first (tuned_configuration). Null:
  // there are none.
  std::string (*configuration)(const Problem&, const DeviceInfo&) = nullptr;
  // All that the tuned table may hold for the problem; null: configuration() alone.
  std::vector<Configuration> (*configurations)(const Problem&, const DeviceInfo&) = nullptr;
  // The predicted seconds err more than other kernels', so every configuration is worth measuring.
  bool predicts_roughly = false;
  bool only_forced = false;  // never chosen unless the user forces it: a kernel to read and to compare with
  bool repeats = true;       // two runs give the same bits; otherwise the kernel must be only_forced
};

// Holds the kernel's object, so that variants.cpp can refer to it by name.
template <class Args, KernelName name>
struct KernelOf {
  static const Kernel<Args> value;
};

// Defines a kernel's object. Use it in namespace warpwright::ops.
#define WARPWRIGHT_KERNEL(Args, name) \
  template <>                         \
  constinit const Kernel<Args> KernelOf<Args, name>::value

}  // namespace warpwright::ops
