#include "model/bert_packed.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <utility>

#include "core/error.hpp"
#include "ops/matmul/packed.hpp"
#include "runtime/memory.hpp"

namespace warpwright {
namespace {

namespace fs = std::filesystem;
using Layer = BertPackedWeights::Layer;

constexpr std::size_t kHeaderBytes = 4096;

// Shape and place of each weight of a layer.
struct Part {
  Tensor Layer::*packed;
  BertLinear BertBlock::*linear;
  std::int64_t out, in;
};
std::vector<Part> parts_of(const BertConfig& c) {
  return {{&Layer::qkv, &BertBlock::qkv, 3 * c.hidden, c.hidden},
          {&Layer::attproj, &BertBlock::attproj, c.hidden, c.hidden},
          {&Layer::fc, &BertBlock::fc, c.intermediate, c.hidden},
          {&Layer::fcproj, &BertBlock::fcproj, c.hidden, c.intermediate}};
}

// Views of the weights from `data` on, which is null to learn the size alone.
std::vector<Layer> views(std::byte* data, const BertConfig& config, DType dtype, const DeviceInfo& device,
                         std::size_t& bytes) {
  std::vector<Layer> layers(static_cast<std::size_t>(config.layers));
  bytes = 0;
  for (Layer& layer : layers) {
    for (const Part& part : parts_of(config)) {
      const std::int64_t size = ops::packed_bytes(part.out, part.in, dtype, device);
      layer.*part.packed = Tensor(data ? data + bytes : nullptr, DType::u8, {size});
      bytes += static_cast<std::size_t>(size);
    }
  }
  return layers;
}

std::string header_of(const std::string& layout, const std::string& model,
                      std::span<const std::byte> weights) {
  std::string header = fmt::format("warpwright packed weights 1 {} {} {} {}\n", layout, model, weights.size(),
                                   checksum_of(weights));
  header.resize(kHeaderBytes, '\0');
  return header;
}

bool is_whole(const MappedFile& file, const std::string& layout, const std::string& model,
              std::size_t bytes) {
  if (file.size() != kHeaderBytes + bytes) return false;
  const std::span<const std::byte> all = file.bytes();
  const std::string header = header_of(layout, model, all.subspan(kHeaderBytes));
  return std::ranges::equal(std::as_bytes(std::span(header)), all.first(kHeaderBytes));
}

void make(const Context& context, const BertFile& file, const BertConfig& config, DType dtype,
          const std::string& layout, const std::string& model, const fs::path& path) {
  std::size_t bytes = 0;
  views(nullptr, config, dtype, context.device(), bytes);
  const Buffer memory(bytes, Device{}, "packed weights");
  const std::vector<Layer> layers = views(memory.data(), config, dtype, context.device(), bytes);
  for (std::size_t l = 0; l < layers.size(); ++l) {
    for (const Part& part : parts_of(config)) {
      const Tensor shape(nullptr, dtype, {part.out, part.in});
      const Buffer weight(shape.bytes(), Device{}, "a weight");
      BertBlock block;
      (block.*part.linear).weight = Tensor(weight.data(), dtype, shape.shape);
      file.load_layer(l, block);
      ops::pack_weight(context, (block.*part.linear).weight, layers[l].*part.packed);
    }
  }
  AtomicFile out(path);
  const std::span<const std::byte> weights(memory.data(), bytes);
  out.file().write(header_of(layout, model, weights));
  out.file().write(weights);
  out.commit();
}

}  // namespace

BertPackedWeights::BertPackedWeights(MappedFile file, const BertConfig& config, DType dtype,
                                     const DeviceInfo& device)
    : file_(std::move(file)) {
  // Nothing writes through a view of what MatmulForward only reads.
  auto* data = const_cast<std::byte*>(file_.bytes().data()) + kHeaderBytes;
  std::size_t bytes = 0;
  layers_ = views(data, config, dtype, device, bytes);
}

std::optional<BertPackedWeights> BertPackedWeights::open(const Context& context, const BertFile& file,
                                                         const BertConfig& config, DType dtype,
                                                         const fs::path& cache) {
  const std::string layout = ops::packed_layout(dtype, context.device());
  if (layout.empty()) return std::nullopt;
  const std::string model = checksum_of(file.path());
  const fs::path path = cache / fmt::format("{}.{}.weights", model.substr(model.find(':') + 1), layout);
  std::size_t bytes = 0;
  views(nullptr, config, dtype, context.device(), bytes);
  if (path_exists(path)) {
    MappedFile mapped(path);
    if (is_whole(mapped, layout, model, bytes)) {
      return BertPackedWeights(std::move(mapped), config, dtype, context.device());
    }
  }
  create_folders(cache);
  remove_stale_partials(cache);
  make(context, file, config, dtype, layout, model, path);
  return BertPackedWeights(MappedFile(path), config, dtype, context.device());
}

}  // namespace warpwright
