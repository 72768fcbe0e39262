#include "model/llmc_file.hpp"

#include <fmt/format.h>

#include <array>
#include <cstring>
#include <string_view>

#include "core/error.hpp"

namespace warpwright {
namespace {

using Header = std::array<std::int32_t, 256>;

constexpr std::int32_t kMagic = 20240326;
constexpr std::int32_t kVersionFp32 = 3, kVersionBf16 = 5;
constexpr const char* kExportAgain = "copy or export the model again";

// Within these limits no size below overflows: the largest matrix stack is 4·L·C² elements.
constexpr std::int64_t kMaxLayers = 1 << 16;
constexpr std::int64_t kMaxChannels = 1 << 20;
constexpr std::int64_t kMaxRows = 0x7fffffff;

void check_range(std::string_view name, std::int64_t value, std::int64_t most, const std::string& where) {
  if (value < 1 || value > most) {
    throw Error(fmt::format("declares {} {}, which lies outside 1 to {}", name, value, most), where,
                kExportAgain);
  }
}

void check_config(const LlmcConfig& config, const std::string& where) {
  if (config.dtype != DType::f32 && config.dtype != DType::bf16) {
    throw Error(fmt::format("cannot hold {}", name_of(config.dtype)), where, "use fp32 or bf16");
  }
  check_range("max_seq_len", config.max_seq_len, kMaxRows, where);
  check_range("vocab_size", config.vocab_size, kMaxRows, where);
  check_range("num_layers", config.num_layers, kMaxLayers, where);
  check_range("num_heads", config.num_heads, kMaxChannels, where);
  check_range("channels", config.channels, kMaxChannels, where);
  check_range("padded_vocab_size", config.padded_vocab_size, kMaxRows, where);
  if (config.padded_vocab_size < config.vocab_size || config.channels % config.num_heads != 0) {
    throw Error(fmt::format("declares a vocabulary of {} padded to {}, and {} channels in {} heads",
                            config.vocab_size, config.padded_vocab_size, config.channels, config.num_heads),
                where, kExportAgain);
  }
}

// Names the formats of weights that are given in place of a model's folder.
void refuse_other_formats(const MappedFile& file, const std::string& where) {
  std::array<char, 9> begin{};
  if (file.size() < begin.size()) return;
  std::memcpy(begin.data(), file.bytes(0, begin.size()).data(), begin.size());
  if (std::string_view(begin.data(), 4) == "GGUF") {
    throw Error("is a GGUF file, which is not read", where, "give the model's folder in Hugging Face's form");
  }
  std::int32_t magic = 0;
  std::memcpy(&magic, begin.data(), sizeof magic);
  // A safetensors file begins with the size of its JSON header in 8 bytes.
  if (magic != kMagic && begin.back() == '{') {
    throw Error("is a safetensors file", where, "name its folder, which has a config.json, too");
  }
}

LlmcConfig parse_header(const Header& header, const std::string& where) {
  if (header[0] != kMagic) {
    throw Error(fmt::format("begins with {}, but an llm.c model begins with {}", header[0], kMagic), where,
                "name a model file of llm.c");
  }
  if (header[1] != kVersionFp32 && header[1] != kVersionBf16) {
    throw Error(fmt::format("has version {}, but only versions 3 (fp32) and 5 (bf16) are known", header[1]),
                where, "export it again with llm.c's train_gpt2.py");
  }
  LlmcConfig config;
  config.dtype = header[1] == kVersionFp32 ? DType::f32 : DType::bf16;
  config.max_seq_len = header[2];
  config.vocab_size = header[3];
  config.num_layers = header[4];
  config.num_heads = header[5];
  config.channels = header[6];
  config.padded_vocab_size = header[7];
  return config;
}

Header make_header(const LlmcConfig& config) {
  Header header{};
  header[0] = kMagic;
  header[1] = config.dtype == DType::f32 ? kVersionFp32 : kVersionBf16;
  header[2] = static_cast<std::int32_t>(config.max_seq_len);
  header[3] = static_cast<std::int32_t>(config.vocab_size);
  header[4] = static_cast<std::int32_t>(config.num_layers);
  header[5] = static_cast<std::int32_t>(config.num_heads);
  header[6] = static_cast<std::int32_t>(config.channels);
  header[7] = static_cast<std::int32_t>(config.padded_vocab_size);
  return header;
}

}  // namespace

std::vector<TensorInfo> llmc_tensors(const LlmcConfig& config, const std::filesystem::path& where) {
  check_config(config, where.string());
  const std::int64_t L = config.num_layers, C = config.channels, T = config.max_seq_len;
  const std::int64_t Vp = config.padded_vocab_size;
  const DType dtype = config.dtype;
  return {{"wte", dtype, {Vp, C}},
          {"wpe", dtype, {T, C}},
          {"ln1w", dtype, {L, C}},
          {"ln1b", dtype, {L, C}},
          {"qkvw", dtype, {L, 3 * C, C}},
          {"qkvb", dtype, {L, 3 * C}},
          {"attprojw", dtype, {L, C, C}},
          {"attprojb", dtype, {L, C}},
          {"ln2w", dtype, {L, C}},
          {"ln2b", dtype, {L, C}},
          {"fcw", dtype, {L, 4 * C, C}},
          {"fcb", dtype, {L, 4 * C}},
          {"fcprojw", dtype, {L, C, 4 * C}},
          {"fcprojb", dtype, {L, C}},
          {"lnfw", dtype, {C}},
          {"lnfb", dtype, {C}}};
}

LlmcFile::LlmcFile(const std::filesystem::path& path) : file_(path) {
  const std::string where = path.string();
  refuse_other_formats(file_, where);
  Header header;
  if (file_.size() < sizeof header) {
    throw Error(
        fmt::format("holds {} bytes, but the header of an llm.c model needs {}", file_.size(), sizeof header),
        where, kExportAgain);
  }
  std::memcpy(header.data(), file_.bytes(0, sizeof header).data(), sizeof header);
  config_ = parse_header(header, where);
  tensors_ = llmc_tensors(config_, path);
  std::uint64_t expected = sizeof header;
  for (const TensorInfo& tensor : tensors_) expected += bytes_of(tensor);
  if (file_.size() != expected) {
    throw Error(fmt::format("holds {} bytes, but a model of its sizes needs {}", file_.size(), expected),
                where, kExportAgain);
  }
}

std::span<const std::byte> LlmcFile::bytes(std::string_view name) const {
  std::uint64_t offset = sizeof(Header);
  for (const TensorInfo& tensor : tensors_) {
    if (tensor.name == name) return file_.bytes(offset, bytes_of(tensor));
    offset += bytes_of(tensor);
  }
  throw Error(fmt::format("has no tensor {}", name), path().string(), "name a tensor of llm.c's format");
}

TensorFileWriter write_llmc(const std::filesystem::path& path, const LlmcConfig& config) {
  std::vector<TensorInfo> tensors = llmc_tensors(config, path);
  const Header header = make_header(config);
  return TensorFileWriter(path, std::as_bytes(std::span(header)), std::move(tensors));
}

}  // namespace warpwright
