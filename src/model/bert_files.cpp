#include "model/bert_files.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <utility>

#include "core/error.hpp"
#include "model/fill.hpp"
#include "runtime/file.hpp"

namespace warpwright {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kWord = "embeddings.word_embeddings.weight";

std::vector<BertTensor> tensors_of(const SafetensorsFolder& folder) {
  std::vector<BertTensor> tensors;
  for (const SafetensorsFolder::StoredTensor& t : folder.tensors()) {
    const SafetensorsEntry& e = *t.entry;
    tensors.push_back({.name = e.name,
                       .stored_dtype = e.stored_dtype,
                       .dtype = e.dtype,
                       .shape = e.shape,
                       .bytes = e.dtype ? t.bytes() : std::span<const std::byte>()});
  }
  return tensors;
}

std::string find_prefix(const std::vector<BertTensor>& tensors, const std::string& where) {
  const BertTensor* found = nullptr;
  for (const BertTensor& tensor : tensors) {
    if (!tensor.name.ends_with(kWord)) continue;
    if (found) {
      throw Error(fmt::format("has two encoders, with {} and {}", found->name, tensor.name), where,
                  "use the tensors of one model");
    }
    found = &tensor;
  }
  if (!found) {
    throw Error(fmt::format("has no tensor {}", kWord), where,
                "use a BERT, MiniLM or RoBERTa in Hugging Face's form");
  }
  return found->name.substr(0, found->name.size() - kWord.size());
}

void fill_checked(const Tensor& parameter, const BertTensor& tensor) {
  const std::int64_t rows = parameter.shape.rank() == 2 ? parameter.shape[0] : 1;
  fill(parameter, rows, tensor.bytes, *tensor.dtype, false);
}

const BertTensor& checked(const BertTensor* tensor, const std::string& where, const std::string& name,
                          const Shape& shape) {
  if (!tensor) {
    throw Error(fmt::format("has no tensor {}", name), where,
                "use the weights and the config.json of one model");
  }
  if (tensor->shape != shape || !tensor->dtype || !is_floating(*tensor->dtype)) {
    throw Error(fmt::format("{} is {} {}, but config.json asks for {}", tensor->name, tensor->stored_dtype,
                            tensor->shape.to_string(), shape.to_string()),
                where, "use the weights and the config.json of one model");
  }
  return *tensor;
}

// The names of layer normalization's weight and bias in TensorFlow and in old files.
std::string former_name(const std::string& name) {
  if (name.ends_with("LayerNorm.weight")) return name.substr(0, name.size() - 6) + "gamma";
  if (name.ends_with("LayerNorm.bias")) return name.substr(0, name.size() - 4) + "beta";
  return {};
}

// True if an encoder with this many layers has the tensor of this name, which comes without a prefix.
bool is_of_encoder(std::string_view name, std::int64_t layers) {
  static constexpr std::array kEmbeddings = {"word_embeddings.weight",
                                             "position_embeddings.weight",
                                             "token_type_embeddings.weight",
                                             "LayerNorm.weight",
                                             "LayerNorm.bias",
                                             "LayerNorm.gamma",
                                             "LayerNorm.beta",
                                             "position_ids",
                                             "token_type_ids"};
  static constexpr std::array kLayers = {
      "attention.self.query", "attention.self.key", "attention.self.value",       "attention.output.dense",
      "intermediate.dense",   "output.dense",       "attention.output.LayerNorm", "output.LayerNorm"};
  constexpr std::string_view embeddings = "embeddings.", layer = "encoder.layer.";
  if (name == "pooler.dense.weight" || name == "pooler.dense.bias") return true;
  if (name.starts_with(embeddings)) {
    name.remove_prefix(embeddings.size());
    return std::find(kEmbeddings.begin(), kEmbeddings.end(), name) != kEmbeddings.end();
  }
  if (!name.starts_with(layer)) return false;
  name.remove_prefix(layer.size());
  std::int64_t index = -1;
  const auto [end, error] = std::from_chars(name.data(), name.data() + name.size(), index);
  if (error != std::errc() || index < 0 || index >= layers) return false;
  name.remove_prefix(static_cast<std::size_t>(end - name.data()));
  const std::size_t dot = name.rfind('.');
  if (name.empty() || name[0] != '.' || dot == 0 || dot == std::string_view::npos) return false;
  const std::string_view part = name.substr(1, dot - 1), kind = name.substr(dot + 1);
  const bool norm = part.ends_with("LayerNorm");
  return std::find(kLayers.begin(), kLayers.end(), part) != kLayers.end() &&
         (kind == "weight" || kind == "bias" || (norm && (kind == "gamma" || kind == "beta")));
}

// True if the tensor belongs to a head on top of an encoder; heads for other tasks are ignored.
bool is_of_head(std::string_view name) {
  return name.starts_with("classifier.") || name.starts_with("cls.") || name.starts_with("lm_head.") ||
         name.starts_with("qa_outputs.");
}

}  // namespace

BertFile::BertFile(const fs::path& folder, const BertConfig& config)
    : BertFile(SafetensorsFolder(folder), config) {}

BertFile::BertFile(SafetensorsFolder stored, const BertConfig& config)
    : BertFile(tensors_of(stored), stored.path().string(), config) {
  stored_.emplace(std::move(stored));
}

BertFile::BertFile(std::vector<BertTensor> tensors, const std::string& where, const BertConfig& config)
    : config_(config),
      where_(where),
      tensors_(std::move(tensors)),
      prefix_(find_prefix(tensors_, where_)),
      top_(prefix_) {
  for (std::size_t i = 0; i < tensors_.size(); ++i) {
    if (index_.emplace(tensors_[i].name, i).second) continue;
    throw Error(fmt::format("has two tensors {}", tensors_[i].name), where_, "give each its own name");
  }
  for (const std::string_view model : {"bert.", "roberta."}) {
    if (top_.ends_with(model)) top_.resize(top_.size() - model.size());
  }
  has_classifier_ = config.family == BertConfig::Family::roberta
                        ? find(top_ + "classifier.out_proj.weight") != nullptr
                        : find(top_ + "classifier.weight") && find(prefix_ + "pooler.dense.weight");
  refuse_strangers();
}

std::string BertFile::checksum() const {
  if (!stored_) throw Error("has no files to take a checksum of", where_, "read the weights from a folder");
  return stored_->checksum();
}

const BertTensor* BertFile::find(std::string_view name) const {
  const auto found = index_.find(name);
  return found == index_.end() ? nullptr : &tensors_[found->second];
}

const BertTensor& BertFile::tensor(const std::string& name, const Shape& shape) const {
  const BertTensor* found = find(name);
  if (!found) found = find(former_name(name));
  return checked(found, where_, name, shape);
}

void BertFile::fill_from(const Tensor& parameter, const std::string& name) const {
  if (parameter.shape.rank() == 0) return;
  const BertTensor& found = tensor(name, parameter.shape);
  if (parameter) fill_checked(parameter, found);
}

void BertFile::fill_from(const Linear& linear, const std::string& name) const {
  fill_from(linear.weight, name + ".weight");
  fill_from(linear.bias, name + ".bias");
}

void BertFile::fill_norm(const Tensor& weight, const Tensor& bias, const std::string& name) const {
  fill_from(weight, name + ".weight");
  fill_from(bias, name + ".bias");
}

void BertFile::load(const BertParameters& p) const {
  const std::string embeddings = prefix_ + "embeddings.";
  fill_from(p.word, embeddings + "word_embeddings.weight");
  fill_from(p.position, embeddings + "position_embeddings.weight");
  fill_from(p.type, embeddings + "token_type_embeddings.weight");
  fill_norm(p.embnorm_weight, p.embnorm_bias, embeddings + "LayerNorm");
  for (std::size_t l = 0; l < p.blocks.size(); ++l) load_layer(l, p.blocks[l]);
  if (!p.classifier.weight) return;
  const bool roberta = config_.family == BertConfig::Family::roberta;
  fill_from(p.pooler, roberta ? top_ + "classifier.dense" : prefix_ + "pooler.dense");
  fill_from(p.classifier, top_ + (roberta ? "classifier.out_proj" : "classifier"));
}

void BertFile::load_layer(std::size_t l, const BertBlock& b) const {
  const std::string layer = fmt::format("{}encoder.layer.{}.", prefix_, l);
  std::int64_t part = 0;
  for (const char* name : {"query", "key", "value"}) {
    const auto rows = [&](const Tensor& t) {
      return t.shape.rank() == 0 ? t : t.slice(0, part * config_.hidden, config_.hidden);
    };
    fill_from(Linear{.weight = rows(b.qkv.weight), .bias = rows(b.qkv.bias)},
              layer + "attention.self." + name);
    ++part;
  }
  fill_from(b.attproj, layer + "attention.output.dense");
  fill_norm(b.attnorm_weight, b.attnorm_bias, layer + "attention.output.LayerNorm");
  fill_from(b.fc, layer + "intermediate.dense");
  fill_from(b.fcproj, layer + "output.dense");
  fill_norm(b.outnorm_weight, b.outnorm_bias, layer + "output.LayerNorm");
}

void BertFile::load_norm_before(std::size_t layer, const Tensor& weight, const Tensor& bias) const {
  fill_norm(weight, bias,
            layer == 0 ? prefix_ + "embeddings.LayerNorm"
                       : fmt::format("{}encoder.layer.{}.output.LayerNorm", prefix_, layer - 1));
}

void BertFile::refuse_strangers() const {
  for (const BertTensor& tensor : tensors_) {
    const std::string_view name = tensor.name;
    const bool known =
        (name.starts_with(prefix_) && is_of_encoder(name.substr(prefix_.size()), config_.layers)) ||
        (name.starts_with(top_) && is_of_head(name.substr(top_.size())));
    if (known) continue;
    throw Error(
        fmt::format("has a tensor {}, which an encoder with {} layers does not have", name, config_.layers),
        where_, "use the weights and the config.json of one model");
  }
}

void load_dense(const BertDense& dense, const Linear& parameters) {
  const SafetensorsFolder file(dense.folder);
  const std::vector<BertTensor> tensors = tensors_of(file);
  const auto fill_named = [&](const Tensor& parameter, const std::string& name) {
    const auto found =
        std::find_if(tensors.begin(), tensors.end(), [&](const BertTensor& t) { return t.name == name; });
    const BertTensor* tensor = found == tensors.end() ? nullptr : &*found;
    fill_checked(parameter, checked(tensor, file.path().string(), name, parameter.shape));
  };
  fill_named(parameters.weight, "linear.weight");
  if (parameters.bias) fill_named(parameters.bias, "linear.bias");
}

}  // namespace warpwright
