// An encoder's linear layers laid out once for the processor's kernels (ops/matmul/packed.hpp; in int8,
// ops/int8_linear): in a file that processes map and share, or in the process's own memory. Both hold the
// same bytes, so a vector's bits do not depend on the file.
//
//   line      "warpwright packed weights 1 LAYOUT MODEL BYTES CHECKSUM\n", with NULs up to 4,096 bytes:
//             the layout's name, the checksum of the model's weights, and the length and checksum of the
//             bytes that follow
//   weights   of each layer qkv, attproj, fc and fcproj, each starting at a multiple of 64 bytes
//
// The file's name holds layout and model too. Both checksums are of the bytes that this process has mapped. A
// file that is damaged, or of another version, is made again.
#pragma once

#include <filesystem>
#include <optional>
#include <vector>

#include "model/bert_files.hpp"
#include "model/packed_layout.hpp"
#include "runtime/context.hpp"
#include "runtime/mapped_file.hpp"
#include "runtime/memory.hpp"

namespace warpwright {

class BertPackedWeights {
 public:
  // Takes the weights from the model's file in `cache`, a folder; makes folder and file if they are missing.
  // With an empty `cache`, or one that cannot be used, the weights are laid out in memory. Returns nothing if
  // the Context's device takes no packed weights of the precision, or a variant is forced that takes none. In
  // int8, a weight that is not finite is an Error.
  static std::optional<BertPackedWeights> open(const Context& context, const BertFile& file,
                                               const BertConfig& config, const Precision& precision,
                                               const std::filesystem::path& cache);
  // Random weights in int8, for benches. Returns nothing as open() does.
  static std::optional<BertPackedWeights> random_int8(const Context& context, const BertConfig& config);

  // A layer's weights, read-only.
  struct Layer {
    Tensor qkv, attproj, fc, fcproj;
  };
  const Layer& layer(std::size_t index) const { return layers_[index]; }

 private:
  MappedFile file_;  // one of the two holds the weights
  Buffer memory_;
  std::vector<Layer> layers_;
};

}  // namespace warpwright
