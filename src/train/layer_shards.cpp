#include "train/layer_shards.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "core/error.hpp"
#include "ops/gradient_sum/gradient_sum.hpp"
#include "train/slice_tree.hpp"

namespace warpwright {
namespace {

// The layer of a parameter, or the number of layers for one outside of them.
std::size_t unit_of(const LayerParameters& l, std::size_t parameter) {
  const bool inside = parameter >= l.first && parameter < l.first + l.each * l.layers;
  return inside ? (parameter - l.first) / l.each : l.layers;
}

// "h.*.ln_1.weight" for "h.0.ln_1.weight": the place that all layers share.
std::string shared_name(const std::string& of_first_layer) {
  const std::size_t number = of_first_layer.find(".0.");
  return number == std::string::npos
             ? of_first_layer + " of a layer"
             : fmt::format("{}.*.{}", of_first_layer.substr(0, number), of_first_layer.substr(number + 3));
}

std::vector<Tensor> at(const std::vector<Tensor>& tensors, const std::vector<std::size_t>& indices) {
  std::vector<Tensor> list;
  for (const std::size_t i : indices) list.push_back(tensors[i]);
  return list;
}

// The elements from a tensor's place to the next one's.
std::int64_t place_of(const Tensor& t) {
  const auto unit = static_cast<std::int64_t>(kAlignment / size_of(t.dtype));
  return (t.elements() + unit - 1) / unit * unit;
}

// Places tensors of these shapes in `memory`, one after the other.
std::vector<Tensor> placed(const std::vector<Tensor>& like, const Tensor& memory) {
  std::vector<Tensor> list;
  std::int64_t first = 0;
  for (const Tensor& t : like) {
    list.push_back(memory.slice(0, first, t.elements()).view(t.shape));
    first += place_of(t);
  }
  return list;
}

std::int64_t elements_for(const std::vector<Tensor>& like) {
  std::int64_t elements = 0;
  for (const Tensor& t : like) elements += place_of(t);
  return elements;
}

}  // namespace

DecoderParameters allocate_one_layer(const Decoder& decoder, DType dtype, Category category,
                                     std::string_view prefix, Allocator& allocator) {
  Recorder recorder;
  const LayerParameters l = decoder.layer_parameters();
  std::vector<Tensor> of_layer;
  DecoderParameters all;
  std::size_t index = 0;
  for (const auto& [name, t] : decoder.allocate_parameters(dtype, category, "", recorder)) {
    const std::size_t unit = unit_of(l, index), in_layer = (index - l.first) % l.each;
    ++index;
    if (unit == l.layers) {
      all.append(name, allocator.allocate(std::string(prefix) + name, t.dtype, t.shape, category));
      continue;
    }
    if (unit == 0) {
      of_layer.push_back(
          allocator.allocate(std::string(prefix) + shared_name(name), t.dtype, t.shape, category));
    }
    if (of_layer[in_layer].shape != t.shape || of_layer[in_layer].dtype != t.dtype) {
      throw Error(fmt::format("{} has another shape than in the first layer", name), "--shard",
                  "use optimizer");
    }
    all.append(name, of_layer[in_layer]);
  }
  return all;
}

Shards shards_by_layer(const Decoder& decoder, const std::vector<Tensor>& parameters, int ranks) {
  const LayerParameters l = decoder.layer_parameters();
  std::vector<std::vector<std::size_t>> units(l.layers + 1);
  for (std::size_t i = 0; i < parameters.size(); ++i) units[unit_of(l, i)].push_back(i);
  Shards shards(static_cast<std::size_t>(ranks));
  for (const std::vector<std::size_t>& unit : units) {
    const Shards cut = shards_of(at(parameters, unit), ranks);
    for (std::size_t r = 0; r < cut.size(); ++r) {
      for (const ShardPiece& piece : cut[r])
        shards[r].push_back({unit[piece.tensor], piece.first, piece.rows});
    }
  }
  for (ShardPieces& pieces : shards) std::ranges::sort(pieces, {}, &ShardPiece::tensor);
  return shards;
}

LayerShards::LayerShards(const Comm& comm, const Decoder& decoder, const Shards& shards, std::int64_t slices)
    : comm_(comm), shard_(of_rank(shards)) {
  const LayerParameters l = decoder.layer_parameters();
  units_.assign(l.layers + 1, {.pieces = Shards(shards.size()), .mine = {}});
  for (std::size_t r = 0; r < shards.size(); ++r) {
    for (const ShardPiece& piece : shards[r]) units_[unit_of(l, piece.tensor)].pieces[r].push_back(piece);
  }
  for (std::size_t i = 0; i < shard_.size(); ++i) units_[unit_of(l, shard_[i].tensor)].mine.push_back(i);
  additions_ = slice_tree(slice_nodes(0, slices), slices).additions;
  std::size_t height = 0;
  for (const int additions : additions_) {
    heights_.push_back(height);
    if (additions == 0) depth_ = std::max(depth_, height + 1);
    height = height + 1 - static_cast<std::size_t>(additions);
  }
}

LayerShards::Sums LayerShards::allocate_sums(const std::vector<Tensor>& gradients,
                                             Allocator& allocator) const {
  Sums sums;
  sums.levels.resize(depth_);
  for (std::size_t level = 0; level < depth_; ++level) {
    for (std::size_t i = 0; i < shard_.size(); ++i) {
      const Tensor like = shard_[i].of(gradients);
      sums.levels[level].push_back(allocator.allocate(fmt::format("sum_{}.{}", level + 1, i), like.dtype,
                                                      like.shape, Category::gradients));
    }
  }
  std::int64_t largest = 0;
  for (const Unit& unit : units_) {
    largest = std::max(largest, elements_for(pieces_of(of_rank(unit.pieces), gradients)));
  }
  for (int r = 1; r < comm_.size(); ++r) {
    sums.received.push_back(allocator.allocate(fmt::format("received_{}", r), gradients.front().dtype,
                                               {largest}, Category::gradients));
  }
  return sums;
}

// The same additions, in the same order, as on a stack of all gradients.
void LayerShards::push(Context& context, std::size_t leaf, const std::vector<std::size_t>& indices,
                       const std::vector<Tensor>& addends, const Sums& sums) const {
  const auto level = [&](std::size_t height) { return at(sums.levels[height], indices); };
  const std::size_t height = heights_[leaf];
  if (additions_[leaf] == 0) {
    const std::vector<Tensor> to = level(height);
    for (std::size_t i = 0; i < to.size(); ++i) copy(to[i], addends[i], context.stream());
    return;
  }
  ops::gradient_sum(context, {.sums = level(height - 1), .addends = addends});
  for (std::size_t done = 1; done < static_cast<std::size_t>(additions_[leaf]); ++done) {
    ops::gradient_sum(context, {.sums = level(height - 1 - done), .addends = level(height - done)});
  }
}

void LayerShards::add(Context& context, std::size_t unit, std::int64_t round,
                      const std::vector<Tensor>& gradients, const Sums& sums) const {
  const auto& [pieces, mine] = units_[unit];
  const std::vector<Tensor> own = pieces_of(of_rank(pieces), gradients);
  std::vector<Comm::Outgoing> send;
  std::vector<Comm::Incoming> receive;
  std::vector<std::vector<Tensor>> addends;  // by rank
  std::size_t other = 0;
  for (int r = 0; r < comm_.size(); ++r) {
    if (r == comm_.rank()) {
      addends.push_back(own);
      continue;
    }
    for (const Tensor& piece : pieces_of(pieces[static_cast<std::size_t>(r)], gradients)) {
      send.push_back({r, bytes_of(piece)});
    }
    addends.push_back(placed(own, sums.received[other++]));
    for (const Tensor& piece : addends.back()) receive.push_back({r, bytes_of(piece)});
  }
  comm_.all_to_all(send, receive, context.stream());
  for (std::size_t r = 0; r < addends.size(); ++r) {
    const std::size_t leaf = static_cast<std::size_t>(round * comm_.size()) + r;
    push(context, leaf, mine, addends[r], sums);
  }
}

void LayerShards::gather(std::size_t unit, const std::vector<Tensor>& stored,
                         const std::vector<Tensor>& whole, const Stream& stream) const {
  for (const std::size_t i : units_[unit].mine) copy(shard_[i].of(whole), stored[i], stream);
  gather_shards(comm_, units_[unit].pieces, whole, stream);
}

}  // namespace warpwright
