// The speeds of links between ranks, for predictions.
#pragma once

#include <optional>

#include "comm/comm.hpp"
#include "runtime/context.hpp"

namespace warpwright::cli {

// Bytes a second that a rank sends, if that was measured.
struct LinkSpeeds {
  std::optional<double> node;     // to the other ranks of its machine
  std::optional<double> network;  // to those of other machines
};

// Lets all ranks send to all others for a moment. The slowest rank counts. Every rank makes this call. comm:
// one that carries tensors of the Context's device.
LinkSpeeds measured_links(Context& context, const Comm& comm);

}  // namespace warpwright::cli
