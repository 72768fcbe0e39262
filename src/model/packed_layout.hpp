// The layout in which a device's kernels take the matrices of a model for inference.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "runtime/context.hpp"

namespace warpwright {

// The dtypes of a model for inference.
struct Precision {
  DType dtype = DType::f32;  // of weights and activations
  bool int8 = false;         // the products are in int8 (ops/int8_linear), and dtype is of all else
};

// int8 on this device, with the rest in bf16 where the processor multiplies bf16 faster than fp32, otherwise
// in fp32. Throws UsageError, naming "dtype", if the device has no kernels for int8.
Precision int8_precision(const DeviceInfo& device);

struct PackedLayout {
  // "" if the device takes no packed weights of this precision, or a variant that takes none is forced.
  std::string name;
  DType dtype;  // of the weights that are packed: fp32 for int8, whatever the dtype of the rest
  bool int8;
  DeviceInfo device;

  PackedLayout(const Precision& precision, const DeviceInfo& on);

  // Bytes of a packed weight (N, K), a multiple of 64.
  std::int64_t bytes(std::int64_t N, std::int64_t K) const;
  // factors: as for ops::int8_pack. In int8, throws Error for a weight that is not finite.
  void pack(const Context& context, const Tensor& weight, const Tensor& factors, const Tensor& packed) const;
};

// Factors for int8_pack, of a layer whose input comes from a normalization with these parameters. shift may
// be absent. rows: the rows of the weight whose rounding error matters most. All three are fp32.
std::vector<float> factors_after_norm(const Tensor& gain, const Tensor& shift, const Tensor& rows);

}  // namespace warpwright
