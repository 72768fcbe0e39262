// DecodingEngine: continues many sequences at once, which may come and go at any step.
//
// The keys and values of all sequences are in one cache of blocks (cache_blocks.hpp); a beginning that
// several sequences share is computed once. Each step runs one pass: over the prompts of new sequences, or
// over a token of every other one, and draws a token after each sequence that is complete. On a GPU, passes
// over single tokens are replayed as graphs, and the next one is given to the GPU before the host has seen
// what the last one drew, so a step may return while the GPU still works. The Context must keep its stream.
//
// A sequence's tokens are a pure function of its prompt and its options, if batch_invariant is set. Otherwise
// the sequences that run with it may change the last bits of its logits, and thereby a token.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "core/error.hpp"
#include "infer/cache_blocks.hpp"
#include "infer/sampling_options.hpp"
#include "model/decoder.hpp"
#include "runtime/captured.hpp"
#include "runtime/host_view.hpp"
#include "runtime/planned.hpp"
#include "runtime/stream.hpp"

namespace warpwright {

struct DecodingOptions {
  std::int64_t sequences = 1;     // that run at once; more wait
  std::int64_t context = 0;       // most tokens at which a sequence looks; 0: the model's context
  std::int64_t cache_tokens = 0;  // in the cache, at least the context; 0: enough for all that run
  std::int64_t batch_tokens = 0;  // of prompts in one pass; 0: 1,024
  bool batch_invariant = false;   // a sequence's tokens do not depend on the others
};

// A context for sequences of this many tokens, at most the model's. It is one of few numbers, and none below
// 1,024, because kernels may be chosen by it.
std::int64_t context_for(const Decoder& decoder, std::int64_t tokens);

struct GenerationOptions {
  std::int64_t max_tokens = 256;
  SamplingOptions sampling = {};
  std::vector<std::int32_t> end_of_text = {};  // each ends the sequence when drawn, and is not part of it
};

class DecodingEngine {
 public:
  using Id = std::int64_t;
  static constexpr std::int64_t kBlockSize = 16;  // tokens in a block of the cache
  static constexpr std::int64_t kMostCacheTokens =
      std::numeric_limits<std::int32_t>::max() / kBlockSize * kBlockSize;
  enum class End : std::uint8_t { none, length, end_of_text, error };
  struct Drawn {
    Id sequence = 0;
    std::int32_t token = 0;      // part of the sequence, unless it ends with end_of_text or error
    End end = End::none;         // why the sequence has ended; it is then gone
    std::optional<Error> error;  // logits that are not finite
  };

  // All memory is planned and taken here. The Context must be one of the weights' device and outlive this.
  DecodingEngine(Context& context, DecoderWeights weights, const DecodingOptions& options = {});
  ~DecodingEngine();

  const MemoryPlan& plan() const;
  // The memory plan of an engine, without its weights. The second form needs no loaded weights, and plans for
  // weights that are not packed.
  static MemoryPlan planned(Context& context, const DecoderWeights& weights,
                            const DecodingOptions& options = {});
  static MemoryPlan planned(Context& context, const Decoder& decoder, DType dtype,
                            const DecodingOptions& options = {});

  // Adds a sequence: at least one token, at most the context, each below the vocabulary; otherwise
  // UsageError, and the other sequences go on. If a sequence fills the context, its older half is dropped and
  // the rest runs again from position 0, because absolute positions cannot slide.
  Id add(std::span<const std::int32_t> prompt, const GenerationOptions& options);
  // Ends a sequence early. Does nothing if it has ended.
  void remove(Id sequence);
  // For weights that have changed since the last step: nothing in the cache is shared any more. The engine
  // must be idle.
  void forget_beginnings();
  // One pass. Returns the tokens that it has drawn, in the order in which the sequences were added: none if
  // prompts are not complete yet, or if no sequence is left. A sequence that was added since may have to wait
  // for a pass that already runs. If the cache is full, the newest sequences wait, and run again from their
  // beginning when there is room.
  std::vector<Drawn> step();
  // True if no sequence is left.
  bool idle() const { return running_.empty() && waiting_.empty(); }
  std::int64_t running() const { return static_cast<std::int64_t>(running_.size()); }
  std::int64_t waiting() const { return static_cast<std::int64_t>(waiting_.size()); }

  // Called with the logits (V) from which each token is drawn. It must not call the engine. Without it,
  // logits never leave the device. With it, no pass begins before the last one has ended.
  std::function<void(Id sequence, std::span<const float> logits)> on_logits;

 private:
  struct Sizes;
  struct Tensors;
  struct HostViews;
  struct Sequence;
  struct Part;  // of a sequence in a pass
  struct Pass;
  // Names the graph of a pass over single tokens. There are three for each number of rows.
  struct GraphKey {
    std::int64_t rows;
    bool ahead;
    const HostViews* host;
    auto operator<=>(const GraphKey&) const = default;
  };
  using Sequences = std::deque<std::unique_ptr<Sequence>>;

  static Sizes sizes_of(const Decoder& decoder, const DecodingOptions& options);
  static Tensors allocate(const Decoder& decoder, DType dtype, const DecoderParameters& parameters,
                          const Sizes& sizes, Allocator& allocator);
  static void run(Context& context, const Tensors& tensors, std::int64_t n, std::int64_t S,
                  CachedPass::Sees sees);
  static Planned<Tensors> plan_passes(Context& context, const Sizes& sizes,
                                      std::function<Tensors(Allocator&)> allocate);

  void admit();
  bool is_computed_by_another(const Sequence& sequence) const;
  bool take_blocks(Sequence& sequence, std::int64_t tokens);
  bool make_room(Sequence& sequence, std::int64_t tokens);
  void suspend_newest();
  void forget_cache(Sequence& sequence);
  std::vector<Part> next_parts(bool of_prompts);
  void write(const HostViews& host, const std::vector<Part>& parts, std::int64_t n, std::int64_t S,
             bool ahead);
  void write_sampling(const HostViews& host, const std::vector<Part>& parts, std::int64_t S, bool ahead);
  void run_pass(const HostViews& host, std::int64_t n, std::int64_t S, CachedPass::Sees sees, bool ahead);
  Pass run_prompts(std::vector<Part> parts);
  Pass run_tokens(std::vector<Part> parts, HostViews& host, bool ahead);
  bool may_run_ahead(const Pass& pass) const;
  void run_ahead(const Pass& pass);
  void settle() noexcept;
  std::optional<Pass> next_pass();
  void offer_full_blocks(Sequence& sequence);
  std::vector<Drawn> draw_after(const Pass& pass);
  void report_logits(const std::vector<Part>& parts);
  Drawn drawn_after(Sequence& sequence, std::int32_t token);

  Context& context_;
  DecoderWeights weights_;
  std::unique_ptr<Sizes> sizes_;
  std::unique_ptr<Planned<Tensors>> planned_;
  std::unique_ptr<HostViews> host_[2];
  HostView host_tokens_, host_seen_;
  std::optional<HostView> host_logits_;  // if somebody wants to see them
  CacheBlocks blocks_;
  Sequences running_, waiting_;  // in the order in which they were added
  Id next_id_ = 0;
  Stream own_stream_;  // of a GPU: graphs are captured on it
  std::map<GraphKey, Captured> graphs_;
  std::unique_ptr<Pass> ahead_;  // given to the device before the host has seen what the last one drew
  bool ran_prompts_ = false;     // in the last pass
};

// Continues the prompt alone and hands each new token to `emit`, which may return false to stop. The
// end-of-text token is not emitted. The engine must be idle.
void generate(DecodingEngine& engine, std::span<const std::int32_t> prompt, const GenerationOptions& options,
              const std::function<bool(std::int32_t token)>& emit);

}  // namespace warpwright
