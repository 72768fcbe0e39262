#include "data/build.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <exception>
#include <limits>
#include <memory>
#include <optional>
#include <unordered_set>
#include <utility>

#include "core/error.hpp"
#include "data/documents.hpp"
#include "data/permutation.hpp"
#include "data/shard.hpp"
#include "runtime/file.hpp"
#include "runtime/threads.hpp"

namespace warpwright {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kPieceBytes = std::size_t{1} << 20;  // of a long document, per call of the encoder
constexpr std::size_t kRoundBytes = std::size_t{4} << 20;  // per thread, between two writes
constexpr std::uint32_t kValidationPurpose = 0x76616c64;   // "vald": a random stream of its own for this seed

struct CountedFile {
  InputFile input;
  std::int64_t bytes = 0;  // on disk
  std::int64_t documents = 0;
};

// The input of one call of the encoder: a document, or a part of a long one.
struct Piece {
  std::string bytes;
  const fs::path* path = nullptr;
  std::int64_t line = 0;  // > 0: the bytes are this line of JSON, not yet the text
  bool begins_document = true, ends_document = true;
  Split split = Split::train;
};

struct Encoded {
  std::vector<std::int32_t> ids;
  std::size_t text_bytes = 0;
  std::exception_ptr error;
};

struct Inventory {
  std::vector<CountedFile> files;
  std::int64_t bytes = 0;
  std::int64_t documents = 0;
  std::int64_t skipped = 0;
};

std::int64_t count_documents(const InputFile& input) {
  TextStream stream(input.path);
  char first;
  if (!input.jsonl) return stream.read({&first, 1}) > 0;
  std::int64_t lines = 0;
  for_each_jsonl_line(reader_of(stream), input.path, [&](const RawDocument&) { ++lines; });
  return lines;
}

Inventory take_inventory(const BuildOptions& options) {
  Inventory inventory;
  for (const InputFile& input : list_inputs(options.inputs)) {
    if (const auto kind = reason_to_skip(input, options.binary)) {
      ++inventory.skipped;
      if (options.skipped) options.skipped(input.path, *kind);
      continue;
    }
    const auto bytes = static_cast<std::int64_t>(FileReader(input.path).size());
    inventory.files.push_back({input, bytes, count_documents(input)});
    inventory.bytes += bytes;
    inventory.documents += inventory.files.back().documents;
  }
  if (inventory.documents == 0) {
    const std::string where = options.inputs.empty() ? "input" : options.inputs.front().string();
    if (inventory.skipped > 0) {
      throw Error(fmt::format("holds no documents; files skipped: {}", inventory.skipped), where,
                  "give text files, or encode files as they are (--binary)");
    }
    throw Error("holds no documents", where, "give text files, JSONL files or folders of them");
  }
  return inventory;
}

// Chooses the validation documents if there are several documents: a fixed number, at least one for each
// split.
class ValidationChoice {
 public:
  ValidationChoice(const BuildOptions& options, std::int64_t documents)
      : documents_(documents),
        order_(static_cast<std::uint64_t>(documents), options.seed, kValidationPurpose) {
    if (options.val_fraction == 0 || documents == 1) return;
    const double wanted = std::round(options.val_fraction * static_cast<double>(documents));
    chosen_ = std::clamp<std::uint64_t>(static_cast<std::uint64_t>(wanted), 1,
                                        static_cast<std::uint64_t>(documents - 1));
  }
  // A file that grew after it was counted yields documents beyond the count. finish_file() refuses them
  // later.
  Split split_of(std::int64_t document) const {
    const bool chosen = document < documents_ && order_(static_cast<std::uint64_t>(document)) < chosen_;
    return chosen ? Split::val : Split::train;
  }

 private:
  std::int64_t documents_;
  Permutation order_;
  std::uint64_t chosen_ = 0;
};

std::uint64_t bytes_of(TextStream& stream) {
  std::string chunk(kPieceBytes, '\0');
  std::uint64_t bytes = 0;
  while (const std::size_t got = stream.read(chunk)) bytes += got;
  return bytes;
}

class Builder {
 public:
  Builder(const BuildOptions& options, const EncodeFunction& encode, const ProgressFunction& progress,
          const fs::path& folder)
      : options_(options),
        encode_(encode),
        progress_(progress),
        threads_(default_threads().threads),
        piece_bytes_(options.whole_documents ? std::numeric_limits<std::size_t>::max() : kPieceBytes),
        round_bytes_(kRoundBytes * static_cast<std::size_t>(threads_)),
        train_(folder, "train", options.vocabulary_size, options.tokens_per_shard),
        val_(folder, "val", options.vocabulary_size, options.tokens_per_shard) {
    claim_threads(threads_);
  }

  Manifest build(const Inventory& inventory);

 private:
  void add_file(const CountedFile& file, const ValidationChoice& choice);
  void add_only_document(const CountedFile& file);
  void add_text(const ReadText& read, const fs::path& path, Split split);
  void finish_file(const CountedFile& file, std::int64_t documents);
  void add(Piece piece);
  void run_round();
  Encoded encode(const Piece& piece) const;
  void encode_part(const Piece& piece, std::string_view part, bool continues,
                   std::vector<std::int32_t>& ids) const;
  void write(const Piece& piece, const Encoded& encoded);

  ShardWriter& writer(Split split) { return split == Split::train ? train_ : val_; }
  SplitManifest& record(Split split) { return split == Split::train ? manifest_.train : manifest_.val; }

  const BuildOptions& options_;
  const EncodeFunction& encode_;
  const ProgressFunction& progress_;
  int threads_;
  std::size_t piece_bytes_;  // at most, per call of the encoder
  std::size_t round_bytes_;
  ShardWriter train_, val_;
  Manifest manifest_;
  BuildProgress state_;
  std::int64_t first_document_ = 0;  // of the current file
  std::int64_t bytes_of_done_files_ = 0;
  const TextStream* current_ = nullptr;  // the file being read
  std::vector<Piece> round_;
  std::size_t bytes_in_round_ = 0;
};

Manifest Builder::build(const Inventory& inventory) {
  state_.bytes_total = inventory.bytes;
  const bool only = inventory.documents == 1 && options_.val_fraction > 0;
  const ValidationChoice choice(options_, inventory.documents);
  for (const CountedFile& file : inventory.files) {
    if (only && file.documents == 1) {
      add_only_document(file);
    } else {
      add_file(file, choice);
    }
  }
  run_round();
  train_.finish();
  val_.finish();
  manifest_.vocabulary_size = options_.vocabulary_size;
  manifest_.end_of_text = options_.end_of_text;
  for (const Split split : {Split::train, Split::val}) {
    record(split).tokens = writer(split).tokens();
    record(split).shards = writer(split).shards();
  }
  return manifest_;
}

void Builder::add_file(const CountedFile& file, const ValidationChoice& choice) {
  const fs::path& path = file.input.path;
  TextStream stream(path);
  current_ = &stream;
  std::int64_t document = first_document_;
  if (file.input.jsonl) {
    for_each_jsonl_line(reader_of(stream), path, [&](const RawDocument& line) {
      add({std::string(line.bytes), &path, line.line, true, true, choice.split_of(document++)});
    });
  } else {
    add_text(reader_of(stream), path, choice.split_of(document));
    document += file.documents;
  }
  finish_file(file, document - first_document_);
}

// Splits the only document of all inputs at the start of a line.
void Builder::add_only_document(const CountedFile& file) {
  const fs::path& path = file.input.path;
  const auto split_at = [&](std::uint64_t cut, const ReadText& read) {
    if (cut == 0) {
      throw Error("is the only document and has a single line, so it has no tail for the validation split",
                  path.string(), "give more text or --val-fraction 0");
    }
    const ReadText head = [&](std::span<char> into) {
      const std::size_t got = read(into.first(std::min<std::uint64_t>(into.size(), cut)));
      cut -= got;
      return got;
    };
    add_text(head, path, Split::train);
    add_text(read, path, Split::val);
  };
  TextStream stream(path);
  current_ = &stream;
  if (file.input.jsonl) {
    for_each_jsonl_line(reader_of(stream), path, [&](const RawDocument& line) {
      const std::string text = jsonl_text(line, options_.field, path);
      split_at(tail_line(reader_of(text), text.size(), options_.val_fraction), reader_of(text));
    });
  } else {
    TextStream counted(path), searched(path);
    const std::uint64_t size = bytes_of(counted);
    split_at(tail_line(reader_of(searched), size, options_.val_fraction), reader_of(stream));
  }
  finish_file(file, 1);
}

void Builder::add_text(const ReadText& read, const fs::path& path, Split split) {
  bool first = true;
  for_each_part(read, piece_bytes_, [&](std::string_view part, bool last) {
    add({std::string(part), &path, 0, std::exchange(first, false), last, split});
  });
}

void Builder::finish_file(const CountedFile& file, std::int64_t documents) {
  const bool whole = current_->consumed() == static_cast<std::uint64_t>(file.bytes);
  if (!whole || documents != file.documents) {
    throw Error("changed while it was read", file.input.path.string(),
                "build again when nothing writes to it");
  }
  current_ = nullptr;
  bytes_of_done_files_ += file.bytes;
  first_document_ += documents;
}

void Builder::add(Piece piece) {
  bytes_in_round_ += piece.bytes.size();
  round_.push_back(std::move(piece));
  if (bytes_in_round_ >= round_bytes_) run_round();
}

// Encodes the gathered pieces in parallel and writes the results in order.
void Builder::run_round() {
  std::vector<Encoded> results(round_.size());
  const auto count = static_cast<std::int64_t>(round_.size());
#pragma omp parallel for schedule(dynamic) num_threads(threads_)
  for (std::int64_t i = 0; i < count; ++i) {
    results[static_cast<std::size_t>(i)] = encode(round_[static_cast<std::size_t>(i)]);
  }
  for (std::size_t i = 0; i < round_.size(); ++i) write(round_[i], results[i]);
  state_.bytes_done = bytes_of_done_files_ + (current_ ? static_cast<std::int64_t>(current_->consumed()) : 0);
  state_.tokens = train_.tokens() + val_.tokens();
  round_.clear();
  bytes_in_round_ = 0;
  if (progress_) progress_(state_);
}

Encoded Builder::encode(const Piece& piece) const {
  Encoded result;
  try {
    const bool is_line = piece.line > 0;
    const std::string decoded =
        is_line ? jsonl_text({piece.bytes, piece.line}, options_.field, *piece.path) : std::string();
    const std::string& text = is_line ? decoded : piece.bytes;
    result.text_bytes = text.size();
    bool continues = !piece.begins_document;
    const auto take = [&](std::string_view part, bool) {
      encode_part(piece, part, std::exchange(continues, true), result.ids);
    };
    is_line ? for_each_part(text, piece_bytes_, take) : take(text, true);
  } catch (...) {
    result.error = std::current_exception();
  }
  return result;
}

// An error of the encoder also names the document.
void Builder::encode_part(const Piece& piece, std::string_view part, bool continues,
                          std::vector<std::int32_t>& ids) const {
  try {
    encode_(part, continues, ids);
  } catch (const Error& error) {
    const std::string line = piece.line > 0 ? fmt::format(":{}", piece.line) : "";
    throw Error(fmt::format("cannot be encoded: {}: {}", error.where(), error.problem()),
                piece.path->string() + line, error.remedy());
  }
}

void Builder::write(const Piece& piece, const Encoded& encoded) {
  if (encoded.error) std::rethrow_exception(encoded.error);
  if (encoded.text_bytes == 0) return;  // the JSON line held an empty string
  writer(piece.split).append(encoded.ids);
  record(piece.split).bytes += static_cast<std::int64_t>(encoded.text_bytes);
  if (!piece.ends_document) return;
  writer(piece.split).append({&options_.end_of_text, 1});
  ++record(piece.split).documents;
}

void check_options(const BuildOptions& options) {
  if (!(options.val_fraction >= 0 && options.val_fraction < 1)) {
    throw UsageError(fmt::format("cannot be {}", options.val_fraction), "validation fraction",
                     "give a number of at least 0 and less than 1");
  }
  const bool fits = options.vocabulary_size >= 1 &&
                    options.vocabulary_size <= std::numeric_limits<std::int32_t>::max() &&
                    options.end_of_text >= 0 && options.end_of_text < options.vocabulary_size;
  if (!fits) {
    throw Error(fmt::format("end-of-text id {} is outside the vocabulary of {}", options.end_of_text,
                            options.vocabulary_size),
                "tokenizer", "use a tokenizer with an end-of-text token");
  }
}

std::unordered_set<std::string> shards_of(const Manifest& manifest) {
  std::unordered_set<std::string> names(manifest.train.shards.begin(), manifest.train.shards.end());
  names.insert(manifest.val.shards.begin(), manifest.val.shards.end());
  return names;
}

// The files of the build that data.json describes. If data.json cannot be read, only data.json itself.
std::optional<Replaceable> replaceable_data(const BuildOptions& options) {
  if (!options.force) return std::nullopt;
  Replaceable folder{"the data that its data.json describes", {"data.json"}};
  try {
    if (const auto manifest = read_manifest(options.out)) {
      for (const auto& [name, checksum] : manifest->files) folder.files.push_back(name);
      for (const Split split : {Split::train, Split::val}) {
        const auto& shards = manifest->split(split).shards;
        folder.files.insert(folder.files.end(), shards.begin(), shards.end());
      }
    }
  } catch (const Error&) {
  }
  return folder;
}

}  // namespace

Manifest build_shards(const BuildOptions& options, const EncodeFunction& encode,
                      const ProgressFunction& progress) {
  check_options(options);
  recover_folder(options.out);  // an interrupted replacement may have hidden its data.json
  require_replaceable(options.out, replaceable_data(options));
  const Inventory inventory = take_inventory(options);
  AtomicFolder output(options.out, replaceable_data(options));
  Manifest manifest = Builder(options, encode, progress, output.folder()).build(inventory);
  for (const Split split : {Split::train, Split::val}) {
    if (manifest.split(split).tokens == 0 && (split == Split::train || options.val_fraction > 0)) {
      throw Error(fmt::format("the {} split got no text", name_of(split)), options.out.string(),
                  "give more documents or another --val-fraction");
    }
  }
  for (SplitManifest* split : {&manifest.train, &manifest.val}) {
    for (const std::string& shard : split->shards) {
      split->checksums.push_back(checksum_of(output.folder() / shard));
    }
  }
  if (options.before_commit) options.before_commit(output.folder());
  const std::unordered_set<std::string> shards = shards_of(manifest);
  for (const fs::path& entry : list_folder(output.folder())) {
    const std::string name = entry.filename().string();
    if (!shards.contains(name)) manifest.files[name] = checksum_of(entry);
  }
  write_manifest(manifest, output.folder());
  output.commit();
  return manifest;
}

}  // namespace warpwright
