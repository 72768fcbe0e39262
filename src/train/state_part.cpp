#include "train/state_part.hpp"

#include <algorithm>

namespace warpwright {
namespace {

// Calls f(set of a part) for both sets.
template <class F>
void for_each_set(const F& f) {
  f(&StatePart::parameters);
  f(&StatePart::optimizer);
}

std::size_t aligned_bytes(const StatePart& part) {
  std::size_t bytes = 0;
  for_each_set([&](auto set) {
    for (const auto& [name, tensor] : part.*set) bytes += round_up(tensor.bytes());
  });
  return bytes;
}

}  // namespace

std::size_t StatePart::bytes() const {
  std::size_t bytes = 0;
  for_each_set([&](auto set) {
    for (const auto& [name, tensor] : this->*set) bytes += tensor.bytes();
  });
  return bytes;
}

std::vector<int> writers_of(const std::vector<Tensor>& parameters, int ranks) {
  std::vector<std::size_t> bytes(static_cast<std::size_t>(ranks));
  std::vector<int> writers;
  for (const Tensor& parameter : parameters) {
    const auto least = std::ranges::min_element(bytes);
    *least += parameter.bytes();
    writers.push_back(static_cast<int>(least - bytes.begin()));
  }
  return writers;
}

DecoderParameters optimizer_part(const DecoderParameters& parameters, const OptimizerShard& shard,
                                 const ShardPieces& pieces) {
  DecoderParameters part;
  for (const OptimizerTensor& tensor : optimizer_tensors(parameters, shard)) {
    for (const ShardPiece& piece : pieces) {
      if (piece.tensor != tensor.parameter) continue;
      const auto held = std::ranges::find(shard.pieces, piece.tensor, &ShardPiece::tensor);
      const Tensor& rows = (shard.*tensor.set)[static_cast<std::size_t>(held - shard.pieces.begin())];
      part.append(name_of_piece(tensor.name, piece, tensor.shape[0]),
                  rows.slice(0, piece.first - held->first, piece.rows));
    }
  }
  return part;
}

Snapshot::Snapshot(const StatePart& part, Device device) {
  constexpr const char* kPurpose = "a copy of the state for checkpoints";
  const std::size_t bytes = aligned_bytes(part);
  buffer_ =
      device.kind == DeviceKind::cpu ? Buffer(bytes, device, kPurpose) : Buffer::pinned(bytes, kPurpose);
}

StatePart Snapshot::copy_of(const StatePart& part, const Stream& stream) const {
  StatePart result{.parameters = {}, .optimizer = {}, .files_of_weights = part.files_of_weights};
  std::byte* next = buffer_.data();
  for_each_set([&](auto set) {
    for (const auto& [name, tensor] : part.*set) {
      const Tensor host(next, tensor.dtype, tensor.shape);
      copy(host, tensor, stream);
      (result.*set).append(name, host);
      next += round_up(tensor.bytes());
    }
  });
  stream.synchronize();
  return result;
}

}  // namespace warpwright
