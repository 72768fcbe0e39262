// A folder's weights in one file, in shards, and in formats that are not read.
#include "model/safetensors_folder.hpp"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cstring>
#include <nlohmann/json.hpp>

#include "core/error.hpp"
#include "model/config_fields.hpp"
#include "model/decoder_files.hpp"
#include "model/families.hpp"
#include "runtime/test_folder.hpp"

namespace warpwright {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr const char* kFirst = "model-00001-of-00002.safetensors";
constexpr const char* kSecond = "model-00002-of-00002.safetensors";

class ShardsTest : public TestFolder {
 protected:
  void SetUp() override {
    TestFolder::SetUp();
    write(kFirst, {"a", "b"});
    write(kSecond, {"c"});
    write_index(good());
  }

  // Each tensor is two floats: the letter's code and 1.
  void write(const std::string& name, const std::vector<std::string>& tensors) const {
    std::vector<TensorInfo> infos;
    for (const std::string& tensor : tensors) infos.push_back({tensor, DType::f32, {2}});
    TensorFileWriter writer = write_safetensors(folder / name, infos);
    for (const std::string& tensor : tensors) {
      const float values[] = {static_cast<float>(tensor[0]), 1};
      writer.write(tensor, std::as_bytes(std::span(values)));
    }
    writer.commit();
  }
  static json good() {
    return {{"metadata", {{"total_size", 24}, {"total_parameters", 6}}},
            {"weight_map", {{"a", kFirst}, {"b", kFirst}, {"c", kSecond}}}};
  }
  void write_index(const json& index) const { put("model.safetensors.index.json", index.dump()); }
  std::string error() const {
    return message_of([&] { SafetensorsFolder{folder}; });
  }
  std::string error_of(const json& index) const {
    write_index(index);
    return error();
  }
};

#define EXPECT_MENTIONS(text, part) EXPECT_NE((text).find(part), std::string::npos) << (text)

TEST_F(ShardsTest, AreOneModel) {
  const SafetensorsFolder stored(folder);
  ASSERT_EQ(stored.tensors().size(), 3u);
  for (const char* name : {"a", "b", "c"}) {
    const SafetensorsFolder::StoredTensor tensor = stored.find(name);
    ASSERT_TRUE(tensor) << name;
    float first = 0;
    std::memcpy(&first, tensor.bytes().data(), sizeof first);
    EXPECT_EQ(first, static_cast<float>(*name));
  }
  EXPECT_FALSE(stored.find("d"));
  EXPECT_EQ(stored.path(), folder / "model.safetensors.index.json");
  const std::string checksum = stored.checksum();
  write(kSecond, {"c"});
  EXPECT_EQ(SafetensorsFolder(folder).checksum(), checksum);
  EXPECT_EQ(checksum_of_weights(folder), checksum);
  EXPECT_EQ(checksum_of_weights(folder / kFirst), checksum_of(folder / kFirst));
  write(kSecond, {"d"});
  json index = good();
  index["weight_map"].erase("c");
  index["weight_map"]["d"] = kSecond;
  write_index(index);
  EXPECT_NE(SafetensorsFolder(folder).checksum(), checksum);
}

TEST_F(ShardsTest, MetadataMayBeMissing) {
  json index = good();
  index.erase("metadata");
  EXPECT_EQ(error_of(index), "no error");
  index["metadata"] = json::object();
  EXPECT_EQ(error_of(index), "no error");
  index["metadata"]["total_size"] = 24.0;  // as some versions of transformers wrote it
  EXPECT_EQ(error_of(index), "no error");
}

TEST_F(ShardsTest, AWholeFileComesFirst) {
  write("model.safetensors", {"w"});
  EXPECT_TRUE(SafetensorsFolder(folder).find("w"));
}

TEST_F(ShardsTest, TheIndexMustFitItsFiles) {
  json index = good();
  index["weight_map"]["d"] = kSecond;
  EXPECT_MENTIONS(error_of(index), "has no tensor \"d\"");
  index = good();
  index["weight_map"].erase("b");
  EXPECT_MENTIONS(error_of(index), "holds a tensor \"b\"");
  index = good();
  index["weight_map"]["b"] = kSecond;
  EXPECT_MENTIONS(error_of(index), "holds a tensor \"b\"");
  index = good();
  index["weight_map"]["c"] = "model-00003-of-00002.safetensors";
  EXPECT_MENTIONS(error_of(index), "which is not in the folder");
  index = good();
  index["metadata"]["total_size"] = 25;
  EXPECT_MENTIONS(error_of(index), "promises 25 bytes of tensors, but its files hold 24");
  write_index(good());
  write(kSecond, {"b", "c"});
  EXPECT_MENTIONS(error(), "holds a tensor \"b\"");  // which both files hold
}

TEST_F(ShardsTest, TheIndexMustBeOne) {
  for (const char* name : {"../model.safetensors", "/etc/passwd", "..", ".", "", "x/y", "a\0b"}) {
    json index = good();
    index["weight_map"]["c"] = std::string(name, name == std::string("a") ? 3 : std::strlen(name));
    EXPECT_MENTIONS(error_of(index), "something other than a file name") << name;
  }
  json index = good();
  index["weight_map"]["c"] = 7;
  EXPECT_MENTIONS(error_of(index), "something other than a file name");
  index = good();
  index["weights"] = json::object();
  EXPECT_MENTIONS(error_of(index), "unknown key \"weights\"");
  for (const char* key : {"weight_map", "metadata"}) {
    index = good();
    index[key] = json::array();
    EXPECT_MENTIONS(error_of(index), "is not an object");
  }
  index = good();
  index["weight_map"] = json::object();
  EXPECT_MENTIONS(error_of(index), "lists no tensors");
  for (const json& size : {json("24"), json(-1), json(nullptr)}) {
    index = good();
    index["metadata"]["total_size"] = size;
    EXPECT_MENTIONS(error_of(index), "total_size");
  }
  EXPECT_MENTIONS(error_of(json::array()), "is not a JSON object");
  put("model.safetensors.index.json", R"({"weight_map": {"a": "x", "a": "y"}})");
  EXPECT_MENTIONS(error(), "twice");
  put("model.safetensors.index.json", std::string(100'000, '['));
  EXPECT_MENTIONS(error(), "nests deeper");
}

TEST_F(ShardsTest, PicklesAreExplained) {
  fs::remove(folder / "model.safetensors.index.json");
  EXPECT_MENTIONS(error(), "has no model.safetensors");
  for (const char* name : {"pytorch_model.bin", "pytorch_model.bin.index.json"}) {
    put(name, "x");
    EXPECT_MENTIONS(error(), "pytorch_model.bin");
    EXPECT_MENTIONS(error(), "python3 -c \"import glob, torch;");
    EXPECT_MENTIONS(error(), "weights_only=True");
    fs::remove(folder / name);
  }
}

// A tiny decoder of each family with these channels, in bf16, whose elements count from 0 on by tensor.
// Padding of the vocabulary, which no file holds, is 0.
DecoderWeights odd_model(std::string_view type, std::int64_t channels) {
  json config = {{"model_type", type}, {"vocab_size", 51}, {"tie_word_embeddings", type == "gpt2"}};
  if (type == "gpt2") {
    config.update({{"n_layer", 2}, {"n_head", 1}, {"n_embd", channels}, {"n_positions", 8}});
  } else {
    config.update({{"num_hidden_layers", 2},
                   {"num_attention_heads", 1},
                   {"hidden_size", channels},
                   {"intermediate_size", 2 * channels + 1},
                   {"max_position_embeddings", 8}});
  }
  if (type == "gpt_neox") config["rotary_pct"] = 0.31;
  if (type != "gpt2" && type != "gpt_neox") config.update({{"num_key_value_heads", 1}, {"head_dim", 6}});
  const auto decoder = decoder_of_config(config, std::string(type));
  Recorder recorder;
  const std::vector<Tensor> tensors =
      decoder->allocate_parameters(DType::bf16, Category::parameters, "", recorder).tensors();
  return unpacked_weights(decoder, DType::bf16, Device{}, [&](const ParameterWriter& write) {
    for (std::size_t index = 0; index < tensors.size(); ++index) {
      const Shape& shape = tensors[index].shape;
      const bool is_table = shape.rank() == 2 && shape[0] == decoder->padded_vocab();
      const std::int64_t count = is_table ? decoder->vocab() * shape[1] : shape.elements();
      write(index, [&](const Tensor& host) {
        for (std::int64_t i = 0; i < shape.elements(); ++i) {
          const auto value =
              i < count ? static_cast<float>((static_cast<std::int64_t>(index) + i) % 251) : 0.0f;
          if (host.dtype == DType::f32) host.as<float>()[i] = value;
          if (host.dtype == DType::bf16) host.as<bf16>()[i] = static_cast<bf16>(value);
        }
      });
    }
  });
}

// In bf16 with fp32 norms, a tensor of an odd number of elements would leave the next norm unaligned.
TEST_F(TestFolder, ModelsOfOddSizesAreWrittenAndReadBack) {
  for (const std::string_view type : model_types(Network::decoder)) {
    for (const std::int64_t channels : {13, 14}) {
      const DecoderWeights model = odd_model(type, channels);
      for (const std::uint64_t most_bytes : {std::uint64_t{1} << 30, std::uint64_t{1} << 11}) {
        const fs::path written = folder / fmt::format("{}-{}-{}", type, channels, most_bytes);
        fs::create_directory(written);
        model.decoder->save(written, model.parameters, reader_of(model.parameters, Stream()), {}, most_bytes);
        EXPECT_EQ(path_exists(written / kSafetensors), most_bytes > 1 << 11);
        const SafetensorsFolder stored(written);
        for (const SafetensorsFolder::StoredTensor& tensor : stored.tensors())
          EXPECT_EQ(tensor.entry->begin % size_of(*tensor.entry->dtype), 0u) << tensor.entry->name;
        const DecoderWeights read = load_weights(written, DType::bf16);
        for (const auto& [name, tensor] : model.parameters) {
          const Tensor& same = read.parameters.at(name);
          ASSERT_EQ(same.bytes(), tensor.bytes()) << name;
          EXPECT_EQ(std::memcmp(same.data, tensor.data, static_cast<std::size_t>(tensor.bytes())), 0)
              << written << " " << name;
        }
      }
    }
  }
}

}  // namespace
}  // namespace warpwright
