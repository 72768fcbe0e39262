#include "model/transformer_files.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <unordered_map>
#include <unordered_set>

#include "core/error.hpp"
#include "model/fill.hpp"
#include "model/safetensors_folder.hpp"
#include "runtime/host_view.hpp"

namespace warpwright {
namespace {

namespace fs = std::filesystem;

// Rows of a parameter, or elements of one without rows.
struct Piece {
  std::int64_t first = 0, rows = 0;

  Tensor of(const Tensor& parameter) const { return parameter.slice(0, first, rows); }
};

// A tensor of a folder: these pieces of a parameter, one after the other.
struct StoredPart {
  std::string name;
  std::vector<Piece> pieces;
  bool transposed = false;  // one piece

  Shape shape(const Shape& parameter) const {
    std::int64_t rows = 0;
    for (const Piece& piece : pieces) rows += piece.rows;
    if (parameter.rank() == 1) return {rows};
    return transposed ? Shape{parameter[1], rows} : Shape{rows, parameter[1]};
  }
};

// name with `parts` instead of `whole`, each with its number of rows.
struct PartRows {
  std::string_view name;
  std::int64_t rows;
};
std::vector<StoredPart> split(const std::string& name, std::string_view whole,
                              std::initializer_list<PartRows> parts) {
  std::vector<StoredPart> stored;
  std::int64_t first = 0;
  for (const PartRows& part : parts) {
    std::string with = name;
    with.replace(with.find(whole), whole.size(), part.name);
    stored.push_back({.name = with, .pieces = {{first, part.rows}}});
    first += part.rows;
  }
  return stored;
}

// q, k and v of the first head, then of the next.
std::vector<Piece> pieces_by_head(const TransformerDescription& d) {
  std::vector<Piece> pieces;
  for (std::int64_t head = 0; head < d.heads; ++head) {
    for (std::int64_t part = 0; part < 3; ++part)
      pieces.push_back({(part * d.heads + head) * d.head_size, d.head_size});
  }
  return pieces;
}

bool is_in(std::string_view name, std::string_view layer) {
  return name.find(layer) != std::string_view::npos;
}

// The tensors of a folder that make up a parameter.
std::vector<StoredPart> stored_parts(const TransformerDescription& d, const ParameterShape& parameter) {
  const TransformerNames& n = *d.names;
  const auto& [name, shape, kind, matrices] = parameter;
  if (kind == ParameterKind::vocabulary) return {{.name = name, .pieces = {{0, d.vocab}}}};
  if (n.qkv_by_head && is_in(name, n.qkv)) return {{.name = name, .pieces = pieces_by_head(d)}};
  if (n.q != n.qkv && is_in(name, n.qkv)) {
    const std::int64_t keys = d.key_heads * d.head_size;
    return split(name, n.qkv, {{n.q, d.heads * d.head_size}, {n.k, keys}, {n.v, keys}});
  }
  if (n.gate != n.fc && is_in(name, n.fc)) return split(name, n.fc, {{n.gate, d.hidden}, {n.up, d.hidden}});
  const bool linear = kind == ParameterKind::projection || kind == ParameterKind::weight;
  return {{.name = name, .pieces = {{0, shape[0]}}, .transposed = n.transposed && linear}};
}

// The shapes by name, for parameters in any order and number.
std::unordered_map<std::string, ParameterShape> shapes_by_name(const TransformerDescription& d) {
  std::unordered_map<std::string, ParameterShape> shapes;
  for (ParameterShape& parameter : parameter_shapes(d)) shapes.emplace(parameter.name, std::move(parameter));
  return shapes;
}

// Some programs save the names of the model without its head, which lack the prefix or have another one.
SafetensorsFolder::StoredTensor find_tensor(const SafetensorsFolder& stored, const TransformerDescription& d,
                                            const std::string& name) {
  const std::string prefix(d.names->prefix);
  SafetensorsFolder::StoredTensor found = stored.find(name);
  if (!found) found = stored.find(prefix + name);
  if (!found && name.starts_with(prefix)) found = stored.find(name.substr(prefix.size()));
  const std::string head = std::string(d.names->head) + ".weight";
  if (!found && name == head && !d.names->other_head.empty())
    found = stored.find(std::string(d.names->other_head) + ".weight");
  return found;
}

SafetensorsFolder::StoredTensor require_tensor(const SafetensorsFolder& stored,
                                               const TransformerDescription& d, const std::string& name) {
  if (const auto found = find_tensor(stored, d, name)) return found;
  throw Error(fmt::format("has no tensor {}", name), stored.path().string(),
              "use the weights and the config.json of one model");
}

// Tensors that some versions of transformers saved, and that follow from the config: the causal mask and the
// rotary frequencies.
bool is_derived(std::string_view name) {
  constexpr std::string_view kDerived[] = {".attn.bias", ".attn.masked_bias", ".attention.bias",
                                           ".attention.masked_bias", ".rotary_emb.inv_freq"};
  return std::ranges::any_of(kDerived, [&](std::string_view suffix) { return name.ends_with(suffix); });
}

// A stored copy of a tied head must be the embedding.
void check_tied_head(const SafetensorsFolder::StoredTensor& head,
                     const SafetensorsFolder::StoredTensor& wte) {
  const auto a = head.bytes(), b = wte.bytes();
  if (head.entry->stored_dtype == wte.entry->stored_dtype && head.entry->shape == wte.entry->shape &&
      std::equal(a.begin(), a.end(), b.begin(), b.end())) {
    return;
  }
  throw Error(fmt::format("{} differs from {}, but config.json ties them (tie_word_embeddings)",
                          head.entry->name, wte.entry->name),
              head.file->path().string(), "use the weights and the config.json of one model");
}

void check_stored(const SafetensorsFolder::StoredTensor& found, const Shape& shape) {
  const SafetensorsEntry& entry = *found.entry;
  if (entry.shape == shape && entry.dtype && is_floating(*entry.dtype)) return;
  throw Error(fmt::format("{} is {} {}, but config.json asks for {}", entry.name, entry.stored_dtype,
                          entry.shape.to_string(), shape.to_string()),
              found.file->path().string(), "use the weights and the config.json of one model");
}

// Throws for tensors that nothing has used.
void check_rest(const SafetensorsFolder& stored, const TransformerDescription& d,
                const std::unordered_set<std::string_view>& used) {
  const auto is_head = [&](std::string_view name) {
    if (name.starts_with(d.names->prefix)) name.remove_prefix(d.names->prefix.size());
    if (!name.ends_with(".weight")) return false;
    name.remove_suffix(std::string_view(".weight").size());
    return name == d.names->head || (name == d.names->other_head && !name.empty());
  };
  for (const SafetensorsFolder::StoredTensor& t : stored.tensors()) {
    const std::string& name = t.entry->name;
    if (used.contains(name) || is_derived(name)) continue;
    if (d.tied_head && is_head(name)) {
      check_tied_head(t, require_tensor(stored, d, std::string(d.names->wte) + ".weight"));
      continue;
    }
    throw Error(fmt::format("has a tensor {} that this model does not have", name), t.file->path().string(),
                "use the weights and the config.json of one model, without additions");
  }
}

// The pieces of a parameter from the bytes of the stored tensor.
void fill_part(const Tensor& parameter, const StoredPart& part,
               const SafetensorsFolder::StoredTensor& found) {
  std::span<const std::byte> rest = found.bytes();
  for (const Piece& piece : part.pieces) {
    const Tensor rows = piece.of(parameter);
    const DType dtype = *found.entry->dtype;
    const std::size_t bytes = static_cast<std::size_t>(rows.elements()) * size_of(dtype);
    fill(rows, rows.shape.rank() == 1 ? 1 : piece.rows, rest.first(bytes), dtype, part.transposed);
    rest = rest.subspan(bytes);
  }
}

// Writes a parameter's rows, or its columns as rows.
void write_rows(TensorFileWriter& writer, const std::string& name, const Tensor& rows, bool transposed) {
  const auto* data = static_cast<const std::byte*>(rows.data);
  const auto size = static_cast<std::int64_t>(size_of(rows.dtype));
  if (!transposed) return writer.write(name, {data, static_cast<std::size_t>(rows.elements() * size)});
  const std::int64_t count = rows.shape[0], columns = rows.shape[1];
  std::vector<std::byte> line(static_cast<std::size_t>(count * size));
  for (std::int64_t c = 0; c < columns; ++c) {
    for (std::int64_t r = 0; r < count; ++r) {
      std::memcpy(line.data() + r * size, data + (r * columns + c) * size, static_cast<std::size_t>(size));
    }
    writer.write(name, line);
  }
}

}  // namespace

void load_transformer(const fs::path& folder, const TransformerDescription& d, const ParameterWriter& write) {
  const SafetensorsFolder stored(folder);
  std::unordered_set<std::string_view> used;
  std::size_t index = 0;
  for (const ParameterShape& parameter : parameter_shapes(d)) {
    const std::vector<StoredPart> parts = stored_parts(d, parameter);
    std::vector<SafetensorsFolder::StoredTensor> found;
    for (const StoredPart& part : parts) {
      found.push_back(require_tensor(stored, d, part.name));
      check_stored(found.back(), part.shape(parameter.shape));
      used.insert(found.back().entry->name);
    }
    write(index++, [&](const Tensor& host) {
      for (std::size_t i = 0; i < parts.size(); ++i) fill_part(host, parts[i], found[i]);
    });
  }
  check_rest(stored, d, used);
}

DType stored_dtype(const fs::path& folder, const TransformerDescription& d) {
  const SafetensorsFolder stored(folder);
  const auto wte = require_tensor(stored, d, std::string(d.names->wte) + ".weight");
  if (wte.entry->dtype && is_floating(*wte.entry->dtype)) return *wte.entry->dtype;
  throw Error(fmt::format("{} is {}", wte.entry->name, wte.entry->stored_dtype), wte.file->path().string(),
              "convert it to F32, BF16 or F16");
}

void write_transformer_weights(const fs::path& file, const TransformerDescription& d,
                               const DecoderParameters& parameters, const ParameterReader& read) {
  const auto shapes = shapes_by_name(d);
  std::vector<TensorInfo> infos;
  for (const auto& [name, parameter] : parameters) {
    for (const StoredPart& part : stored_parts(d, shapes.at(name))) {
      infos.push_back({part.name, parameter.dtype, part.shape(parameter.shape)});
    }
  }
  TensorFileWriter writer = write_safetensors(file, infos);
  std::size_t index = 0;
  for (const DecoderParameters::Entry& entry : parameters) {
    read(index++, [&](const Tensor& host) {
      for (const StoredPart& part : stored_parts(d, shapes.at(entry.name))) {
        for (const Piece& piece : part.pieces) write_rows(writer, part.name, piece.of(host), part.transposed);
      }
    });
  }
  writer.commit();
}

}  // namespace warpwright
