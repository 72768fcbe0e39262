#include "model/bert_packed.hpp"

#include <fmt/format.h>
#include <signal.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>

#include "core/error.hpp"
#include "ops/int8_linear/int8_linear.hpp"
#include "ops/matmul/packed.hpp"
#include "runtime/philox.hpp"

namespace warpwright {
namespace {

namespace fs = std::filesystem;
using Layer = BertPackedWeights::Layer;

constexpr std::size_t kHeaderBytes = 4096;

// The layout that a device's kernels take.
struct Layout {
  std::string name;  // "" if they take none
  DType dtype;       // of the weights that are packed
  bool int8;
  const DeviceInfo& device;

  // Weights are rounded to int8 from fp32, whatever the dtype of the rest.
  Layout(DType rest, bool int8_, const DeviceInfo& device_)
      : name(int8_ ? ops::int8_layout(device_) : ops::packed_layout(rest, device_)),
        dtype(int8_ ? DType::f32 : rest),
        int8(int8_),
        device(device_) {}

  std::int64_t bytes(std::int64_t N, std::int64_t K) const {
    return int8 ? ops::int8_packed_bytes(N, K) : ops::packed_bytes(N, K, dtype, device);
  }
  // factors: as for int8_pack.
  void pack(const Context& context, const Tensor& weight, const Tensor& factors, const Tensor& packed) const {
    int8 ? ops::int8_pack(context, weight, factors, packed) : ops::pack_weight(context, weight, packed);
  }
};

// Name, shape and place of each weight of a layer.
struct Part {
  const char* name;
  Tensor Layer::*packed;
  BertLinear BertBlock::*linear;
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
std::vector<Layer> views(std::byte* data, const BertConfig& config, const Layout& layout,
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

// Factors for a layer whose input comes from a normalization with these parameters: √(w / r) for each column,
// with w the largest weight and r the size of the input, γ times a number that is seldom beyond ±3, plus β
// (SmoothQuant, arXiv:2211.10438, equation 4, without its calibration). rows: those of the weight that lose
// most by rounding. A change here needs another name of the layout (int8_layout).
std::vector<float> factors_after_norm(const std::vector<float>& gain, const std::vector<float>& shift,
                                      const Tensor& rows) {
  constexpr float kLeast = 1e-5f;
  std::vector<float> factors;
  for (std::int64_t k = 0; k < rows.shape[1]; ++k) {
    const auto i = static_cast<std::size_t>(k);
    float most = kLeast;
    for (std::int64_t n = 0; n < rows.shape[0]; ++n) {
      const float magnitude = std::abs(rows.as<float>()[n * rows.shape[1] + k]);
      if (std::isfinite(magnitude)) most = std::max(most, magnitude);  // int8_pack refuses the others
    }
    factors.push_back(std::sqrt(most / std::max(3 * std::abs(gain[i]) + std::abs(shift[i]), kLeast)));
  }
  return factors;
}

// The weights in this layout. fill(l, part, weight) sets a weight of layer l and returns factors for it, or
// nothing.
template <class Fill>
Buffer lay_out(const Context& context, const BertConfig& config, const Layout& layout, Fill&& fill) {
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
        throw Error(error.problem(), fmt::format("layer {}'s {}", l, part.name), "use fp32 or bf16");
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
                                                         const BertConfig& config, DType dtype, bool int8,
                                                         const fs::path& cache) {
  const Layout layout(dtype, int8, context.device());
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
        std::vector<float> gain, shift;
        const auto vector = [&](std::vector<float>& values) {
          values.resize(static_cast<std::size_t>(config.hidden));
          return Tensor(values.data(), DType::f32, {config.hidden});
        };
        const bool qkv = part.linear == &BertBlock::qkv, fc = part.linear == &BertBlock::fc;
        if (layout.int8 && qkv) file.load_norm_before(l, vector(gain), vector(shift));
        if (layout.int8 && fc) block.attnorm_weight = vector(gain), block.attnorm_bias = vector(shift);
        file.load_layer(l, block);
        if (gain.empty()) return std::vector<float>();
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
  const Layout layout(DType::f32, true, context.device());
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
