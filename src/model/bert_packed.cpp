#include "model/bert_packed.hpp"

#include <fmt/format.h>
#include <signal.h>

#include <algorithm>
#include <string>
#include <utility>

#include "core/error.hpp"
#include "ops/matmul/packed.hpp"

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
  const std::int64_t H = c.hidden, I = c.intermediate;
  return {{.packed = &Layer::qkv, .linear = &BertBlock::qkv, .out = 3 * H, .in = H},
          {.packed = &Layer::attproj, .linear = &BertBlock::attproj, .out = H, .in = H},
          {.packed = &Layer::fc, .linear = &BertBlock::fc, .out = I, .in = H},
          {.packed = &Layer::fcproj, .linear = &BertBlock::fcproj, .out = H, .in = I}};
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

// The weights of a model's file in the layout of packed_layout.
Buffer lay_out(const Context& context, const BertFile& file, const BertConfig& config, DType dtype,
               std::size_t bytes) {
  Buffer memory(bytes, Device{}, "packed weights");
  const std::vector<Layer> layers = views(memory.data(), config, dtype, context.device(), bytes);
  std::size_t largest = 0;
  for (const Part& part : parts_of(config)) {
    largest = std::max(largest, Tensor(nullptr, dtype, {part.out, part.in}).bytes());
  }
  const Buffer weight(largest, Device{}, "a weight");
  for (std::size_t l = 0; l < layers.size(); ++l) {
    for (const Part& part : parts_of(config)) {
      BertBlock block;
      (block.*part.linear).weight = Tensor(weight.data(), dtype, {part.out, part.in});
      file.load_layer(l, block);
      ops::pack_weight(context, (block.*part.linear).weight, layers[l].*part.packed);
    }
  }
  return memory;
}

// While it lives, hitting the file-size limit (ulimit -f) makes the write fail instead of raising a signal
// that would end the caller's process.
class WithoutFileSizeSignal {
 public:
  WithoutFileSizeSignal() {
    sigemptyset(&signal_);
    sigaddset(&signal_, SIGXFSZ);
    pthread_sigmask(SIG_BLOCK, &signal_, &before_);
  }
  ~WithoutFileSizeSignal() {
    const timespec no_time{};
    if (!sigismember(&before_, SIGXFSZ)) sigtimedwait(&signal_, nullptr, &no_time);
    pthread_sigmask(SIG_SETMASK, &before_, nullptr);
  }

 private:
  sigset_t signal_, before_;
};

void write(const fs::path& path, const std::string& header, std::span<const std::byte> weights) {
  const WithoutFileSizeSignal without_signal;
  create_folders(path.parent_path());
  AtomicFile out(path, AtomicFile::Order::forward, Links::never);
  out.file().write(header);
  out.file().write(weights);
  out.commit();
}

}  // namespace

std::optional<BertPackedWeights> BertPackedWeights::open(const Context& context, const BertFile& file,
                                                         const BertConfig& config, DType dtype,
                                                         const fs::path& cache) {
  const std::string layout = ops::packed_layout(dtype, context.device());
  if (layout.empty()) return std::nullopt;
  std::size_t bytes = 0;
  views(nullptr, config, dtype, context.device(), bytes);
  BertPackedWeights weights;
  const auto use = [&](const std::byte* data) {
    // Nothing writes through a view of a weight that MatmulForward only reads.
    weights.layers_ = views(const_cast<std::byte*>(data), config, dtype, context.device(), bytes);
    return std::move(weights);
  };
  const std::string model = cache.empty() ? "" : file.checksum();
  const fs::path path = cache / fmt::format("{}.{}.weights", model.substr(model.find(':') + 1), layout);
  const auto map = [&] {
    weights.file_ = MappedFile(path, Mapping::always, Links::never);
    return is_whole(weights.file_, layout, model, bytes);
  };
  try {
    if (!cache.empty() && map()) return use(weights.file_.bytes().data() + kHeaderBytes);
  } catch (const Error&) {  // it is not there or cannot be read, and is laid out again
  }
  weights.memory_ = lay_out(context, file, config, dtype, bytes);
  const std::span<const std::byte> laid_out(weights.memory_.data(), bytes);
  try {
    if (!cache.empty()) {
      write(path, header_of(layout, model, laid_out), laid_out);
      if (map()) {
        weights.memory_ = Buffer();
        return use(weights.file_.bytes().data() + kHeaderBytes);
      }
    }
  } catch (const Error&) {  // the cache may be read-only, or full
  }
  return use(laid_out.data());
}

}  // namespace warpwright
