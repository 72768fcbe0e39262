// Text generation token by token, with a cache of keys and values.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "infer/sampler.hpp"
#include "model/decoder.hpp"
#include "runtime/planned.hpp"

namespace warpwright {

// The cache and the activations of one sequence, over weights that other sessions may share. All memory is
// planned and taken at construction.
class Generator {
 public:
  // The Context must be one of the weights' device and outlive the Generator.
  Generator(Context& context, DecoderWeights weights);
  ~Generator();

  const MemoryPlan& plan() const;
  // The memory plan of a Generator, without the weights.
  static MemoryPlan planned(Context& context, const Decoder& decoder, DType dtype);

  // Forgets every token.
  void reset();
  // Appends tokens (at least one) and returns the V logits that follow the last of them. If the context is
  // full, drops the older half of the sequence and runs the rest again from position 0, because absolute
  // positions cannot slide.
  std::span<const float> append(std::span<const std::int32_t> tokens);

 private:
  struct Tensors;
  struct HostViews;
  static Tensors allocate(const Decoder& decoder, DType dtype, const DecoderParameters& parameters,
                          Allocator& allocator);
  // Runs n tokens after `past` others to the logits of the last one.
  static void run(Context& context, const Tensors& tensors, std::int64_t past, std::int64_t n);
  // Plans the memory for chunks of every size.
  static Planned<Tensors> plan_chunks(Context& context, const Decoder& decoder,
                                      std::function<Tensors(Allocator&)> allocate);
  void append_chunk(std::span<const std::int32_t> tokens);

  Context& context_;
  DecoderWeights weights_;
  std::unique_ptr<Planned<Tensors>> tensors_;
  std::unique_ptr<HostViews> host_;
  std::vector<std::int32_t> sequence_;  // what the cache holds
  std::vector<float> logits_;
};

struct GenerationOptions {
  std::int64_t max_tokens = 256;
  SamplingOptions sampling;
  std::int32_t end_of_text = -1;  // stops when drawn; −1: never
};

// Continues the prompt (at least one token, at most the context) and hands each new token to `emit`, which
// may return false to stop. The end-of-text token is not emitted.
void generate(Generator& generator, std::span<const std::int32_t> prompt, const GenerationOptions& options,
              const std::function<bool(std::int32_t token)>& emit);

}  // namespace warpwright
