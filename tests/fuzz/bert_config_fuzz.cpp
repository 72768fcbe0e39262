// Any bytes as each of the JSON files of an encoder's folder give an Error, or valid sizes and layers that
// fit each other.
#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "core/error.hpp"
#include "model/bert_config.hpp"

using namespace warpwright;

namespace {

// In memory if possible, because files are written for every input.
std::filesystem::path make_folder() {
  const std::filesystem::path memory = "/dev/shm";
  const auto base = std::filesystem::is_directory(memory) ? memory : std::filesystem::temp_directory_path();
  std::string name = (base / "fuzz_bert_XXXXXX").string();
  if (!::mkdtemp(name.data())) std::abort();
  std::filesystem::create_directory(name + "/1_Pooling");
  std::filesystem::create_directory(name + "/2_Dense");
  return name;
}

struct Folder {
  const std::filesystem::path path = make_folder();
  ~Folder() { std::filesystem::remove_all(path); }
};

void read(const std::filesystem::path& folder) {
  try {
    const BertConfig config = read_bert_config(folder);
    config.validate("fuzz");
    if (config.max_length() < 1) std::abort();
    const BertPooling pooling = read_bert_pooling(folder, config);
    std::int64_t width = config.hidden;
    for (const BertDense& dense : pooling.dense) {
      if (dense.in != width || dense.out < 1) std::abort();
      width = dense.out;
    }
  } catch (const Error&) {
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const Folder folder;
  static const std::pair<const char*, const char*> good[] = {
      {"config.json",
       R"({"model_type": "bert", "hidden_size": 8, "num_attention_heads": 2, "num_hidden_layers": 1,
                          "intermediate_size": 9, "vocab_size": 30, "max_position_embeddings": 16})"},
      {"modules.json", R"([{"type": "x.Transformer", "path": ""}, {"type": "x.Pooling", "path": "1_Pooling"},
                           {"type": "x.Dense", "path": "2_Dense"}, {"type": "x.Normalize", "path": "3"}])"},
      {"1_Pooling/config.json", R"({"pooling_mode_mean_tokens": true})"},
      {"2_Dense/config.json", R"({"in_features": 8, "out_features": 4})"},
      {"sentence_bert_config.json", R"({"max_seq_length": 12})"}};
  for (const auto& [fuzzed, unused] : good) {
    for (const auto& [name, content] : good) std::ofstream(folder.path / name, std::ios::binary) << content;
    std::ofstream(folder.path / fuzzed, std::ios::binary)
        .write(reinterpret_cast<const char*>(data), static_cast<std::streamsize>(size));
    read(folder.path);
  }
  return 0;
}
