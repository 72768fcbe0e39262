#include "train/units.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "core/error.hpp"

namespace warpwright {
namespace {

// "h.*1.ln_1.weight" for "h.1.ln_1.weight": the place that layer 1 shares with others.
std::string shared_name(const std::string& name, std::size_t layer) {
  const std::string number = fmt::format(".{}.", layer);
  const std::size_t at = name.find(number);
  return at == std::string::npos ? fmt::format("{} of layers", name)
                                 : fmt::format("{}.*{}", name.substr(0, at), name.substr(at + 1));
}

}  // namespace

std::size_t Units::of(std::size_t parameter) const {
  const bool inside = parameter >= layers_.first && parameter < layers_.first + layers_.each * layers_.layers;
  return inside ? (parameter - layers_.first) / layers_.each : others();
}

std::vector<Tensor> Units::of_all(std::size_t unit, const std::vector<Tensor>& all) const {
  std::vector<Tensor> list;
  for (std::size_t i = 0; i < all.size(); ++i) {
    if (of(i) == unit) list.push_back(all[i]);
  }
  return list;
}

std::vector<std::size_t> Units::indices(std::size_t unit, const ShardPieces& pieces) const {
  std::vector<std::size_t> list;
  for (std::size_t i = 0; i < pieces.size(); ++i) {
    if (of(pieces[i].tensor) == unit) list.push_back(i);
  }
  return list;
}

Shards Units::part(std::size_t unit, const Shards& shards) const {
  Shards part;
  for (const ShardPieces& pieces : shards) {
    ShardPieces& mine = part.emplace_back();
    for (const std::size_t i : indices(unit, pieces)) mine.push_back(pieces[i]);
  }
  return part;
}

std::vector<Tensor> at(const std::vector<Tensor>& tensors, const std::vector<std::size_t>& indices) {
  std::vector<Tensor> list;
  for (const std::size_t i : indices) list.push_back(tensors[i]);
  return list;
}

Shards shards_by_unit(const Units& units, const std::vector<Tensor>& parameters, const LayerMatrices& whole,
                      int ranks) {
  Shards shards(static_cast<std::size_t>(ranks));
  std::vector<std::int64_t> elements(shards.size());  // of whole parameters
  std::vector<std::vector<std::size_t>> of_unit(units.count());
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    if (!whole.contains(i)) {
      of_unit[units.of(i)].push_back(i);
      continue;
    }
    const auto least = std::ranges::min_element(elements);
    *least += parameters[i].elements();
    shards[static_cast<std::size_t>(least - elements.begin())].push_back({i, 0, parameters[i].shape[0]});
  }
  for (const std::vector<std::size_t>& unit : of_unit) {
    const Shards cut = shards_of(at(parameters, unit), ranks);
    for (std::size_t r = 0; r < cut.size(); ++r) {
      for (const ShardPiece& piece : cut[r])
        shards[r].push_back({unit[piece.tensor], piece.first, piece.rows});
    }
  }
  for (ShardPieces& pieces : shards) std::ranges::sort(pieces, {}, &ShardPiece::tensor);
  return shards;
}

DecoderParameters allocate_layer_places(const Decoder& decoder, std::size_t places, DType dtype,
                                        Category category, std::string_view prefix, Allocator& allocator) {
  Recorder recorder;
  const LayerParameters l = decoder.layer_parameters();
  const Units units(decoder);
  std::vector<Tensor> of_layers;
  DecoderParameters all;
  std::size_t index = 0;
  for (const auto& [name, t] : decoder.allocate_parameters(dtype, category, "", recorder)) {
    const std::size_t unit = units.of(index), in_layers = index - l.first;
    ++index;
    if (unit == units.others()) {
      all.append(name, allocator.allocate(std::string(prefix) + name, t.dtype, t.shape, category));
      continue;
    }
    if (unit < places) {
      of_layers.push_back(
          allocator.allocate(std::string(prefix) + shared_name(name, unit), t.dtype, t.shape, category));
    }
    const Tensor& place = of_layers[in_layers % (l.each * places)];
    if (place.shape != t.shape || place.dtype != t.dtype) {
      throw Error(fmt::format("{} has another shape than in the first layer", name), "--shard",
                  "use optimizer");
    }
    all.append(name, place);
  }
  return all;
}

}  // namespace warpwright
