#include "data/text_stream.hpp"

#include <fmt/format.h>
#include <zlib.h>
#include <zstd.h>

#include <algorithm>
#include <limits>
#include <vector>

#include "core/error.hpp"
#include "runtime/file.hpp"

namespace warpwright {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kChunkBytes = std::size_t{1} << 17;
constexpr const char* kRemedy = "copy or compress the file again";

}  // namespace

class TextStream::Source {
 public:
  explicit Source(const fs::path& path) : reader_(regular(path)) {}

  std::size_t read(std::span<char> into) {
    const std::size_t got = reader_.read(into);
    consumed_ += got;
    return got;
  }
  std::uint64_t consumed() const { return consumed_; }
  std::string where() const { return reader_.path().string(); }

 private:
  static const fs::path& regular(const fs::path& path) {
    std::error_code error;
    if (!path_exists(path) || fs::is_regular_file(path, error)) return path;
    throw Error("is not a regular file", path.string(), "name a file or a folder");
  }

  FileReader reader_;
  std::uint64_t consumed_ = 0;
};

// Decompresses in steps. A unit is a gzip member or a zstd frame.
class TextStream::Codec {
 public:
  virtual ~Codec() = default;

  std::size_t read(Source& source, std::span<char> into) {
    std::size_t done = 0;
    while (done < into.size()) {
      if (in_.empty() && !ended_) fill(source);
      if (in_.empty() && between_units_) break;
      const std::size_t before = in_.size();
      const std::size_t out = step(in_, into.subspan(done), source.where());
      done += out;
      if (ended_ && out == 0 && in_.size() == before && !between_units_) {
        throw Error(fmt::format("ends in the middle of its {} data", name()), source.where(), kRemedy);
      }
    }
    return done;
  }

 protected:
  // Takes bytes from the front of `in`, which may be empty, and returns the number of bytes written to `out`.
  // Sets between_units_ if a unit is complete and the next one has not begun.
  virtual std::size_t step(std::span<const char>& in, std::span<char> out, const std::string& where) = 0;
  virtual const char* name() const = 0;

  [[noreturn]] void fail(const std::string& reason, const std::string& where) const {
    throw Error(fmt::format("its {} data is damaged: {}", name(), reason), where, kRemedy);
  }

  bool between_units_ = false;  // stays false in an empty file, which has no unit

 private:
  void fill(Source& source) {
    const std::size_t got = source.read(chunk_);
    in_ = std::span<const char>(chunk_).first(got);
    ended_ = got == 0;
  }

  std::vector<char> chunk_ = std::vector<char>(kChunkBytes);
  std::span<const char> in_;
  bool ended_ = false;
};

namespace {

class Gzip final : public TextStream::Codec {
 public:
  Gzip() {
    constexpr int kGzipAlone = 16;
    if (::inflateInit2(&stream_, MAX_WBITS + kGzipAlone) != Z_OK) {
      throw Error("cannot be started", "zlib", "free some memory");
    }
  }
  ~Gzip() override { ::inflateEnd(&stream_); }
  Gzip(const Gzip&) = delete;

 private:
  std::size_t step(std::span<const char>& in, std::span<char> out, const std::string& where) override {
    if (between_units_) {
      // Archives on tape are padded with zeros after the last member.
      if (zeros_ || in.front() == 0) return skip_zeros(in, where);
      ::inflateReset(&stream_);
      between_units_ = false;
    }
    const std::size_t space = std::min<std::size_t>(out.size(), std::numeric_limits<uInt>::max());
    stream_.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(in.data()));
    stream_.avail_in = static_cast<uInt>(in.size());
    stream_.next_out = reinterpret_cast<Bytef*>(out.data());
    stream_.avail_out = static_cast<uInt>(space);
    const int code = ::inflate(&stream_, Z_NO_FLUSH);
    in = in.last(stream_.avail_in);
    between_units_ = code == Z_STREAM_END;
    if (code != Z_OK && code != Z_STREAM_END && code != Z_BUF_ERROR) {
      fail(code == Z_MEM_ERROR ? "there is no memory"
           : stream_.msg       ? stream_.msg
                               : "it cannot be read",
           where);
    }
    return space - stream_.avail_out;
  }

  std::size_t skip_zeros(std::span<const char>& in, const std::string& where) {
    zeros_ = true;
    if (std::any_of(in.begin(), in.end(), [](char c) { return c != 0; })) {
      fail("something else follows it", where);
    }
    in = {};
    return 0;
  }

  const char* name() const override { return "gzip"; }

  z_stream stream_{};
  bool zeros_ = false;
};

class Zstd final : public TextStream::Codec {
 public:
  Zstd() : stream_(::ZSTD_createDCtx()) {
    if (!stream_) throw Error("cannot be started", "libzstd", "free some memory");
  }
  ~Zstd() override { ::ZSTD_freeDCtx(stream_); }
  Zstd(const Zstd&) = delete;

 private:
  std::size_t step(std::span<const char>& in, std::span<char> out, const std::string& where) override {
    ZSTD_inBuffer from{in.data(), in.size(), 0};
    ZSTD_outBuffer to{out.data(), out.size(), 0};
    const std::size_t code = ::ZSTD_decompressStream(stream_, &to, &from);
    if (::ZSTD_isError(code)) fail(::ZSTD_getErrorName(code), where);
    if (from.pos > 0 || to.pos > 0) between_units_ = code == 0;
    in = in.subspan(from.pos);
    return to.pos;
  }
  const char* name() const override { return "zstd"; }

  ZSTD_DCtx* stream_;
};

}  // namespace

fs::path without_compression(const fs::path& path) {
  return path.extension() == ".gz" || path.extension() == ".zst" ? path.parent_path() / path.stem() : path;
}

TextStream::TextStream(const fs::path& path) : source_(std::make_unique<Source>(path)) {
  if (path.extension() == ".gz") codec_ = std::make_unique<Gzip>();
  if (path.extension() == ".zst") codec_ = std::make_unique<Zstd>();
}

TextStream::TextStream(TextStream&&) noexcept = default;
TextStream::~TextStream() = default;

std::size_t TextStream::read(std::span<char> into) {
  if (codec_) return codec_->read(*source_, into);
  std::size_t done = 0;
  while (done < into.size()) {
    const std::size_t got = source_->read(into.subspan(done));
    if (got == 0) break;
    done += got;
  }
  return done;
}

std::uint64_t TextStream::consumed() const {
  return source_->consumed();
}

}  // namespace warpwright
