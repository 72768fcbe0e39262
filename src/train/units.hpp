// Units: the parts of a model that ranks exchange at a time. Each layer is one, and the parameters outside of
// the layers are another.
#pragma once

#include <string_view>
#include <vector>

#include "model/decoder.hpp"
#include "train/shards.hpp"

namespace warpwright {

class Units {
 public:
  explicit Units(const Decoder& decoder) : layers_(decoder.layer_parameters()) {}

  std::size_t count() const { return layers_.layers + 1; }
  std::size_t others() const { return layers_.layers; }  // the unit outside of the layers
  static constexpr std::size_t kLast = 0;                // the first layer: the backward ends with it
  std::size_t of(std::size_t parameter) const;

  // The unit's tensors among those of all parameters.
  std::vector<Tensor> of_all(std::size_t unit, const std::vector<Tensor>& all) const;
  // The indices of the pieces that belong to the unit.
  std::vector<std::size_t> indices(std::size_t unit, const ShardPieces& pieces) const;
  // Those pieces, for each rank.
  Shards part(std::size_t unit, const Shards& shards) const;

 private:
  LayerParameters layers_;
};

std::vector<Tensor> at(const std::vector<Tensor>& tensors, const std::vector<std::size_t>& indices);

// Like shards_of(), but each unit is cut by itself, so that every rank owns a part of each. The parameters in
// `whole` are not cut, and a rank may have none of a unit: in order, each goes to the rank that has the
// fewest elements of them until then.
Shards shards_by_unit(const Units& units, const std::vector<Tensor>& parameters, const LayerMatrices& whole,
                      int ranks);

// One tensor per parameter, as Decoder::allocate_parameters() gives them. But the layers share `places` of
// them: layer l is at l % places.
DecoderParameters allocate_layer_places(const Decoder& decoder, std::size_t places, DType dtype,
                                        Category category, std::string_view prefix, Allocator& allocator);

}  // namespace warpwright
