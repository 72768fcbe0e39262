#include "data/file_kind.hpp"

#include <cstdint>

namespace warpwright {
namespace {

struct Signature {
  std::string_view bytes;
  std::string_view kind;
  std::size_t offset = 0;
};

using namespace std::string_view_literals;
constexpr Signature kSignatures[] = {
    {"%PDF-"sv, "PDF document"},
    {"\x7f"
     "ELF"sv,
     "ELF executable"},
    {"MZ"sv, "Windows executable"},
    {"\xca\xfe\xba\xbe"sv, "Java class or Mach-O executable"},
    {"\xcf\xfa\xed\xfe"sv, "Mach-O executable"},
    {"\0asm"sv, "WebAssembly module"},
    {"PK\x03\x04"sv, "ZIP archive"},
    {"PK\x05\x06"sv, "ZIP archive"},
    {"\x1f\x8b"sv, "gzip archive"},
    {"\x28\xb5\x2f\xfd"sv, "zstd archive"},
    {"BZh"sv, "bzip2 archive"},
    {"\xfd"
     "7zXZ\0"sv,
     "xz archive"},
    {"7z\xbc\xaf\x27\x1c"sv, "7z archive"},
    {"Rar!\x1a"sv, "RAR archive"},
    {"ustar"sv, "tar archive", 257},
    {"PAR1"sv, "Parquet table"},
    {"ARROW1"sv, "Arrow table"},
    {"Obj\x01"sv, "Avro table"},
    {"SQLite format 3\0"sv, "SQLite database"},
    {"\x89HDF\r\n"sv, "HDF5 file"},
    {"\x93NUMPY"sv, "NumPy array"},
    {"\x80\x02"sv, "Python pickle"},
    {"\x80\x04"sv, "Python pickle"},
    {"\x89PNG"sv, "PNG image"},
    {"\xff\xd8\xff"sv, "JPEG image"},
    {"GIF8"sv, "GIF image"},
    {"BM"sv, "BMP image"},
    {"II*\0"sv, "TIFF image"},
    {"MM\0*"sv, "TIFF image"},
    {"RIFF"sv, "RIFF sound, film or image"},
    {"OggS"sv, "Ogg sound"},
    {"fLaC"sv, "FLAC sound"},
    {"ID3"sv, "MP3 sound"},
    {"ftyp"sv, "MP4 film", 4},
    {"\xff\xfe"sv, "UTF-16 text"},
    {"\xfe\xff"sv, "UTF-16 text"},
};

bool is_odd_control(char c) {
  const auto byte = static_cast<unsigned char>(c);
  return (byte < 0x20 && !(byte >= '\b' && byte <= '\r') && byte != 0x1b) || byte == 0x7f;
}

// Size of the UTF-8 character at the start, 0 if there is none. If the text ends within the character, the
// size of the rest.
std::size_t character_bytes(std::string_view text) {
  const auto at = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned char first = at(0);
  if (first < 0x80) return 1;
  const std::size_t size = first >= 0xf0 ? 4 : first >= 0xe0 ? 3 : 2;
  if (first < 0xc2 || first > 0xf4) return 0;
  std::uint32_t code = first & (0x7fu >> size);
  for (std::size_t i = 1; i < size; ++i) {
    if (i == text.size()) return text.size();
    if ((at(i) & 0xc0u) != 0x80u) return 0;
    code = (code << 6) | (at(i) & 0x3fu);
  }
  const bool overlong = (size == 3 && code < 0x800) || (size == 4 && code < 0x10000);
  const bool outside = code > 0x10ffff || (code >= 0xd800 && code < 0xe000);
  return overlong || outside ? 0 : size;
}

bool is_text(std::string_view sample) {
  if (sample.starts_with("%PDF-") || sample.find('\0') != std::string_view::npos) return false;
  std::size_t odd = 0;
  for (std::string_view rest = sample; !rest.empty();) {
    const std::size_t size = character_bytes(rest);
    odd += size == 0 || is_odd_control(rest.front());
    rest.remove_prefix(size == 0 ? 1 : size);
  }
  return 10 * odd <= 3 * sample.size();
}

}  // namespace

std::optional<std::string_view> known_format(std::string_view sample) {
  if (is_text(sample)) return std::nullopt;
  for (const Signature& signature : kSignatures) {
    if (sample.size() > signature.offset && sample.substr(signature.offset).starts_with(signature.bytes)) {
      return signature.kind;
    }
  }
  return std::nullopt;
}

std::optional<std::string_view> kind_if_not_text(std::string_view sample) {
  if (is_text(sample)) return std::nullopt;
  return known_format(sample).value_or("unknown data");
}

}  // namespace warpwright
