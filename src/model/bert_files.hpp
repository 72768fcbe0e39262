// BERT-family encoders in Hugging Face folders.
#pragma once

#include <filesystem>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "model/bert.hpp"
#include "model/safetensors_folder.hpp"

namespace warpwright {

// A tensor in the host's memory under its name in Hugging Face's form, maybe with a prefix ("bert.").
struct BertTensor {
  std::string name;
  std::string stored_dtype;    // as its file calls it, "BF16"
  std::optional<DType> dtype;  // empty: none of DType's
  Shape shape;
  std::span<const std::byte> bytes;  // may be unaligned
};

// The weights of a folder's safetensors files, or of a list. Names may have a prefix ("bert.", "roberta.",
// "0.auto_model.").
class BertFile {
 public:
  // Tensors that no such model has are an Error.
  BertFile(const std::filesystem::path& folder, const BertConfig& config);
  BertFile(std::vector<BertTensor> tensors, const std::string& where, const BertConfig& config);

  bool has_classifier() const { return has_classifier_; }
  std::string checksum() const;  // of a folder's weights, as they are mapped; Error for a list
  // Fills the parameters, on whatever device they are. Every tensor must be there in its shape, that of a
  // parameter without data too.
  void load(const BertParameters& parameters) const;
  // The parameters of one layer, and of these only the ones that have a shape.
  void load_layer(std::size_t layer, const BertBlock& block) const;
  // The normalization whose output is the layer's input: the layer before's, or the embedding's.
  void load_norm_before(std::size_t layer, const Tensor& weight, const Tensor& bias) const;

 private:
  BertFile(SafetensorsFolder stored, const BertConfig& config);
  const BertTensor* find(std::string_view name) const;  // null if there is none
  const BertTensor& tensor(const std::string& name, const Shape& shape) const;
  void fill_from(const Tensor& parameter, const std::string& name) const;
  void fill_from(const Linear& linear, const std::string& name) const;
  void fill_norm(const Tensor& weight, const Tensor& bias, const std::string& name) const;
  void refuse_strangers() const;

  const BertConfig config_;
  std::optional<SafetensorsFolder> stored_;  // holds the bytes of a folder's tensors
  std::string where_;
  std::vector<BertTensor> tensors_;
  std::map<std::string_view, std::size_t> index_;  // name → tensor
  std::string prefix_;                             // of the encoder's tensors
  std::string top_;                                // of a head's
  bool has_classifier_ = false;
};

// A dense layer of sentence-transformers, from its folder.
void load_dense(const BertDense& dense, const Linear& parameters);

}  // namespace warpwright
