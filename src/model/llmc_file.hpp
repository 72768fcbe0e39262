// llm.c's GPT-2 model files (.bin), little-endian.
//
//   256 int32   header: [0] magic 20240326, [1] version (3: fp32, 5: bf16), [2] T, [3] V, [4] L,
//               [5] heads, [6] C, [7] Vp, the vocabulary padded with rows of zeros; the rest 0
//   tensors     16 of them, each layer's stacked along a leading L, matrices as (out, in):
//               wte (Vp, C)  wpe (T, C)
//               ln1w ln1b (L, C)  qkvw (L, 3C, C)  qkvb (L, 3C)  attprojw (L, C, C)  attprojb (L, C)
//               ln2w ln2b (L, C)  fcw (L, 4C, C)  fcb (L, 4C)  fcprojw (L, C, 4C)  fcprojb (L, C)
//               lnfw lnfb (C)
//
// Source: llm.c, train_gpt2.py (write_model) and train_gpt2.c (gpt2_build_from_checkpoint).
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string_view>
#include <vector>

#include "model/tensor_file.hpp"
#include "runtime/mapped_file.hpp"

namespace warpwright {

struct LlmcConfig {
  DType dtype = DType::f32;  // f32 or bf16
  std::int64_t max_seq_len = 0;
  std::int64_t vocab_size = 0;
  std::int64_t num_layers = 0;
  std::int64_t num_heads = 0;
  std::int64_t channels = 0;
  std::int64_t padded_vocab_size = 0;

  bool operator==(const LlmcConfig&) const = default;
};

// The tensors of such a file in its order, under llm.c's names. Throws for sizes that cannot be (where: the
// file).
std::vector<TensorInfo> llmc_tensors(const LlmcConfig& config, const std::filesystem::path& where);

// A mapped file; header and length are checked when it is opened.
class LlmcFile {
 public:
  explicit LlmcFile(const std::filesystem::path& path);

  const std::filesystem::path& path() const { return file_.path(); }
  const LlmcConfig& config() const { return config_; }
  const std::vector<TensorInfo>& tensors() const { return tensors_; }
  std::span<const std::byte> bytes(
      std::string_view name) const;  // of one of tensors(), aligned to 2 at least

 private:
  MappedFile file_;
  LlmcConfig config_;
  std::vector<TensorInfo> tensors_;
};

// A writer of llmc_tensors(config) in their order.
TensorFileWriter write_llmc(const std::filesystem::path& path, const LlmcConfig& config);

}  // namespace warpwright
