// Documents in files: which files, how many documents, and where a long one can be cut.
//
// A file whose name ends in .jsonl or .ndjson holds a document a line, the string under one key of a JSON
// object; JSON is UTF-8, so a line that is not is an error. Any other file is one document of any bytes.
// Empty files and blank lines are no documents.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/file.hpp"

namespace warpwright {

struct InputFile {
  std::filesystem::path path;
  bool jsonl = false;
};

// The files of the inputs in order; a folder gives its files, subfolders included, sorted by path. Names that
// begin with a dot are skipped inside folders.
std::vector<InputFile> list_inputs(std::span<const std::filesystem::path> inputs);

// A document as it stands in its file.
struct RawDocument {
  std::string_view bytes;  // the file's whole content, or the line
  std::int64_t line = 0;   // from 1; 0 for a whole file
};

// Calls visit with every document of the file, in order; the bytes are the mapping's.
void for_each_document(const MappedFile& file, bool jsonl,
                       const std::function<void(const RawDocument&)>& visit);

// The string under `field` of the JSON object on a line.
std::string jsonl_text(const RawDocument& document, const std::string& field,
                       const std::filesystem::path& path);

// Where to cut a text of which only the first `most` bytes are wanted now: the last place within them that
// stands before white space and after something else, which no pre-tokenization of GPT-2's kind joins, so
// that the ids of both parts are those of the whole. A stretch without such a place is cut before a UTF-8
// character.
std::size_t cut_before(std::string_view text, std::size_t most);

// The start of the first line that leaves at most `tail_fraction` of the text behind it, or else of the last
// line; 0 where there is only one line.
std::size_t tail_line(std::string_view text, double tail_fraction);

}  // namespace warpwright
