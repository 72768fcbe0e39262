// The integers of a DecoderBatch as the host writes them.
#pragma once

#include "model/decoder.hpp"
#include "runtime/host_view.hpp"

namespace warpwright {

struct BatchViews {
  explicit BatchViews(const DecoderBatch& batch)
      : tokens(batch.tokens), positions(batch.positions), cu_seqlens(batch.cu_seqlens) {}

  void upload(const Stream& stream) const {
    for (const HostView* view : {&tokens, &positions, &cu_seqlens}) view->upload(stream);
  }

  HostView tokens, positions, cu_seqlens;
};

}  // namespace warpwright
