// Documents in files: which files, how many documents, and where a long one can be cut.
//
// A file whose name ends in .jsonl or .ndjson holds one document per line: the string under one key of a JSON
// object, and an error if the line is not UTF-8. Any other file is one document, of any bytes. Empty files
// and blank lines are skipped. A second ending, .gz or .zst, says how the file is compressed.
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
  std::string_view skipped = {};  // if not a file, what it is: "link to a folder"
};

// The input files in order. A folder stands for all files below it, sorted by path: names that begin with a
// dot are left out, and what is not a file (a link to a folder or to nothing, a pipe) is marked as skipped.
// Throws UsageError for a file given twice, under whatever names.
std::vector<InputFile> list_inputs(std::span<const std::filesystem::path> inputs);

// The reason to skip an input: it is not a file or, unless it is JSONL or `binary`, its content
// (decompressed) is not text (data/file_kind.hpp). Nothing if it is to be read.
std::optional<std::string_view> reason_to_skip(const InputFile& input, bool binary);

// One line of a file.
struct RawDocument {
  std::string_view bytes;
  std::int64_t line = 0;  // from 1
};

// Reads text from beginning to end: fills the span while there is more, and returns how much it filled.
using ReadText = std::function<std::size_t(std::span<char> into)>;
ReadText reader_of(TextStream& stream);     // which must outlive the reader
ReadText reader_of(std::string_view text);  // and so must the bytes

// Calls visit with every line that is not blank, in order; the bytes live until it returns. Throws Error,
// naming `path`, for a line of more than 256 MiB.
void for_each_jsonl_line(const ReadText& read, const std::filesystem::path& path,
                         const std::function<void(const RawDocument&)>& visit);
// Calls visit with the text in parts of at most `most` bytes, cut by cut_before(); the bytes live until it
// returns. An empty text has no parts.
void for_each_part(const ReadText& read, std::size_t most,
                   const std::function<void(std::string_view part, bool last)>& visit);

// The string under `field` of the JSON object on a line.
std::string jsonl_text(const RawDocument& document, const std::string& field,
                       const std::filesystem::path& path);

// Returns the offset at which to cut a text so that at most `most` bytes come first: the last boundary from a
// non-space to white space. GPT-2's pre-tokenization never joins text across one, so encoding the two parts
// gives the ids of the whole. Without such a boundary the cut falls between two UTF-8 characters.
std::size_t cut_before(std::string_view text, std::size_t most);

// Of a text of `size` bytes, the start of the first line that leaves at most `tail_fraction` of it, or else
// of the last line; 0 if there is only one line.
std::uint64_t tail_line(const ReadText& read, std::uint64_t size, double tail_fraction);

}  // namespace warpwright
