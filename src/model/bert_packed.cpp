#include "model/bert_packed.hpp"

#include <fmt/format.h>
#include <signal.h>

#include <algorithm>
#include <string>
#include <utility>

#include "core/error.hpp"
#include "runtime/philox.hpp"

namespace warpwright {
namespace {

namespace fs = std::filesystem;
using Layer = BertPackedWeights::Layer;

constexpr std::size_t kHeaderBytes = 4096;

// Name, shape and place of each weight of a layer.
struct Part {
  const char* name;
  Tensor Layer::*packed;
  Linear BertBlock::*linear;
  std::int64_t out, in;
};
std::vector<Part> parts_of(const BertConfig& c) {
  const std::int64_t H = c.hidden, I = c.intermediate;
  return {{.name = "qkv", .packed = &Layer::qkv, .linear = &BertBlock::qkv, .out = 3 * H, .in = H},
          {.name = "attproj", .packed = &Layer::attproj, .linear = &BertBlock::attproj, .out = H, .in = H},
          {.name = "fc", .packed = &Layer::fc, .linear = &BertBlock::fc, .out = I, .in = H},
          {.name = "fcproj", .packed = &Layer::fcproj, .linear = &BertBlock::fcproj, .out = H, .in = I}};
}

// Views of the weights from `data` on, which is null to learn the size alone.
std::vector<Layer> views(std::byte* data, const BertConfig& config, const PackedLayout& layout,
                         std::size_t& bytes) {
  std::vector<Layer> layers(static_cast<std::size_t>(config.layers));
  bytes = 0;
  for (Layer& layer : layers) {
    for (const Part& part : parts_of(config)) {
      const std::int64_t size = layout.bytes(part.out, part.in);
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

// The weights in this layout. fill(l, part, weight) sets a weight of layer l and returns factors for it, or
// nothing.
template <class Fill>
Buffer lay_out(const Context& context, const BertConfig& config, const PackedLayout& layout, Fill&& fill) {
  std::size_t bytes = 0, largest = 0;
  views(nullptr, config, layout, bytes);
  Buffer memory(bytes, Device{}, "packed weights");
  const std::vector<Layer> layers = views(memory.data(), config, layout, bytes);
  for (const Part& part : parts_of(config)) {
    largest = std::max(largest, Tensor(nullptr, layout.dtype, {part.out, part.in}).bytes());
  }
  const Buffer buffer(largest, Device{}, "a weight");
  for (std::size_t l = 0; l < layers.size(); ++l) {
    for (const Part& part : parts_of(config)) {
      const Tensor weight(buffer.data(), layout.dtype, {part.out, part.in});
      std::vector<float> factors = fill(l, part, weight);
      const Tensor known = factors.empty() ? Tensor() : Tensor(factors.data(), DType::f32, {part.in});
      try {
        layout.pack(context, weight, known, layers[l].*part.packed);
      } catch (const Error& error) {
        throw Error(error.problem(), fmt::format("layer {}'s {}", l, part.name),
                    "check the model's weights, or use fp32");
      }
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
                                                         const BertConfig& config, const Precision& precision,
                                                         const fs::path& cache) {
  const PackedLayout layout(precision, context.device());
  if (layout.name.empty()) return std::nullopt;
  std::size_t bytes = 0;
  views(nullptr, config, layout, bytes);
  BertPackedWeights weights;
  const auto use = [&](const std::byte* data) {
    // Nothing writes through a view of a weight that MatmulForward only reads.
    weights.layers_ = views(const_cast<std::byte*>(data), config, layout, bytes);
    return std::move(weights);
  };
  const std::string model = cache.empty() ? "" : file.checksum();
  const fs::path path = cache / fmt::format("{}.{}.weights", model.substr(model.find(':') + 1), layout.name);
  const auto map = [&] {
    weights.file_ = MappedFile(path, Mapping::always, Links::never);
    return is_whole(weights.file_, layout.name, model, bytes);
  };
  try {
    if (!cache.empty() && map()) return use(weights.file_.bytes().data() + kHeaderBytes);
  } catch (const Error&) {  // it is not there or cannot be read, and is laid out again
  }
  weights.memory_ =
      lay_out(context, config, layout, [&](std::size_t l, const Part& part, const Tensor& weight) {
        BertBlock block;
        (block.*part.linear).weight = weight;
        std::vector<float> norm(2 * static_cast<std::size_t>(config.hidden));
        const Tensor gain(norm.data(), DType::f32, {config.hidden});
        const Tensor shift(norm.data() + config.hidden, DType::f32, {config.hidden});
        const bool qkv = part.linear == &BertBlock::qkv, fc = part.linear == &BertBlock::fc;
        if (layout.int8 && qkv) file.load_norm_before(l, gain, shift);
        if (layout.int8 && fc) block.attnorm_weight = gain, block.attnorm_bias = shift;
        file.load_layer(l, block);
        if (!layout.int8 || !(qkv || fc)) return std::vector<float>();
        // An error in the scores changes the softmax little, but one in the values goes on.
        const std::int64_t H = config.hidden;
        return factors_after_norm(gain, shift, qkv ? weight.slice(0, 2 * H, H) : weight);
      });
  const std::span<const std::byte> laid_out(weights.memory_.data(), bytes);
  try {
    if (!cache.empty()) {
      write(path, header_of(layout.name, model, laid_out), laid_out);
      if (map()) {
        weights.memory_ = Buffer();
        return use(weights.file_.bytes().data() + kHeaderBytes);
      }
    }
  } catch (const Error&) {  // the cache may be read-only, or full
  }
  return use(laid_out.data());
}

std::optional<BertPackedWeights> BertPackedWeights::random_int8(const Context& context,
                                                                const BertConfig& config) {
  constexpr std::uint32_t kPurpose = 0x494e5438;  // its own random stream: "INT8"
  const PackedLayout layout({.int8 = true}, context.device());
  if (layout.name.empty()) return std::nullopt;
  std::uint32_t index = 0;
  std::size_t bytes = 0;
  BertPackedWeights weights;
  weights.memory_ = lay_out(context, config, layout, [&](std::size_t, const Part&, const Tensor& weight) {
    const PhiloxStream stream(1, kPurpose, index++);
    auto* data = weight.as<float>();
#pragma omp parallel for schedule(static) num_threads(context.threads())
    for (std::int64_t i = 0; i < weight.elements(); ++i) {
      data[i] = static_cast<float>(0.02 * stream.normal(static_cast<std::uint64_t>(i)));
    }
    return std::vector<float>();
  });
  weights.layers_ = views(weights.memory_.data(), config, layout, bytes);
  return weights;
}

}  // namespace warpwright
