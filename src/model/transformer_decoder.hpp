// A transformer as a Decoder. A family adds its config.json.
#pragma once

#include <utility>

#include "model/transformer.hpp"

namespace warpwright {

class TransformerDecoder : public Decoder {
 public:
  explicit TransformerDecoder(TransformerDescription description) : d_(std::move(description)) {}

  const TransformerDescription& description() const { return d_; }

  std::int64_t vocab() const override { return d_.vocab; }
  std::int64_t padded_vocab() const override { return d_.padded_vocab(); }
  std::int64_t context() const override { return d_.context; }
  std::int64_t channels() const override { return d_.channels; }
  std::int64_t parameter_count() const override { return warpwright::parameter_count(d_); }
  std::string describe() const override;
  double flops_per_token(std::int64_t T) const override { return warpwright::flops_per_token(d_, T); }
  double keys_seen(std::int64_t keys) const override { return warpwright::keys_seen(d_, keys); }

  DecoderParameters allocate_parameters(DType dtype, Category category, std::string_view prefix,
                                        Allocator& allocator) const override;
  LayerParameters layer_parameters() const override { return warpwright::layer_parameters(d_); }
  LayerMatrices layer_matrices() const override { return warpwright::layer_matrices(d_); }
  std::vector<ForwardMatrix> forward_matrices() const override { return warpwright::forward_matrices(d_); }
  void initialize(std::uint64_t seed, const ParameterWriter& write) const override;
  DType stored_dtype(const std::filesystem::path& source) const override;
  void load(const std::filesystem::path& source, const ParameterWriter& write) const override;
  void save_weights(const std::filesystem::path& file, const DecoderParameters& parameters,
                    const ParameterReader& read) const override;

  std::unique_ptr<TrainingPass> allocate_training(const DecoderParameters& parameters,
                                                  const DecoderBatch& batch,
                                                  const TrainingPassOptions& options,
                                                  Allocator& allocator) const override;
  std::unique_ptr<ScoringPass> allocate_scoring(const DecoderParameters& parameters, DType dtype,
                                                const DecoderBatch& batch,
                                                Allocator& allocator) const override;
  std::unique_ptr<CachedPass> allocate_cached(const DecoderParameters& parameters, const DecoderBatch& batch,
                                              const CachePlaces& places, const CachedPassOptions& options,
                                              Allocator& allocator) const override;

 private:
  TransformerDescription d_;
};

}  // namespace warpwright
