#include "model/safetensors.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <functional>
#include <nlohmann/json.hpp>
#include <numeric>
#include <set>
#include <unordered_set>
#include <utility>

#include "core/error.hpp"

namespace warpwright {
namespace {

constexpr std::uint64_t kMaxHeaderBytes = 100'000'000;
constexpr const char* kMetadata = "__metadata__";
constexpr const char* kCopyFile = "copy or export the file again";

struct StoredType {
  std::string_view name;
  std::uint64_t bytes;
  std::optional<DType> dtype;
};

constexpr std::array<StoredType, 15> kTypes = {{{"F64", 8, DType::f64},
                                                {"F32", 4, DType::f32},
                                                {"F16", 2, DType::f16},
                                                {"BF16", 2, DType::bf16},
                                                {"I64", 8, DType::i64},
                                                {"I32", 4, DType::i32},
                                                {"U8", 1, DType::u8},
                                                {"BOOL", 1, {}},
                                                {"I8", 1, {}},
                                                {"F8_E5M2", 1, {}},
                                                {"F8_E4M3", 1, {}},
                                                {"I16", 2, DType::i16},
                                                {"U16", 2, {}},
                                                {"U32", 4, {}},
                                                {"U64", 8, {}}}};

const StoredType* find_type(std::string_view name) {
  const auto found =
      std::find_if(kTypes.begin(), kTypes.end(), [&](const StoredType& t) { return t.name == name; });
  return found == kTypes.end() ? nullptr : &*found;
}

std::string_view stored_name(DType dtype) {
  return std::find_if(kTypes.begin(), kTypes.end(), [&](const StoredType& t) { return t.dtype == dtype; })
      ->name;
}

// Reads the header event by event: no tree is built, so neither depth nor size of hostile JSON costs memory,
// and what the format does not allow (a repeated name, another type, one level more) is refused at once.
class HeaderReader : public nlohmann::json_sax<nlohmann::json> {
 public:
  HeaderReader(std::string where, std::vector<SafetensorsEntry>& entries,
               std::map<std::string, std::string>& metadata)
      : where_(std::move(where)), entries_(entries), metadata_(metadata) {}

  bool start_object(std::size_t) override {
    if (state_ == State::start) {
      state_ = State::top;
    } else if (state_ == State::top_value) {
      state_ = key_ == kMetadata ? State::metadata : State::tensor;
      if (state_ == State::tensor) {
        entries_.push_back({});
        entries_.back().name = key_;
        fields_.clear();
      }
    } else {
      fail("an object where the format allows none");
    }
    return true;
  }

  bool end_object() override {
    if (state_ == State::tensor && fields_.size() != 3) {
      fail(fmt::format("tensor \"{}\" lacks dtype, shape or data_offsets", entries_.back().name));
    }
    state_ = state_ == State::top ? State::end : State::top;
    return true;
  }

  bool key(string_t& name) override {
    if (state_ == State::top) {
      if (!names_.insert(name).second) fail(fmt::format("\"{}\" appears twice", name));
      key_ = name;
      state_ = State::top_value;
    } else if (state_ == State::metadata) {
      if (metadata_.contains(name)) fail(fmt::format("metadata \"{}\" appears twice", name));
      metadata_key_ = name;
    } else {
      if (name != "dtype" && name != "shape" && name != "data_offsets")
        fail(fmt::format("unknown key \"{}\"", name));
      if (!fields_.insert(name).second)
        fail(fmt::format("tensor \"{}\" has two {}", entries_.back().name, name));
      field_ = name;
    }
    return true;
  }

  bool string(string_t& value) override {
    if (state_ == State::metadata) {
      metadata_[metadata_key_] = value;
    } else if (state_ == State::tensor && field_ == "dtype") {
      entries_.back().stored_dtype = value;
    } else {
      fail("a string where the format allows none");
    }
    return true;
  }

  bool start_array(std::size_t) override {
    if (state_ != State::tensor || field_ == "dtype") fail("a list where the format allows none");
    state_ = State::list;
    offsets_ = 0;
    return true;
  }

  bool end_array() override {
    if (field_ == "data_offsets" && offsets_ != 2) {
      fail(fmt::format("tensor \"{}\" has {} data_offsets instead of 2", entries_.back().name, offsets_));
    }
    state_ = State::tensor;
    return true;
  }

  bool number_unsigned(number_unsigned_t value) override {
    if (state_ != State::list) fail("a number where the format allows none");
    SafetensorsEntry& entry = entries_.back();
    if (field_ == "shape") {
      if (entry.shape.rank() == kMaxRank)
        fail(fmt::format("tensor \"{}\" has over {} axes", entry.name, kMaxRank));
      if (value > static_cast<std::uint64_t>(INT64_MAX))
        fail(fmt::format("tensor \"{}\" is too large", entry.name));
      entry.shape.append(static_cast<std::int64_t>(value));
    } else {
      (offsets_++ == 0 ? entry.begin : entry.end) = value;
    }
    return true;
  }

  bool null() override { return fail("null where the format allows none"); }
  bool boolean(bool) override { return fail("true or false where the format allows none"); }
  bool number_integer(number_integer_t value) override {
    return fail(fmt::format("holds the number {}", value));
  }
  bool number_float(number_float_t, const string_t& text) override {
    return fail(fmt::format("holds the number {}", text));
  }
  bool binary(binary_t&) override { return fail("is not JSON"); }
  bool parse_error(std::size_t position, const std::string&, const nlohmann::json::exception&) override {
    return fail(fmt::format("is not valid JSON at byte {}", position));
  }

 private:
  enum class State { start, top, top_value, tensor, list, metadata, end };

  [[noreturn]] bool fail(const std::string& what) const {
    throw Error("its header is not safetensors: " + what, where_, kCopyFile);
  }

  std::string where_;
  std::vector<SafetensorsEntry>& entries_;
  std::map<std::string, std::string>& metadata_;
  State state_ = State::start;
  std::string key_, metadata_key_, field_;
  std::set<std::string> names_, fields_;
  int offsets_ = 0;
};

// Type and size of one entry: the bytes that its shape needs are those between its offsets.
void check_entry(SafetensorsEntry& entry, const std::string& where) {
  const StoredType* type = find_type(entry.stored_dtype);
  if (!type) {
    throw Error(fmt::format("tensor \"{}\" has the unknown dtype \"{}\"", entry.name, entry.stored_dtype),
                where, kCopyFile);
  }
  entry.dtype = type->dtype;
  std::uint64_t needed = type->bytes;
  for (int axis = 0; axis < entry.shape.rank(); ++axis) {
    if (__builtin_mul_overflow(needed, static_cast<std::uint64_t>(entry.shape[axis]), &needed)) {
      throw Error(fmt::format("tensor \"{}\" of shape {} is too large", entry.name, entry.shape.to_string()),
                  where, kCopyFile);
    }
  }
  if (entry.end < entry.begin || entry.end - entry.begin != needed) {
    throw Error(fmt::format("tensor \"{}\" of shape {} needs {} bytes, but its data_offsets are [{}, {}]",
                            entry.name, entry.shape.to_string(), needed, entry.begin, entry.end),
                where, kCopyFile);
  }
}

}  // namespace

SafetensorsFile::SafetensorsFile(const std::filesystem::path& path) : file_(path) {
  const std::string where = path.string();
  std::uint64_t header_bytes = 0;
  if (file_.size() < sizeof header_bytes) {
    throw Error(fmt::format("holds {} bytes, too few for a safetensors file", file_.size()), where,
                kCopyFile);
  }
  constexpr std::string_view kLfs = "version https://git-lfs";
  if (file_.size() > kLfs.size() &&
      std::memcmp(file_.bytes(0, kLfs.size()).data(), kLfs.data(), kLfs.size()) == 0) {
    throw Error("is a Git LFS pointer, not the weights", where, "fetch the file with `git lfs pull`");
  }
  std::memcpy(&header_bytes, file_.bytes(0, sizeof header_bytes).data(), sizeof header_bytes);
  if (header_bytes > kMaxHeaderBytes || header_bytes > file_.size() - sizeof header_bytes) {
    throw Error(fmt::format("declares a header of {} bytes in a file of {} (at most {} are allowed)",
                            header_bytes, file_.size(), kMaxHeaderBytes),
                where, "check that it is a safetensors file, copy or export it again");
  }
  data_begin_ = sizeof header_bytes + header_bytes;
  const auto header = file_.bytes(sizeof header_bytes, header_bytes);
  const std::string_view text(reinterpret_cast<const char*>(header.data()), header.size());
  if (!text.starts_with('{')) throw Error("its header does not begin with {", where, kCopyFile);
  // The parser takes a NUL for the end.
  if (text.find('\0') != std::string_view::npos) throw Error("its header holds a NUL", where, kCopyFile);
  HeaderReader reader(where, entries_, metadata_);
  nlohmann::json::sax_parse(text, &reader);
  place_entries();
}

// Checks each tensor, and that together they fill the data exactly.
void SafetensorsFile::place_entries() {
  const std::string where = path().string();
  for (SafetensorsEntry& entry : entries_) check_entry(entry, where);
  std::stable_sort(entries_.begin(), entries_.end(),
                   [](const SafetensorsEntry& a, const SafetensorsEntry& b) {
                     return std::pair(a.begin, a.end) < std::pair(b.begin, b.end);
                   });
  std::uint64_t end = 0;
  for (const SafetensorsEntry& entry : entries_) {
    if (entry.begin != end) {
      throw Error(fmt::format("tensor \"{}\" begins at byte {} of the data, {} the previous one ends at {}",
                              entry.name, entry.begin, entry.begin < end ? "but" : "a gap after", end),
                  where, kCopyFile);
    }
    end = entry.end;
  }
  if (const std::uint64_t present = file_.size() - data_begin_; present != end) {
    throw Error(fmt::format("its tensors need {} bytes, but {} follow the header", end, present), where,
                kCopyFile);
  }
  for (std::size_t i = 0; i < entries_.size(); ++i) by_name_.emplace(entries_[i].name, i);
}

const SafetensorsEntry* SafetensorsFile::find(std::string_view name) const {
  const auto found = by_name_.find(name);
  return found == by_name_.end() ? nullptr : &entries_[found->second];
}

std::span<const std::byte> SafetensorsFile::bytes(const SafetensorsEntry& entry) const {
  if (!entry.dtype) {
    throw Error(
        fmt::format("tensor \"{}\" has dtype {}, which cannot be read", entry.name, entry.stored_dtype),
        path().string(), "convert it to F32, BF16 or F16");
  }
  return file_.bytes(data_begin_ + entry.begin, entry.end - entry.begin);
}

namespace {

// Indexes of the tensors in the order of the file.
std::vector<std::size_t> order_in_file(const std::vector<TensorInfo>& tensors) {
  std::vector<std::size_t> order(tensors.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::uint64_t offset = 0;
  bool aligned = true;
  for (const TensorInfo& tensor : tensors) {
    aligned = aligned && offset % size_of(tensor.dtype) == 0;
    offset += bytes_of(tensor);
  }
  if (!aligned)
    std::ranges::stable_sort(order, std::greater(), [&](std::size_t i) { return size_of(tensors[i].dtype); });
  return order;
}

}  // namespace

TensorFileWriter write_safetensors(const std::filesystem::path& path, const std::vector<TensorInfo>& tensors,
                                   const std::map<std::string, std::string>& metadata) {
  // An object of ordered_json searches all its keys for each new one.
  std::string text =
      metadata.empty() ? "{" : fmt::format("{{\"{}\":{}", kMetadata, nlohmann::json(metadata).dump());
  std::unordered_set<std::string_view> names = {kMetadata};
  const std::vector<std::size_t> order = order_in_file(tensors);
  std::vector<std::uint64_t> places(tensors.size());
  std::uint64_t offset = 0;
  for (const std::size_t i : order) {
    const TensorInfo& tensor = tensors[i];
    if (!names.insert(tensor.name).second) {
      throw Error(fmt::format("tensor \"{}\" has a name that is taken", tensor.name), path.string(),
                  "give each name once");
    }
    places[i] = offset;
    const std::uint64_t end = offset + bytes_of(tensor);
    std::vector<std::int64_t> shape;
    for (int axis = 0; axis < tensor.shape.rank(); ++axis) shape.push_back(tensor.shape[axis]);
    const nlohmann::ordered_json entry = {
        {"dtype", stored_name(tensor.dtype)}, {"shape", shape}, {"data_offsets", {offset, end}}};
    text +=
        fmt::format("{}{}:{}", text.size() > 1 ? "," : "", nlohmann::json(tensor.name).dump(), entry.dump());
    offset = end;
  }
  text += '}';
  text.append((8 - text.size() % 8) % 8, ' ');
  const std::uint64_t length = text.size();
  text.insert(0, reinterpret_cast<const char*>(&length), sizeof length);
  if (std::ranges::is_sorted(order)) places.clear();
  return TensorFileWriter(path, std::as_bytes(std::span(text)), tensors, std::move(places));
}

}  // namespace warpwright
