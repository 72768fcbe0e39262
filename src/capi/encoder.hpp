// An encoder of the C ABI, shared by the files that make it, give it texts, and give it token ids.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "capi/context.hpp"
#include "capi/handles.hpp"
#include "core/error.hpp"
#include "infer/encode.hpp"

// Connects the caller's tensors with the model's.
struct warpwright_encoder {
  using Result = warpwright::BertSession::Result;

  warpwright_encoder(std::shared_ptr<warpwright_context> owner, const warpwright_encoder_options& options);
  ~warpwright_encoder();

  warpwright::BertSession& model() { return texts ? texts->model() : *ids_only; }
  const warpwright::BertSession& model() const { return texts ? texts->model() : *ids_only; }

  // Takes over the owner's stream and threads for the next call.
  void follow_owner();
  // Throws Error unless a call's sequences fit in one batch.
  void require_one_batch(const warpwright_encoder_tokens_args& args) const;
  // Runs a checked call in batches that fit the model's memory.
  void run(const warpwright_encoder_tokens_args& args, const warpwright::BertAttention& attention);
  // Runs the layers over padded states with a mask on a GPU.
  void run_layers(const warpwright_encoder_tokens_args& args, const warpwright::Tensor& mask);

  std::shared_ptr<warpwright_context> owner;
  warpwright::Context context;
  std::unique_ptr<warpwright::Encoder> texts;  // only for a folder with a tokenizer
  std::unique_ptr<warpwright::BertSession> ids_only;
  std::vector<warpwright::EncodedText> report;

 private:
  // The sequences [first, last) of a call, as one batch of the model.
  struct Part {
    std::int64_t first = 0, last = 0;
    warpwright::PackedBatch batch;
    std::int64_t tokens = 0;            // in the batch, without kept padding
    std::vector<std::int32_t> indices;  // for a padded call: the batch's rows among (last − first)·length
  };
  Part part_from(const warpwright_encoder_tokens_args& args, std::int64_t first) const;
  void run_part(const warpwright_encoder_tokens_args& args, const Part& part,
                const warpwright::BertAttention& attention);
  // A part's offsets and indices on the device.
  struct Places {
    warpwright::Tensor cu_seqlens, indices;
  };
  Places upload(const Part& part);

  warpwright::Buffer places_, host_places_;                // the memory of Places; a CPU uses only the second
  std::optional<warpwright::Event> places_copied_, done_;  // the latest events of a GPU
};

namespace warpwright::capi {

BertSession::Result result_of(std::string_view function, warpwright_encoder_result result);

using Encoders = Handles<warpwright_encoder>;

struct EncoderInCall : ModelInCall<warpwright_encoder> {
  EncoderInCall(std::string_view function, const warpwright_encoder* handle)
      : ModelInCall(function, "encoder", handle) {}
};

}  // namespace warpwright::capi
