// An encoder's linear layers laid out once for the processor's kernels (ops/matmul/packed.hpp), in a file
// that processes map and share.
//
//   line      "warpwright packed weights 1 LAYOUT MODEL BYTES CHECKSUM\n", filled up with NULs to 4,096
//   bytes:
//             the layout's name, the checksum of the model's file, and the length and checksum of what
//             follows
//   weights   of each layer qkv, attproj, fc and fcproj, each starting at a multiple of 64 bytes
//
// The file's name is of layout and model too. One that is not whole, or of another version, is made again.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <vector>

#include "model/bert_files.hpp"
#include "runtime/context.hpp"
#include "runtime/file.hpp"

namespace warpwright {

class BertPackedWeights {
 public:
  // Maps the model's file in `cache`, a folder, which is made where it is missing. Nothing where the
  // Context's device takes no packed weights of the dtype.
  static std::optional<BertPackedWeights> open(const Context& context, const BertFile& file,
                                               const BertConfig& config, DType dtype,
                                               const std::filesystem::path& cache);

  // A layer's: views of the mapping, read-only.
  struct Layer {
    Tensor qkv, attproj, fc, fcproj;
  };
  const Layer& layer(std::size_t index) const { return layers_[index]; }

 private:
  BertPackedWeights(MappedFile file, const BertConfig& config, DType dtype, const DeviceInfo& device);

  MappedFile file_;
  std::vector<Layer> layers_;
};

}  // namespace warpwright
