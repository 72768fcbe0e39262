// Finds the documents in input files, and the places at which a long document can be cut.
//
// A file whose name ends in .jsonl or .ndjson holds one document per line: the string under one key of a JSON
// object. Such a line must be UTF-8. Any other file is one document of any bytes. Empty files and blank lines
// are skipped. A second extension, .gz or .zst, names the file's compression.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "data/text_stream.hpp"

namespace warpwright {

struct InputFile {
  std::filesystem::path path;
  bool jsonl = false;
  std::string_view skipped = {};  // why it is not read, or empty: "link to a folder"
};

// Lists the input files in order. A folder means all files below it, sorted by path. Names that begin with a
// dot are ignored. Entries that are not files (a link to a folder or to nothing, a pipe) are marked as
// skipped, and so are links to a file that the same folder lists under another name. Throws UsageError if two
// inputs are, or have, the same file, even under different names.
std::vector<InputFile> list_inputs(std::span<const std::filesystem::path> inputs);

// The reason to skip an input: it is not a file, or its decompressed content is not text
// (data/file_kind.hpp). The content of JSONL files is not checked, nor any content if `binary` is set. Empty
// if the input is to be read.
std::optional<std::string_view> reason_to_skip(const InputFile& input, bool binary);

// One line of a file.
struct RawDocument {
  std::string_view bytes;
  std::int64_t line = 0;  // from 1
};

// Reads text from beginning to end. Fills the span as far as there is text, and returns the number of bytes
// filled.
using ReadText = std::function<std::size_t(std::span<char> into)>;
ReadText reader_of(TextStream& stream);     // the stream must outlive the reader
ReadText reader_of(std::string_view text);  // the bytes must outlive the reader

// Calls visit with every line that is not blank, in order. The bytes are valid until visit returns. Throws an
// Error that names `path` for a line of more than 256 MiB.
void for_each_jsonl_line(const ReadText& read, const std::filesystem::path& path,
                         const std::function<void(const RawDocument&)>& visit);
// Calls visit with the text in parts of at most `most` bytes, cut by cut_before(). The bytes are valid until
// visit returns. An empty text has no parts.
using VisitPart = std::function<void(std::string_view part, bool last)>;
void for_each_part(const ReadText& read, std::size_t most, const VisitPart& visit);
void for_each_part(std::string_view text, std::size_t most, const VisitPart& visit);

// The string under `field` of the JSON object on a line.
std::string jsonl_text(const RawDocument& document, const std::string& field,
                       const std::filesystem::path& path);

// Returns the offset at which to cut a text so that at most `most` bytes come first. It is the last place at
// which an ASCII character other than white space is followed by a space. No pre-tokenization joins text
// across it, so encoding the two parts gives the ids of the whole. If there is none, the cut is at the last
// boundary from a non-space to white space, which GPT-2's tokenizer does not join either. Without one, the
// cut falls between two UTF-8 characters.
std::size_t cut_before(std::string_view text, std::size_t most);

// In a text of `size` bytes, the start of the first line that leaves at most `tail_fraction` of the text. If
// no line does, the start of the last line; 0 if there is only one line.
std::uint64_t tail_line(const ReadText& read, std::uint64_t size, double tail_fraction);

}  // namespace warpwright
