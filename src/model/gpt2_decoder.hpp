// GPT-2 as a Decoder.
#pragma once

#include "model/decoder.hpp"
#include "model/gpt2_config.hpp"

namespace warpwright {

class GPT2Decoder final : public Decoder {
 public:
  explicit GPT2Decoder(const GPT2Config& config) : config_(config) {}

  std::int64_t vocab() const override { return config_.vocab; }
  std::int64_t padded_vocab() const override { return config_.padded_vocab(); }
  std::int64_t context() const override { return config_.context; }
  std::int64_t parameter_count() const override { return config_.parameters(); }
  std::string describe() const override;
  double flops_per_token(std::int64_t T) const override { return config_.flops_per_token(T); }
  nlohmann::json config(const BoundaryTokens& tokens) const override;
  void validate(const std::string& where) const override { config_.validate(where); }

  DecoderParameters allocate_parameters(DType dtype, Category category, std::string_view prefix,
                                        Allocator& allocator) const override;
  LayerParameters layer_parameters() const override;
  void initialize(std::uint64_t seed, const ParameterWriter& write) const override;
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
  GPT2Config config_;
};

}  // namespace warpwright
