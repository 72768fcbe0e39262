// The weights of a BERT-family encoder, which sessions (model/bert_session.hpp) share.
#pragma once

#include <cstddef>
#include <filesystem>
#include <optional>
#include <vector>

#include "model/bert.hpp"
#include "model/bert_files.hpp"
#include "model/bert_packed.hpp"
#include "runtime/context.hpp"
#include "runtime/planned.hpp"

namespace warpwright {

struct BertWeightsOptions {
  Precision precision = {};
  // A folder that keeps the weights of a folder's model as a CPU's kernels take them, for all processes. If
  // it is empty or cannot be used, each process lays them out in its own memory; results are the same bits.
  std::filesystem::path cache = {};
};

// Weights in a device's memory, as its kernels take them. Nothing changes them after construction: sessions
// on several threads, each with a Context of its own for that device, may read them at the same time.
class BertWeights {
 public:
  // The Context gives the device, the threads to load with, and the forced variants, which the sessions'
  // Contexts must share. It may end before the weights do.
  BertWeights(const Context& context, const std::filesystem::path& folder,
              const BertWeightsOptions& options = {});
  // Weights given in memory; they are copied. Mean pooling.
  BertWeights(const Context& context, const BertConfig& config, std::vector<BertTensor> tensors,
              const BertWeightsOptions& options = {});
  // Random weights (a pure function of the config), mean pooling: for benches and tests.
  BertWeights(const Context& context, const BertConfig& config, const BertWeightsOptions& options = {});
  BertWeights(const BertWeights&) = delete;
  BertWeights& operator=(const BertWeights&) = delete;

  const BertConfig& config() const { return config_; }
  const BertPooling& pooling() const { return pooling_; }  // of the folder
  DType dtype() const { return precision_.dtype; }         // of everything but int8's products
  Device device() const { return device_; }
  const BertParameters& parameters() const { return parameters_->tensors(); }
  bool has_classifier() const { return static_cast<bool>(parameters().classifier.weight); }
  std::size_t bytes() const { return parameters_->arenas().allocated_bytes(); }  // excluding packed weights

 private:
  void allocate(bool classifier);

  BertConfig config_;
  BertPooling pooling_;
  Precision precision_;
  Device device_;
  std::optional<BertPackedWeights> packed_;
  std::optional<Planned<BertParameters>> parameters_;
};

}  // namespace warpwright
