#include "model/decoder.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "core/error.hpp"
#include "model/safetensors_folder.hpp"
#include "runtime/file.hpp"
#include "runtime/host_view.hpp"
#include "runtime/planned.hpp"

namespace warpwright {
namespace {

// The parameters in order, in groups of at most this many bytes or of one parameter.
std::vector<DecoderParameters> groups_of(const DecoderParameters& parameters, std::uint64_t most_bytes) {
  std::vector<DecoderParameters> groups(1);
  std::uint64_t bytes = 0;
  for (const auto& [name, tensor] : parameters) {
    bytes += tensor.bytes();
    if (bytes > most_bytes && !groups.back().empty()) {
      groups.emplace_back();
      bytes = tensor.bytes();
    }
    groups.back().append(name, tensor);
  }
  return groups;
}

}  // namespace

std::string_view name_of(Recompute recompute) {
  constexpr std::string_view kNames[] = {"none", "gelu", "norm", "block"};
  return kNames[static_cast<int>(recompute)];
}

const Tensor& DecoderParameters::at(std::string_view name) const {
  const auto found = std::ranges::find(entries_, name, &Entry::name);
  if (found != entries_.end()) return found->tensor;
  throw Error(fmt::format("has no parameter {}", name), "the decoder", "use a name of this family");
}

Tensor DecoderParameters::packed_at(std::size_t index) const {
  const auto found = packed.find(index);
  return found == packed.end() ? Tensor() : found->second;
}

std::vector<Tensor> DecoderParameters::tensors() const {
  std::vector<Tensor> tensors;
  for (const Entry& entry : entries_) tensors.push_back(entry.tensor);
  return tensors;
}

ParameterWriter writer_to(const DecoderParameters& parameters) {
  return [tensors = parameters.tensors()](std::size_t index, const auto& fill) {
    write_on_host(tensors[index], Stream(tensors[index].device), fill);
  };
}

ParameterReader reader_of(const DecoderParameters& parameters, const Stream& stream) {
  return [tensors = parameters.tensors(), &stream](std::size_t index, const auto& use) {
    use(downloaded(tensors[index], stream).tensor());
  };
}

DecoderWeights unpacked_weights(std::shared_ptr<const Decoder> decoder, DType dtype, Device device,
                                const std::function<void(const ParameterWriter&)>& write) {
  const auto planned = std::make_shared<Planned<DecoderParameters>>([=](Allocator& allocator) {
    return decoder->allocate_parameters(dtype, Category::parameters, "", allocator);
  });
  planned->take(device);
  write(writer_to(planned->tensors()));
  return {.decoder = std::move(decoder), .dtype = dtype, .parameters = planned->tensors(), .memory = planned};
}

DecoderBatch DecoderBatch::first(std::int64_t n) const {
  DecoderBatch batch = *this;
  batch.tokens = tokens.slice(0, 0, n);
  batch.positions = positions.slice(0, 0, n);
  return batch;
}

DecoderBatch DecoderBatch::first(std::int64_t n, std::int64_t S) const {
  DecoderBatch batch = first(n);
  batch.cu_seqlens = cu_seqlens.slice(0, 0, S + 1);
  return batch;
}

DecoderBatch allocate_batch(std::int64_t sequences, std::int64_t N, Allocator& allocator) {
  const auto in = [&](std::string_view name, std::int64_t count) {
    return allocator.allocate(name, DType::i32, {count}, Category::batch);
  };
  return {.tokens = in("tokens", N),
          .positions = in("positions", N),
          .cu_seqlens = in("cu_seqlens", sequences + 1)};
}

void Decoder::save_config(const std::filesystem::path& folder, const BoundaryTokens& tokens) const {
  write_file_atomically(folder / "config.json", config(tokens).dump(2) + "\n");
}

void Decoder::save(const std::filesystem::path& folder, const DecoderParameters& parameters,
                   const ParameterReader& read, const BoundaryTokens& tokens,
                   std::uint64_t most_bytes) const {
  save_config(folder, tokens);
  const std::vector<DecoderParameters> groups = groups_of(parameters, most_bytes);
  std::vector<std::string> files;
  std::ptrdiff_t first = 0;
  for (const DecoderParameters& group : groups) {
    files.push_back(shard_name("model", files.size(), groups.size()));
    save_weights(folder / files.back(), group, [&](std::size_t index, const auto& use) {
      read(static_cast<std::size_t>(first) + index, use);
    });
    first += group.end() - group.begin();
  }
  if (files.size() > 1) write_safetensors_index(folder, files);
}

Tensor Decoder::allocate_logits(std::int64_t M, DType dtype, Allocator& allocator) const {
  return allocator.allocate("logits", dtype, {M, padded_vocab()}, Category::activations);
}

}  // namespace warpwright
