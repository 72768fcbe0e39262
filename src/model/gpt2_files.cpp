#include "model/gpt2_files.hpp"

#include <fmt/format.h>

#include <cstring>
#include <nlohmann/json.hpp>
#include <optional>
#include <unordered_set>
#include <vector>

#include "core/error.hpp"
#include "model/fill.hpp"
#include "model/llmc_file.hpp"
#include "model/safetensors_folder.hpp"
#include "ops/element.hpp"
#include "runtime/file.hpp"
#include "runtime/host_view.hpp"
#include "runtime/json.hpp"

namespace warpwright {
namespace {

namespace fs = std::filesystem;

constexpr std::uint64_t kMostConfigBytes = 1 << 20;
constexpr int kConfigDepth = 64;

bool ends_with(std::string_view name, std::string_view suffix) {
  return name.size() >= suffix.size() && name.substr(name.size() - suffix.size()) == suffix;
}

// True if a folder stores this parameter transposed: the weights of a block's four linear layers.
bool is_transposed(std::string_view name) {
  return name.substr(0, 2) == "h." && ends_with(name, ".weight") &&
         name.find("ln_") == std::string_view::npos;
}

std::int64_t real_rows(const GPT2Config& config, std::string_view name, const Shape& shape) {
  if (name == "wte.weight") return config.vocab;
  return shape.rank() == 2 ? shape[0] : 1;
}

// The shape that a folder gives a parameter.
Shape folder_shape(const GPT2Config& config, std::string_view name, const Shape& shape) {
  if (name == "wte.weight") return {config.vocab, config.channels};
  if (is_transposed(name)) return {shape[1], shape[0]};
  return shape;
}

// ---- Hugging Face folders ----

nlohmann::json read_config_json(const fs::path& folder) {
  const fs::path path = folder / "config.json";
  return parse_json(read_file(path, kMostConfigBytes), path.string(), kConfigDepth,
                    "use a GPT-2 config.json");
}

// "h.0.ln_1.weight" for "transformer.h.0.ln_1.weight", as GPT2LMHeadModel saves it.
std::string_view without_prefix(std::string_view name) {
  constexpr std::string_view prefix = "transformer.";
  return name.substr(0, prefix.size()) == prefix ? name.substr(prefix.size()) : name;
}

// Tensors other than parameters that some versions of transformers saved: the causal mask, and the tied LM
// head.
bool is_derived(std::string_view name) {
  return name == "lm_head.weight" || ends_with(name, ".attn.bias") || ends_with(name, ".attn.masked_bias");
}

SafetensorsFolder::StoredTensor find_parameter(const SafetensorsFolder& stored, const std::string& name) {
  SafetensorsFolder::StoredTensor found = stored.find(name);
  if (!found) found = stored.find("transformer." + name);
  if (!found) throw Error(fmt::format("has no tensor {}", name), stored.path().string(), "use a whole GPT-2");
  return found;
}

void load_folder(const fs::path& folder, const GPT2Config& config, const ParameterWriter& write) {
  const SafetensorsFolder stored(folder);
  std::unordered_set<std::string_view> used;
  std::size_t index = 0;
  for (const auto& [name, parameter] : parameter_shapes(config)) {
    const SafetensorsFolder::StoredTensor found = find_parameter(stored, name);
    const SafetensorsEntry& entry = *found.entry;
    const std::int64_t rows = real_rows(config, name, parameter);
    const bool transposed = is_transposed(name);
    const Shape shape = folder_shape(config, name, parameter);
    if (entry.shape != shape || !entry.dtype || !is_floating(*entry.dtype)) {
      throw Error(fmt::format("{} is {} {}, config.json asks for {}", entry.name, entry.stored_dtype,
                              entry.shape.to_string(), shape.to_string()),
                  found.file->path().string(), "use the weights and the config.json of one model");
    }
    write(index++, [&](const Tensor& host) { fill(host, rows, found.bytes(), *entry.dtype, transposed); });
    used.insert(entry.name);
  }
  for (const SafetensorsFolder::StoredTensor& t : stored.tensors()) {
    if (!used.contains(t.entry->name) && !is_derived(without_prefix(t.entry->name))) {
      throw Error(fmt::format("has a tensor {} that no GPT-2 has", t.entry->name), t.file->path().string(),
                  "use a GPT-2 without additions");
    }
  }
}

// Writes a parameter's rows, or its columns as rows.
void write_parameter(TensorFileWriter& writer, const std::string& name, const Tensor& parameter,
                     std::int64_t rows, bool transposed) {
  const auto* data = static_cast<const std::byte*>(parameter.data);
  const std::int64_t columns = parameter.shape[parameter.shape.rank() - 1];
  const auto size = static_cast<std::int64_t>(size_of(parameter.dtype));
  if (!transposed) return writer.write(name, {data, static_cast<std::size_t>(rows * columns * size)});
  std::vector<std::byte> line(static_cast<std::size_t>(rows * size));
  for (std::int64_t c = 0; c < columns; ++c) {
    for (std::int64_t r = 0; r < rows; ++r) {
      std::memcpy(line.data() + r * size, data + (r * columns + c) * size, static_cast<std::size_t>(size));
    }
    writer.write(name, line);
  }
}

// ---- llm.c's files ----

LlmcConfig llmc_config(const GPT2Config& config, DType dtype) {
  return {.dtype = dtype,
          .max_seq_len = config.context,
          .vocab_size = config.vocab,
          .num_layers = config.layers,
          .num_heads = config.heads,
          .channels = config.channels,
          .padded_vocab_size = config.padded_vocab()};
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

void load_llmc(const fs::path& path, const GPT2Config& config, const ParameterWriter& write) {
  const LlmcFile file(path);
  LlmcConfig wanted = llmc_config(config, file.config().dtype);
  wanted.padded_vocab_size = file.config().padded_vocab_size;  // files may pad otherwise
  if (wanted != file.config()) {
    throw Error("is of another size than the model", path.string(), "use a file of the model's sizes");
  }
  std::size_t index = 0;
  for (const auto& [name, shape] : parameter_shapes(config)) {
    const LlmcPlace place = llmc_place(name);
    const std::int64_t rows = real_rows(config, name, shape);
    const auto bytes =
        static_cast<std::size_t>(rows * shape[shape.rank() - 1]) * size_of(file.config().dtype);
    const auto offset =
        static_cast<std::size_t>(place.layer) * bytes;  // wte, the only padded one, has one layer
    const auto values = file.bytes(place.stack).subspan(offset, bytes);
    write(index++, [&](const Tensor& host) { fill(host, rows, values, file.config().dtype, false); });
  }
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

GPT2Config read_gpt2_config(const fs::path& source) {
  if (is_folder(source)) {
    return GPT2Config::from_json(read_config_json(source), (source / "config.json").string());
  }
  const LlmcConfig c = LlmcFile(source).config();
  GPT2Config config{.layers = c.num_layers,
                    .heads = c.num_heads,
                    .channels = c.channels,
                    .vocab = c.vocab_size,
                    .context = c.max_seq_len};
  config.validate(source.string());
  return config;
}

BoundaryTokens read_boundary_tokens(const fs::path& folder) {
  const nlohmann::json json = read_config_json(folder);
  const auto id = [&](const char* key) -> std::optional<std::int64_t> {
    const auto found = json.find(key);
    if (found == json.end() || found->is_null()) return {};
    if (found->is_number_integer()) return found->get<std::int64_t>();
    throw Error(fmt::format("\"{}\" is not a token's id", key), (folder / "config.json").string(),
                "use a GPT-2 config.json");
  };
  BoundaryTokens tokens;
  tokens.bos = id("bos_token_id");
  tokens.eos = id("eos_token_id");
  return tokens;
}

DType stored_dtype(const fs::path& source) {
  if (!is_folder(source)) return LlmcFile(source).config().dtype;
  read_gpt2_config(source);  // a model of another architecture has no wte.weight
  const SafetensorsFolder stored(source);
  const SafetensorsFolder::StoredTensor wte = find_parameter(stored, "wte.weight");
  if (wte.entry->dtype && is_floating(*wte.entry->dtype)) return *wte.entry->dtype;
  throw Error(fmt::format("{} is {}", wte.entry->name, wte.entry->stored_dtype), wte.file->path().string(),
              "convert it to F32, BF16 or F16");
}

void load_gpt2(const fs::path& source, const GPT2Config& config, const ParameterWriter& write) {
  is_folder(source) ? load_folder(source, config, write) : load_llmc(source, config, write);
}

void write_gpt2_weights(const fs::path& file, const GPT2Config& config, const DecoderParameters& parameters,
                        const ParameterReader& read) {
  std::vector<TensorInfo> infos;
  for (const auto& [name, parameter] : parameters) {
    infos.push_back({name, parameter.dtype, folder_shape(config, name, parameter.shape)});
  }
  TensorFileWriter writer = write_safetensors(file, infos);
  std::size_t index = 0;
  for (const auto& [name, parameter] : parameters) {
    const std::int64_t rows = real_rows(config, name, parameter.shape);
    const std::string& as = name;  // clang 14 does not capture a structured binding
    read(index++, [&](const Tensor& host) { write_parameter(writer, as, host, rows, is_transposed(as)); });
  }
  writer.commit();
}

void write_gpt2_llmc(const fs::path& path, const GPT2Config& config, const DecoderParameters& parameters,
                     const Stream& stream) {
  if (config.activation != ops::Activation::gelu_tanh) {
    throw Error("the format has only the tanh form of GELU", path.string(), "save as a folder (--format hf)");
  }
  if (config.eps != 1e-5f) {
    throw Error(fmt::format("the format has only a layer_norm_epsilon of 1e-5, the model has {}", config.eps),
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
