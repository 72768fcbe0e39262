// The readers and writers of model files: safetensors and llm.c's .bin.
#include <gtest/gtest.h>

#include <chrono>
#include <cstring>
#include <filesystem>

#include "core/error.hpp"
#include "model/decoder_files.hpp"
#include "model/llmc_file.hpp"
#include "model/safetensors.hpp"
#include "runtime/test_folder.hpp"

namespace warpwright {
namespace {

namespace fs = std::filesystem;

class TensorFilesTest : public TestFolder {
 protected:
  fs::path put(const std::string& content) const { return TestFolder::put("file", content); }
  std::string safetensors_error(const std::string& content) const;
  std::string header_error(const std::string& header, std::size_t data_bytes = 8) const {
    const std::uint64_t length = header.size();
    std::string content(reinterpret_cast<const char*>(&length), sizeof length);
    return safetensors_error(content + header + std::string(data_bytes, 'x'));
  }
  std::string llmc_error(const std::vector<std::int32_t>& fields, std::size_t data_bytes) const;
};

std::string TensorFilesTest::safetensors_error(const std::string& content) const {
  const fs::path path = put(content);
  return message_of([&] { SafetensorsFile{path}; });
}

std::string TensorFilesTest::llmc_error(const std::vector<std::int32_t>& fields,
                                        std::size_t data_bytes) const {
  std::vector<std::int32_t> header = fields;
  header.resize(256);
  const fs::path path =
      put(std::string(reinterpret_cast<const char*>(header.data()), 1024) + std::string(data_bytes, 0));
  return message_of([&] { LlmcFile{path}; });
}

template <class T>
std::span<const std::byte> bytes_of(const std::vector<T>& values) {
  return std::as_bytes(std::span(values));
}

template <class T>
std::vector<T> values_of(std::span<const std::byte> bytes) {
  std::vector<T> values(bytes.size() / sizeof(T));
  std::memcpy(values.data(), bytes.data(), bytes.size());
  return values;
}

#define EXPECT_MENTIONS(text, part) EXPECT_NE((text).find(part), std::string::npos) << (text)

const std::vector<TensorInfo> kGolden = {
    {"step", DType::i64, {}},       {"empty", DType::f32, {0, 4}}, {"odd \"name\" é", DType::f32, {1}},
    {"weight", DType::f32, {2, 3}}, {"bias", DType::bf16, {2}},    {"bytes", DType::u8, {1}}};
const fs::path kGoldenPath = fs::path(WARPWRIGHT_TESTDATA) / "python.safetensors";

// A model of tens of thousands of layers: searching all names for each tensor would take minutes.
TEST_F(TensorFilesTest, HundredsOfThousandsOfTensorsAreFound) {
  constexpr int kTensors = 300'000;
  std::vector<TensorInfo> infos;
  for (int i = 0; i < kTensors; ++i) infos.push_back({"h." + std::to_string(i) + ".weight", DType::u8, {1}});
  TensorFileWriter writer = write_safetensors(folder / "file", infos);
  for (int i = 0; i < kTensors; ++i) {
    const auto value = static_cast<std::byte>(i);
    writer.write(infos[static_cast<std::size_t>(i)].name, {&value, 1});
  }
  writer.commit();
  const auto start = std::chrono::steady_clock::now();
  const SafetensorsFile file(folder / "file");
  for (int i = 0; i < kTensors; ++i) {
    const SafetensorsEntry* entry = file.find(infos[static_cast<std::size_t>(i)].name);
    ASSERT_TRUE(entry);
    ASSERT_EQ(entry->begin, static_cast<std::uint64_t>(i));
  }
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
  EXPECT_LT(seconds.count(), 60);
}

TEST_F(TensorFilesTest, ReadsWhatPythonWrites) {
  const SafetensorsFile file(kGoldenPath);
  EXPECT_EQ(file.metadata(), (std::map<std::string, std::string>{{"format", "pt"}}));
  ASSERT_EQ(file.entries().size(), kGolden.size());
  for (const TensorInfo& tensor : kGolden) {
    const SafetensorsEntry* entry = file.find(tensor.name);
    ASSERT_TRUE(entry) << tensor.name;
    EXPECT_EQ(entry->dtype, tensor.dtype);
    EXPECT_EQ(entry->shape, tensor.shape);
  }
  EXPECT_EQ(file.find("none"), nullptr);
  EXPECT_EQ(values_of<float>(file.bytes(*file.find("weight"))),
            (std::vector<float>{0, 0.25, 0.5, 0.75, 1, 1.25}));
  EXPECT_EQ(values_of<std::int64_t>(file.bytes(*file.find("step"))), (std::vector<std::int64_t>{5}));
  EXPECT_EQ(values_of<std::uint16_t>(file.bytes(*file.find("bias"))),
            (std::vector<std::uint16_t>{0x3fc0, 0xc000}));
}

TEST_F(TensorFilesTest, WritesTheBytesThatPythonWrites) {
  TensorFileWriter writer = write_safetensors(folder / "out", kGolden);
  writer.write("step", bytes_of(std::vector<std::int64_t>{5}));
  writer.write("empty", {});
  writer.write(kGolden[2].name, bytes_of(std::vector<float>{-1}));
  writer.write("weight", bytes_of(std::vector<float>{0, 0.25}));
  writer.write("weight", bytes_of(std::vector<float>{0.5, 0.75, 1, 1.25}));
  writer.write("bias", bytes_of(std::vector<std::uint16_t>{0x3fc0, 0xc000}));
  writer.write("bytes", bytes_of(std::vector<std::uint8_t>{7}));
  EXPECT_FALSE(fs::exists(folder / "out"));
  writer.commit();
  EXPECT_EQ(read_file(folder / "out", 1 << 20), read_file(kGoldenPath, 1 << 20));
}

TEST_F(TensorFilesTest, AWriterKeepsToItsDeclaration) {
  const std::vector<TensorInfo> tensors = {{"a", DType::f32, {2}}, {"b", DType::f32, {1}}};
  const std::vector<float> two(2), three(3);
  TensorFileWriter writer = write_safetensors(folder / "out", tensors);
  EXPECT_MENTIONS(message_of([&] { writer.write("b", bytes_of(two)); }),
                  "tensor b was written, but a comes next");
  EXPECT_MENTIONS(message_of([&] { writer.write("a", bytes_of(three)); }), "4 bytes more");
  writer.write("a", bytes_of(two));
  EXPECT_MENTIONS(message_of([&] { writer.commit(); }), "tensor b lacks 4 bytes");
  EXPECT_FALSE(fs::exists(folder / "out"));
  EXPECT_THROW(write_safetensors(folder / "out", {{"a", DType::f32, {1}}, {"a", DType::f32, {1}}}), Error);
  EXPECT_THROW(write_safetensors(folder / "out", {{"__metadata__", DType::f32, {1}}}), Error);
}

// The format allows no gap before b.
TEST_F(TensorFilesTest, TensorsThatWouldBeginUnalignedAreWrittenAfterWideOnes) {
  const std::vector<TensorInfo> tensors = {
      {"a", DType::bf16, {3}}, {"b", DType::f32, {2}}, {"empty", DType::f32, {0}}, {"c", DType::bf16, {1}}};
  const std::vector<std::uint16_t> a = {1, 2, 3}, c = {4};
  const std::vector<float> b = {0.5f, -2};
  TensorFileWriter writer = write_safetensors(folder / "out", tensors);
  writer.write("a", bytes_of(a).first(2));
  writer.write("a", bytes_of(a).subspan(2));
  EXPECT_MENTIONS(message_of([&] { writer.commit(); }), "tensor b lacks 8 bytes");
  writer.write("b", bytes_of(b));
  writer.write("c", bytes_of(c));
  writer.commit();
  const SafetensorsFile file(folder / "out");
  std::vector<std::string> names;
  for (const SafetensorsEntry& entry : file.entries()) {
    names.push_back(entry.name);
    EXPECT_EQ(entry.begin % size_of(*entry.dtype), 0u) << entry.name;
  }
  EXPECT_EQ(names, (std::vector<std::string>{"b", "empty", "a", "c"}));
  EXPECT_EQ(values_of<std::uint16_t>(file.bytes(*file.find("a"))), a);
  EXPECT_EQ(values_of<float>(file.bytes(*file.find("b"))), b);
  EXPECT_EQ(values_of<std::uint16_t>(file.bytes(*file.find("c"))), c);
}

TEST_F(TensorFilesTest, HostileSafetensorsAreRefused) {
  const std::string good = R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})";
  EXPECT_EQ(header_error(good), "no error");
  EXPECT_EQ(header_error(good + "    "), "no error");
  EXPECT_EQ(header_error("{}", 0), "no error");
  EXPECT_MENTIONS(safetensors_error(""), "holds 0 bytes");
  EXPECT_MENTIONS(safetensors_error("version https://git-lfs.github.com/spec/v1\noid sha256:0\n"), "Git LFS");
  EXPECT_MENTIONS(safetensors_error(std::string(8, '\xff')),
                  "declares a header of 18446744073709551615 bytes");
  EXPECT_MENTIONS(safetensors_error(std::string("\x09\0\0\0\0\0\0\0{}", 10)), "declares a header of 9 bytes");
  EXPECT_MENTIONS(header_error(""), "does not begin with {");
  EXPECT_MENTIONS(header_error(" " + good), "does not begin with {");
  EXPECT_MENTIONS(header_error(good + "x"), "not valid JSON");
  EXPECT_MENTIONS(header_error(good + std::string(1, '\0') + "x"), "holds a NUL");
  EXPECT_MENTIONS(header_error(good.substr(0, good.size() - 1)), "not valid JSON");
  EXPECT_MENTIONS(header_error(good, 7), "need 8 bytes, but 7 follow");
  EXPECT_MENTIONS(header_error(good, 9), "need 8 bytes, but 9 follow");
}

TEST_F(TensorFilesTest, HostileSafetensorsEntriesAreRefused) {
  const auto entry = [&](const std::string& body, std::size_t data_bytes = 8) {
    return header_error("{\"a\":" + body + "}", data_bytes);
  };
  EXPECT_MENTIONS(entry(R"({"dtype":"F32","shape":[2]})"), "lacks dtype, shape or data_offsets");
  EXPECT_MENTIONS(entry(R"({"dtype":"X","shape":[2],"data_offsets":[0,8]})"), "unknown dtype \"X\"");
  EXPECT_MENTIONS(entry(R"({"dtype":7,"shape":[2],"data_offsets":[0,8]})"), "number");
  EXPECT_MENTIONS(entry(R"({"dtype":"F32","shape":[-2],"data_offsets":[0,8]})"), "the number -2");
  EXPECT_MENTIONS(entry(R"({"dtype":"F32","shape":[2.0],"data_offsets":[0,8]})"), "the number 2.0");
  EXPECT_MENTIONS(entry(R"({"dtype":"F32","shape":[1,1,1,1,1,2],"data_offsets":[0,8]})"), "over 5 axes");
  EXPECT_MENTIONS(entry(R"({"dtype":"F32","shape":[18446744073709551615],"data_offsets":[0,8]})"),
                  "too large");
  EXPECT_MENTIONS(entry(R"({"dtype":"F32","shape":[4611686018427387905],"data_offsets":[0,4]})", 4),
                  "too large");
  EXPECT_MENTIONS(entry(R"({"dtype":"F32","shape":[4294967296,4294967296],"data_offsets":[0,0]})", 0),
                  "too large");
  EXPECT_MENTIONS(entry(R"({"dtype":"F32","shape":[2],"data_offsets":[0,4]})", 4), "needs 8 bytes");
  EXPECT_MENTIONS(entry(R"({"dtype":"F32","shape":[2],"data_offsets":[8,0]})"), "needs 8 bytes");
  EXPECT_MENTIONS(entry(R"({"dtype":"F32","shape":[2],"data_offsets":[8]})"), "1 data_offsets instead of 2");
  EXPECT_MENTIONS(entry(R"({"dtype":"F32","shape":[2],"data_offsets":[0,8,9]})"),
                  "3 data_offsets instead of 2");
  EXPECT_MENTIONS(entry(R"({"dtype":"F32","shape":[2],"data_offsets":[[0],8]})"), "a list where");
  EXPECT_MENTIONS(entry(R"({"dtype":"F32","shape":{},"data_offsets":[0,8]})"), "an object where");
  EXPECT_MENTIONS(entry(R"({"dtype":"F32","shape":[2],"data_offsets":[0,8],"x":1})"), "unknown key \"x\"");
  EXPECT_MENTIONS(entry(R"({"dtype":"F32","dtype":"F32","shape":[2],"data_offsets":[0,8]})"), "two dtype");
  EXPECT_MENTIONS(entry("null"), "null where");
  EXPECT_MENTIONS(entry(std::string(1 << 20, '[')), "a list where");
  EXPECT_MENTIONS(header_error(R"({"__metadata__":{"a":1}})", 0), "a number where");
  EXPECT_MENTIONS(header_error(R"({"__metadata__":{"a":{}}})", 0), "an object where");
}

TEST_F(TensorFilesTest, HostileSafetensorsLayoutsAreRefused) {
  const auto two = [&](const std::string& first, const std::string& second, const std::string& name = "b") {
    return header_error(R"({"a":{"dtype":"U8","shape":[4],"data_offsets":)" + first + R"(},")" + name +
                        R"(":{"dtype":"U8","shape":[4],"data_offsets":)" + second + "}}");
  };
  EXPECT_EQ(two("[0,4]", "[4,8]"), "no error");
  EXPECT_EQ(two("[4,8]", "[0,4]"), "no error");
  EXPECT_MENTIONS(two("[0,4]", "[2,6]"), "begins at byte 2 of the data, but");
  EXPECT_MENTIONS(two("[0,4]", "[0,4]"), "begins at byte 0 of the data, but");
  EXPECT_MENTIONS(two("[0,4]", "[5,9]"), "a gap after");
  EXPECT_MENTIONS(two("[1,5]", "[5,9]"), "a gap after");
  EXPECT_MENTIONS(two("[0,4]", "[4,8]", "a"), "\"a\" appears twice");
  EXPECT_MENTIONS(two("[18446744073709551612,0]", "[0,4]"), "needs 4 bytes");
}

TEST_F(TensorFilesTest, ForeignTypesAreListedButNotRead) {
  const std::string header = R"({"mask":{"dtype":"BOOL","shape":[8],"data_offsets":[0,8]}})";
  ASSERT_EQ(header_error(header), "no error");
  const SafetensorsFile file(folder / "file");
  EXPECT_MENTIONS(message_of([&] { file.bytes(*file.find("mask")); }), "dtype BOOL, which cannot be read");
}

TEST_F(TensorFilesTest, LlmcFilesRoundTrip) {
  const LlmcConfig config{DType::bf16, 5, 11, 2, 2, 4, 16};
  const auto tensors = llmc_tensors(config, "test");
  ASSERT_EQ(tensors.size(), 16u);
  TensorFileWriter writer = write_llmc(folder / "out", config);
  std::uint16_t value = 0;
  for (const TensorInfo& tensor : tensors) {
    std::vector<std::uint16_t> content(static_cast<std::size_t>(tensor.shape.elements()));
    for (std::uint16_t& element : content) element = value++;
    writer.write(tensor.name, bytes_of(content));
  }
  writer.commit();
  const LlmcFile file(folder / "out");
  EXPECT_EQ(file.config(), config);
  EXPECT_EQ(file.tensors(), tensors);
  EXPECT_EQ(values_of<std::uint16_t>(file.bytes("wpe")).front(), 16 * 4);
  EXPECT_EQ(values_of<std::uint16_t>(file.bytes("lnfb")).back(), value - 1);
  EXPECT_THROW(file.bytes("none"), Error);
}

TEST_F(TensorFilesTest, AChatTemplateIsAFileOrInTheTokenizersConfig) {
  const auto added_template = [&] {
    TokenizerFiles files;
    add_chat_template(files, folder);
    return files["chat_template.jinja"];
  };
  const auto template_of = [&](const char* config) {
    TestFolder::put("tokenizer_config.json", config);
    return added_template();
  };
  const auto refusal_of = [&](const char* config) { return message_of([&] { template_of(config); }); };
  EXPECT_EQ(added_template(), "");
  for (const char* none : {"{}", R"({"chat_template": null})", R"({"chat_template": []})",
                           R"({"chat_template": [{"name": "tool_use", "template": "t"}]})"})
    EXPECT_EQ(template_of(none), "") << none;
  EXPECT_EQ(template_of(R"({"added_tokens_decoder": {}, "chat_template": "{{ a }}"})"), "{{ a }}");
  EXPECT_EQ(template_of(R"({"chat_template": [{"name": "tool_use", "template": "t"},
                                              {"name": "default", "template": "d"}]})"),
            "d");
  for (const char* hostile : {R"({"chat_template": 3})", R"({"chat_template": ["d"]})",
                              R"({"chat_template": [{"name": "default"}]})",
                              R"({"chat_template": [{"name": "default", "template": 3}]})"})
    EXPECT_MENTIONS(refusal_of(hostile), "\"chat_template\" cannot be read");
  for (const char* hostile : {"", "[]", R"({"chat_template": "a", "chat_template": "b"})"})
    EXPECT_MENTIONS(refusal_of(hostile), "tokenizer_config.json");
  TestFolder::put("chat_template.jinja", "{{ b }}");
  EXPECT_EQ(template_of("{}"), "{{ b }}");
  TokenizerFiles own = {{"tokenizer_config.json", R"({"chat_template": "{{ c }}"})"}};
  add_chat_template(own, folder);
  EXPECT_EQ(own.size(), 1u);
}

// The header and sizes of the file that llm.c's train_gpt2.py writes for GPT-2 124M (gpt2_124M.bin).
TEST_F(TensorFilesTest, KnowsTheSizeOfGpt2) {
  std::uint64_t elements = 0;
  for (const TensorInfo& tensor : llmc_tensors({DType::f32, 1024, 50257, 12, 12, 768, 50304}, "test")) {
    elements += static_cast<std::uint64_t>(tensor.shape.elements());
  }
  EXPECT_EQ(elements, 124439808u + (50304u - 50257u) * 768u);
}

TEST_F(TensorFilesTest, HostileLlmcFilesAreRefused) {
  // T, V, L, heads, C and Vp are 1; the elements of each tensor are counted by hand, in the file's order.
  const std::size_t bytes = 4 * (1 + 1 + 2 + 3 + 3 + 1 + 1 + 2 + 4 + 4 + 4 + 1 + 2);
  EXPECT_EQ(llmc_error({20240326, 3, 1, 1, 1, 1, 1, 1}, bytes), "no error");
  EXPECT_EQ(llmc_error({20240326, 5, 1, 1, 1, 1, 1, 1}, bytes / 2), "no error");
  EXPECT_MENTIONS(llmc_error({20240326, 3, 1, 1, 1, 1, 1, 1}, bytes - 1), "needs");
  EXPECT_MENTIONS(llmc_error({20240326, 3, 1, 1, 1, 1, 1, 1}, bytes + 1), "needs");
  EXPECT_MENTIONS(llmc_error({20240520, 3, 1, 1, 1, 1, 1, 1}, bytes), "begins with 20240520");
  EXPECT_MENTIONS(llmc_error({20240326, 1, 1, 1, 1, 1, 1, 1}, bytes), "version 1");
  EXPECT_MENTIONS(llmc_error({20240326, 3, 0, 1, 1, 1, 1, 1}, bytes), "max_seq_len 0");
  EXPECT_MENTIONS(llmc_error({20240326, 3, 1, 1, -5, 1, 1, 1}, bytes), "num_layers -5");
  EXPECT_MENTIONS(llmc_error({20240326, 3, 1, 2, 1, 1, 1, 1}, bytes), "vocabulary of 2 padded to 1");
  EXPECT_MENTIONS(llmc_error({20240326, 3, 1, 1, 1, 2, 3, 1}, bytes), "3 channels in 2 heads");
  EXPECT_MENTIONS(llmc_error({20240326, 3, 1, 1, 1, 1, 0x7fffffff, 1}, bytes), "channels 2147483647");
  EXPECT_MENTIONS(llmc_error({20240326, 3, 0x7fffffff, 0x7fffffff, 65536, 1, 1 << 20, 0x7fffffff}, bytes),
                  "needs");
  fs::path path = put(std::string("GGUF\3\0\0\0\0\0\0\0", 12));
  EXPECT_MENTIONS(message_of([&] { LlmcFile{path}; }), "is not read");
  path = put(std::string("\x2\0\0\0\0\0\0\0{}", 10));
  EXPECT_MENTIONS(message_of([&] { LlmcFile{path}; }), "is a safetensors file; name its folder");
  EXPECT_EQ(llmc_error({20240326, 3, '{', 1, 1, 1, 1, 1}, bytes + 4 * ('{' - 1)), "no error");
  path = put("short");
  EXPECT_MENTIONS(message_of([&] { LlmcFile{path}; }), "holds 5 bytes");
}

}  // namespace
}  // namespace warpwright
