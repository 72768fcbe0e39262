#include "model/gpt2_llmc.hpp"

#include <fmt/format.h>

#include <cstring>
#include <vector>

#include "core/error.hpp"
#include "model/fill.hpp"
#include "model/llmc_file.hpp"
#include "ops/element.hpp"
#include "runtime/host_view.hpp"

namespace warpwright {
namespace {

namespace fs = std::filesystem;

LlmcConfig llmc_config(const GPT2Config& config, DType dtype) {
  return {.dtype = dtype,
          .max_seq_len = config.context,
          .vocab_size = config.vocab,
          .num_layers = config.layers,
          .num_heads = config.heads,
          .channels = config.channels,
          .padded_vocab_size = config.description().padded_vocab()};
}

// The place of a parameter in an llm.c file: the stack it is in and its layer.
struct LlmcPlace {
  std::string stack;
  std::int64_t layer = 0;
};

LlmcPlace llmc_place(const std::string& name) {
  struct Pair {
    std::string_view name, stack;
  };
  static constexpr Pair in_block[] = {{"ln_1.weight", "ln1w"},
                                      {"ln_1.bias", "ln1b"},
                                      {"attn.c_attn.weight", "qkvw"},
                                      {"attn.c_attn.bias", "qkvb"},
                                      {"attn.c_proj.weight", "attprojw"},
                                      {"attn.c_proj.bias", "attprojb"},
                                      {"ln_2.weight", "ln2w"},
                                      {"ln_2.bias", "ln2b"},
                                      {"mlp.c_fc.weight", "fcw"},
                                      {"mlp.c_fc.bias", "fcb"},
                                      {"mlp.c_proj.weight", "fcprojw"},
                                      {"mlp.c_proj.bias", "fcprojb"}};
  if (name == "wte.weight") return {"wte"};
  if (name == "wpe.weight") return {"wpe"};
  if (name == "ln_f.weight") return {"lnfw"};
  if (name == "ln_f.bias") return {"lnfb"};
  const std::size_t dot = name.find('.', 2);
  for (const Pair& pair : in_block) {
    if (name.substr(dot + 1) == pair.name)
      return {std::string(pair.stack), std::stoll(name.substr(2, dot - 2))};
  }
  throw Error(fmt::format("no place for {}", name), "llm.c format", "save as a folder");
}

// The elements of a parameter, rounded to this dtype.
std::vector<std::byte> bytes_as(DType dtype, const HostView& parameter) {
  const Tensor& from = parameter.tensor();
  std::vector<std::byte> bytes(static_cast<std::size_t>(from.elements()) * size_of(dtype));
  if (from.dtype == dtype) {
    std::memcpy(bytes.data(), from.data, bytes.size());
    return bytes;
  }
  const Tensor rounded(bytes.data(), dtype, from.shape);
  for (std::int64_t i = 0; i < from.elements(); ++i) {
    ops::store_element(rounded, i, ops::load_element(from, i));
  }
  return bytes;
}

}  // namespace

GPT2Config read_gpt2_llmc_config(const fs::path& path) {
  const LlmcConfig c = LlmcFile(path).config();
  GPT2Config config{.layers = c.num_layers,
                    .heads = c.num_heads,
                    .channels = c.channels,
                    .vocab = c.vocab_size,
                    .context = c.max_seq_len};
  config.validate(path.string());
  return config;
}

void load_gpt2_llmc(const fs::path& path, const GPT2Config& config, const ParameterWriter& write) {
  const LlmcFile file(path);
  LlmcConfig wanted = llmc_config(config, file.config().dtype);
  wanted.padded_vocab_size = file.config().padded_vocab_size;  // files may pad otherwise
  if (wanted != file.config()) {
    throw Error("differs in size from the model", path.string(), "use a file of the model's sizes");
  }
  std::size_t index = 0;
  for (const auto& [name, shape, kind, matrices] : parameter_shapes(config.description())) {
    const LlmcPlace place = llmc_place(name);
    const std::int64_t all = shape.rank() == 2 ? shape[0] : 1;
    const std::int64_t rows = kind == ParameterKind::vocabulary ? config.vocab : all;
    const auto bytes =
        static_cast<std::size_t>(rows * shape[shape.rank() - 1]) * size_of(file.config().dtype);
    const auto offset =
        static_cast<std::size_t>(place.layer) * bytes;  // wte, the only padded one, has one layer
    const auto values = file.bytes(place.stack).subspan(offset, bytes);
    write(index++, [&](const Tensor& host) { fill(host, rows, values, file.config().dtype, false); });
  }
}

void write_gpt2_llmc(const fs::path& path, const GPT2Config& config, const DecoderParameters& parameters,
                     const Stream& stream) {
  if (config.activation != ops::Activation::gelu_tanh) {
    throw Error("the format has only the tanh form of GELU", path.string(), "save as a folder (--format hf)");
  }
  if (config.eps != 1e-5f) {
    throw Error(
        fmt::format("the format has only a layer_norm_epsilon of 1e-5, but the model has {}", config.eps),
        path.string(), "save as a folder (--format hf)");
  }
  const LlmcConfig header = llmc_config(config, parameters.at("wte.weight").dtype);
  TensorFileWriter writer = write_llmc(path, header);
  for (const TensorInfo& info : llmc_tensors(header, path)) {
    for (const auto& [name, parameter] : parameters) {
      if (llmc_place(name).stack == info.name) {
        writer.write(info.name, bytes_as(info.dtype, downloaded(parameter, stream)));
      }
    }
  }
  writer.commit();
}

}  // namespace warpwright
