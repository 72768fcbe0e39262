// Calls every function of the C ABI with random arguments. Numbers are arbitrary. Pointers are valid, NULL or
// misaligned. Handles may also be destroyed or of another type. No call may end the process, and each refusal
// must have a message. usage: abuse_test HEADER [ITERATIONS [SEED [FUNCTION]]]
//
// A valid pointer has as much memory as the arguments claim, since no library can check that. So sizes that
// could be real are reduced to the memory that exists. Sizes that no memory could hold must be refused.
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <limits>
#include <map>
#include <regex>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "tests/tiny_bert.hpp"
#include "tests/tiny_gpt2.hpp"
#include "warpwright/warpwright.h"

namespace {

namespace fs = std::filesystem;

constexpr std::int64_t kElements = 8192;            // in a tensor, at most
constexpr std::size_t kSlotBytes = (1 << 20) + 64;  // (8192, 32) floats, plus some bytes for alignment
constexpr int kSlots = 16;
constexpr std::int64_t kLargestMemory = std::int64_t{1} << 47;  // in elements

class Random {
 public:
  explicit Random(std::uint64_t seed) : state_(seed) {}
  std::uint64_t next() {  // SplitMix64
    std::uint64_t z = state_ += 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
  }
  std::uint64_t below(std::uint64_t n) { return next() % n; }
  bool chance(int percent) { return below(100) < static_cast<std::uint64_t>(percent); }
  template <class T>
  const T& of(const std::vector<T>& choices) {
    return choices[below(choices.size())];
  }
  std::int64_t number() {
    switch (below(6)) {
      case 0:
        return static_cast<std::int64_t>(below(40));
      case 1:
        return -static_cast<std::int64_t>(below(4));
      case 2: {
        const std::uint64_t power = std::uint64_t{1} << below(64);
        return static_cast<std::int64_t>(power + below(3) - 1);
      }
      case 3:
        return of(std::vector<std::int64_t>{INT32_MAX, INT32_MIN, INT64_MAX, INT64_MIN, 100000, UINT32_MAX});
      case 4:
        return static_cast<std::int32_t>(next());
      default:
        return static_cast<std::int64_t>(next());
    }
  }
  std::int32_t number32() { return static_cast<std::int32_t>(number()); }

 private:
  std::uint64_t state_;
};

// A child's progress. The parent can read it even after the child has died.
struct Progress {
  std::int64_t iteration;
  std::int64_t refused, accepted;
  bool done;
};

struct World {
  Random random{0};
  Progress* progress = nullptr;
  std::string folder, config;
  unsigned char* slots = nullptr;
  warpwright_context* context = nullptr;
  warpwright_encoder* encoder = nullptr;
  warpwright_decoder* decoder = nullptr;
  const warpwright_context* dead_context = nullptr;
  const warpwright_encoder* dead_encoder = nullptr;
  const warpwright_decoder* dead_decoder = nullptr;
  std::uint64_t marker = 0;
};
World w;

[[noreturn]] void fail(const std::string& what) {
  std::fprintf(stderr, "iteration %lld: %s (last error: %s)\n", static_cast<long long>(w.progress->iteration),
               what.c_str(), warpwright_last_error());
  std::_Exit(1);
}

// ---- Arguments -----------------------------------------------------------------------------------

unsigned char* slot(int index) {
  return w.slots + static_cast<std::size_t>(index) * kSlotBytes;
}

// A valid pointer (perhaps another argument's), NULL, or a misaligned one.
void* pointer(int own) {
  Random& r = w.random;
  switch (r.below(10)) {
    case 0:
      return nullptr;
    case 1:
      return slot(own) + 1 + 2 * r.below(16);
    case 2:
      return slot(static_cast<int>(r.below(kSlots)));
    case 3:
      return slot(own) + (std::size_t{1} << r.below(6));
    default:
      return slot(own);
  }
}

template <class T>
T* handle(T* live, const T* dead, const void* other) {
  Random& r = w.random;
  if (!r.chance(8)) return live;
  switch (r.below(5)) {
    case 0:
      return nullptr;
    case 1:
      return reinterpret_cast<T*>(reinterpret_cast<std::uintptr_t>(live) + 1 + r.below(7));
    case 2:
      return const_cast<T*>(dead);
    case 3:
      return static_cast<T*>(const_cast<void*>(other));
    default:
      return reinterpret_cast<T*>(static_cast<std::uintptr_t>(r.next()));
  }
}
warpwright_context* context() {
  return handle<warpwright_context>(w.context, w.dead_context, w.encoder);
}
warpwright_encoder* encoder() {
  return handle<warpwright_encoder>(w.encoder, w.dead_encoder, w.context);
}
warpwright_decoder* decoder() {
  return handle<warpwright_decoder>(w.decoder, w.dead_decoder, w.encoder);
}

// A structure in memory that is larger than any size that the library reads.
template <class T>
class Structure {
 public:
  Structure(const T& value, bool size_is_valid) {
    Random& r = w.random;
    for (auto& byte : memory_) byte = r.chance(80) ? 0 : static_cast<unsigned char>(r.next());
    if (r.chance(80)) std::memset(memory_, 0, sizeof memory_);
    place_ = size_is_valid && r.chance(95) ? 0 : r.below(8);
    is_null_ = r.chance(2);
    std::memcpy(memory_ + place_, &value, sizeof value);
  }
  T* get() { return is_null_ ? nullptr : reinterpret_cast<T*>(memory_ + place_); }

 private:
  alignas(64) unsigned char memory_[4096 + 64];
  std::size_t place_ = 0;
  bool is_null_ = false;
};
std::size_t size_of_structure(std::size_t size) {
  if (w.random.chance(90)) return size;
  return w.random.chance(50) ? size + 8 * w.random.below(8) : static_cast<std::size_t>(w.random.number());
}

// The number of fields to replace in a call that would otherwise succeed.
int mutations() {
  return w.random.of(std::vector<int>{0, 1, 1, 1, 2, 2, 3, 100});
}

// References to fields, each of which may be replaced.
class Fields {
 public:
  void add(std::int64_t& field) {
    changes_.push_back([&field] { field = w.random.number(); });
  }
  void add(std::int32_t& field) {
    changes_.push_back([&field] { field = w.random.number32(); });
  }
  void add(std::size_t& field) {
    changes_.push_back([&field] { field = static_cast<std::size_t>(w.random.number()); });
  }
  void add(double& field) {
    changes_.push_back([&field] {
      const std::uint64_t bits = w.random.next();
      std::memcpy(&field, &bits, sizeof field);
      if (w.random.chance(30)) field = w.random.of(std::vector<double>{0, -1, 1e-300, 1e300, NAN, INFINITY});
    });
  }
  template <class T>
  void add(T*& field) {
    const int own = next_slot_++;
    if (field) field = reinterpret_cast<T*>(slot(own));
    changes_.push_back([&field, own] { field = static_cast<T*>(pointer(own)); });
  }
  void mutate() {
    for (int i = mutations(); i > 0; --i) w.random.of(changes_)();
  }

 private:
  std::vector<std::function<void()>> changes_;
  int next_slot_ = 0;
};

// Reduces sizes that could be real to the memory that exists.
void clamp_matrix(std::int64_t& rows, std::int64_t& columns) {
  if (rows < 1 || columns < 1 || rows > kLargestMemory / columns || rows * columns <= kElements) return;
  rows = rows % 64 + 1;
  columns = columns % 64 + 1;
}

void check_status(warpwright_status status) {
  if (status == WARPWRIGHT_OK) {
    ++w.progress->accepted;
    return;
  }
  ++w.progress->refused;
  if (status < WARPWRIGHT_INVALID_ARGUMENT || status > WARPWRIGHT_FAILED)
    fail("status " + std::to_string(status));
  const std::string message = warpwright_last_error();
  std::ostringstream marker;
  marker << "0x" << std::hex << w.marker;
  if (message.empty() || message.find('\n') != std::string::npos) fail("no message of one line");
  if (message.find(marker.str() + ",") != std::string::npos) fail("the call left no message");
}

// Leaves a message that the next call must replace if it refuses.
void mark() {
  w.marker = 0xabad000000000000u + static_cast<std::uint64_t>(w.progress->iteration) * 8;
  warpwright_context_destroy(reinterpret_cast<warpwright_context*>(w.marker));
}

// ---- Functions -----------------------------------------------------------------------------------

void log_line(void* data, const char* line) {
  if (!line || !*line) fail("an empty log line");
  auto* context = static_cast<warpwright_context**>(data);
  if (*context && warpwright_context_set_threads(*context, 1) == WARPWRIGHT_OK) fail("a call within a call");
}

void context_create() {
  static warpwright_context* made;
  made = nullptr;
  warpwright_context_options o{};
  o.size = size_of_structure(sizeof o);
  o.threads = w.random.of(std::vector<std::int32_t>{0, 1, 2, 3});
  Fields fields;
  fields.add(o.device);
  fields.add(o.device_index);
  fields.add(o.threads);
  fields.add(o.reserved);
  fields.mutate();
  if (o.threads > 8 && o.threads <= 4096) o.threads = 8;  // thousands of threads would take too long
  if (w.random.chance(30)) {
    o.log = log_line;
    o.log_data = &made;
  }
  Structure options(o, true);
  alignas(16) unsigned char places[32] = {};
  auto** place = reinterpret_cast<warpwright_context**>(places + (w.random.chance(95) ? 0 : 1));
  if (w.random.chance(3)) place = nullptr;
  const warpwright_status status = warpwright_context_create(options.get(), place);
  check_status(status);
  if (status != WARPWRIGHT_OK) return;
  std::memcpy(&made, places, sizeof made);
  float x[4] = {1, 2, 3, 4};
  warpwright_norm_forward_args a{};
  a.size = sizeof a, a.rows = 1, a.columns = 4, a.x = x, a.out = x;
  a.x_dtype = a.parameter_dtype = a.out_dtype = WARPWRIGHT_F32;
  if (o.device == WARPWRIGHT_DEVICE_CPU && warpwright_rmsnorm_forward(made, &a) != WARPWRIGHT_OK)
    fail("a context that runs nothing");
  warpwright_context_destroy(made);
}

warpwright_norm_forward_args forward_args(bool centered, bool clamp) {
  Random& r = w.random;
  warpwright_norm_forward_args a{};
  a.rows = static_cast<std::int64_t>(r.below(20));
  a.columns = 1 + static_cast<std::int64_t>(r.below(70));
  a.eps = 1e-5;
  a.x_dtype = a.parameter_dtype = a.out_dtype = static_cast<warpwright_dtype>(r.below(4));
  unsigned char present = 0;
  a.x = &present, a.out = &present, a.workspace = &present, a.workspace_bytes = 1 << 19;
  if (r.chance(50)) a.weight = &present, a.bias = centered && r.chance(50) ? &present : nullptr;
  if (r.chance(50)) a.rstd = &present, a.mean = centered ? &present : nullptr;
  if (r.chance(30)) {
    a.kept_columns = reinterpret_cast<std::int32_t*>(&present);
    a.kept_count = static_cast<std::int64_t>(r.below(static_cast<std::uint64_t>(a.columns)));
    if (a.kept_count > 0) a.kept = &present;
  }
  Fields f;
  f.add(a.x), f.add(a.weight), f.add(a.bias), f.add(a.out), f.add(a.mean), f.add(a.rstd);
  f.add(a.kept_columns), f.add(a.kept), f.add(a.workspace), f.add(a.workspace_bytes);
  f.add(a.rows), f.add(a.columns), f.add(a.kept_count), f.add(a.eps);
  f.add(a.x_dtype), f.add(a.parameter_dtype), f.add(a.out_dtype), f.add(a.reserved);
  f.mutate();
  if (clamp) clamp_matrix(a.rows, a.columns);
  a.workspace_bytes = std::min<std::size_t>(a.workspace_bytes, kSlotBytes - 64);
  a.size = size_of_structure(sizeof a);
  return a;
}

warpwright_padding_args padding_args() {
  Random& r = w.random;
  warpwright_padding_args a{};
  a.sequences = static_cast<std::int64_t>(r.below(9));
  a.length = static_cast<std::int64_t>(r.below(20));
  a.columns = 1 + static_cast<std::int64_t>(r.below(16));
  a.rows = static_cast<std::int64_t>(r.below(static_cast<std::uint64_t>(a.sequences * a.length) + 1));
  a.mask_dtype = static_cast<warpwright_dtype>(r.below(7)),
  a.dtype = static_cast<warpwright_dtype>(r.below(4));
  unsigned char present = 0;
  a.mask = a.padded = a.packed = &present;
  a.cu_seqlens = a.indices = reinterpret_cast<std::int32_t*>(&present);
  a.odd = reinterpret_cast<std::int64_t*>(&present);
  Fields f;
  f.add(a.mask), f.add(a.cu_seqlens), f.add(a.indices), f.add(a.odd), f.add(a.padded), f.add(a.packed);
  f.add(a.sequences), f.add(a.length), f.add(a.columns), f.add(a.rows), f.add(a.mask_dtype), f.add(a.dtype);
  f.mutate();
  if (a.length > kElements) a.length = kElements;
  if (a.sequences > kElements) a.sequences = kElements;
  clamp_matrix(a.sequences, a.length);
  if (a.columns > 16) a.columns = 16;
  const std::int64_t places = std::max<std::int64_t>(a.sequences, 0) * std::max<std::int64_t>(a.length, 0);
  if (a.rows > places && a.rows <= kLargestMemory) a.rows = places;
  // Offsets and indices as padding_lengths leaves them.
  auto* bounds = reinterpret_cast<std::int32_t*>(slot(1));
  auto* indices = reinterpret_cast<std::int32_t*>(slot(2));
  for (std::int64_t i = 0; i <= kElements; ++i) bounds[i] = 0;
  for (std::int64_t i = 0; i < kElements; ++i) indices[i] = -1;
  a.size = size_of_structure(sizeof a);
  return a;
}

warpwright_norm_backward_args backward_args(bool centered, bool clamp) {
  Random& r = w.random;
  warpwright_norm_backward_args a{};
  a.rows = static_cast<std::int64_t>(r.below(20));
  a.columns = 1 + static_cast<std::int64_t>(r.below(70));
  a.x_dtype = a.parameter_dtype = a.out_dtype = a.gradient_dtype = static_cast<warpwright_dtype>(r.below(4));
  unsigned char present = 0;
  a.dout = &present, a.dx = &present, a.rstd = &present, a.workspace = &present, a.workspace_bytes = 1 << 19;
  const bool from_out = r.chance(40);
  (from_out ? a.out : a.x) = &present;
  if (centered && !from_out) a.mean = &present;
  if (r.chance(50)) {
    a.weight = &present, a.dweight = &present;
    if (centered) a.dbias = &present, a.bias = from_out ? &present : nullptr;
  }
  if (from_out && r.chance(40)) {
    a.kept_columns = reinterpret_cast<std::int32_t*>(&present);
    a.kept_count = static_cast<std::int64_t>(r.below(3));
    if (a.kept_count > 0) a.kept = &present, a.mean = centered ? &present : nullptr;
  }
  Fields f;
  f.add(a.dout), f.add(a.x), f.add(a.out), f.add(a.weight), f.add(a.bias), f.add(a.mean), f.add(a.rstd);
  f.add(a.dsum), f.add(a.kept_columns), f.add(a.kept), f.add(a.dx), f.add(a.dweight), f.add(a.dbias);
  f.add(a.workspace), f.add(a.workspace_bytes), f.add(a.rows), f.add(a.columns), f.add(a.kept_count);
  f.add(a.x_dtype), f.add(a.parameter_dtype), f.add(a.out_dtype), f.add(a.gradient_dtype), f.add(a.flags);
  f.add(a.reserved);
  f.mutate();
  if (clamp) clamp_matrix(a.rows, a.columns);
  a.workspace_bytes = std::min<std::size_t>(a.workspace_bytes, kSlotBytes - 64);
  if (a.kept_columns == reinterpret_cast<std::int32_t*>(slot(8)) && r.chance(50)) {
    std::int32_t* columns = reinterpret_cast<std::int32_t*>(slot(8));
    columns[0] = 2, columns[1] = 0, columns[2] = r.chance(50) ? -1 : 5;
  }
  a.size = size_of_structure(sizeof a);
  return a;
}

warpwright_residual_norm_forward_args residual_args(bool clamp) {
  Random& r = w.random;
  warpwright_residual_norm_forward_args a{};
  a.rows = static_cast<std::int64_t>(r.below(20));
  a.columns = 1 + static_cast<std::int64_t>(r.below(70));
  a.eps = 1e-5;
  a.dtype = static_cast<warpwright_dtype>(r.below(4));
  a.rms = r.chance(50);
  unsigned char present = 0;
  a.x = a.residual = a.weight = &present;
  a.sum = a.out = a.workspace = &present;
  a.workspace_bytes = 1 << 19;
  if (!a.rms && r.chance(50)) a.bias = &present;
  if (r.chance(50)) a.x_bias = &present;
  Fields f;
  f.add(a.x), f.add(a.x_bias), f.add(a.residual), f.add(a.weight), f.add(a.bias), f.add(a.sum), f.add(a.out);
  f.add(a.mean), f.add(a.rstd), f.add(a.kept_columns), f.add(a.kept), f.add(a.workspace);
  f.add(a.workspace_bytes), f.add(a.rows), f.add(a.columns), f.add(a.kept_count), f.add(a.eps),
      f.add(a.dtype);
  f.mutate();
  if (clamp) clamp_matrix(a.rows, a.columns);
  a.workspace_bytes = std::min<std::size_t>(a.workspace_bytes, kSlotBytes - 64);
  a.size = size_of_structure(sizeof a);
  return a;
}

template <class Args, class F>
void run(const Args& args, F function) {
  Structure structure(args, true);
  check_status(function(context(), structure.get()));
}
template <class Args, class F>
void ask(const Args& args, F function) {
  Structure structure(args, true);
  alignas(16) unsigned char place[32];
  auto* bytes = reinterpret_cast<std::size_t*>(place + (w.random.chance(95) ? 0 : 1));
  check_status(function(context(), structure.get(), w.random.chance(3) ? nullptr : bytes));
}

std::vector<const char*> strings() {
  static const std::string folder = w.folder, cross = w.folder + "/cross", config = w.config,
                           cache = w.folder + "/cache", text = w.folder + "/vocab.txt", length(100000, 'x'),
                           nest(100000, '['), bytes = w.folder + "/\xff\xc3\x28\x1b[31m";
  return {nullptr,
          folder.c_str(),
          cross.c_str(),
          config.c_str(),
          cache.c_str(),
          text.c_str(),
          "",
          "/nowhere",
          "query",
          length.c_str(),
          nest.c_str(),
          bytes.c_str(),
          "{}",
          "the cat sat",
          "\xed\xa0\x80 \xff"};
}

void encoder_create() {
  Random& r = w.random;
  static const std::string cross = w.folder + "/cross", cache = w.folder + "/cache";
  warpwright_encoder_options o{};
  o.dtype = WARPWRIGHT_F32;
  o.max_batch_tokens = 256;
  const std::vector<const char*> all = strings();
  std::vector<std::unique_ptr<warpwright_tensor>> unused;
  alignas(16) static unsigned char memory[8 * sizeof(warpwright_tensor) + 16];
  warpwright_tensor tensors[4] = {};
  for (warpwright_tensor& t : tensors) {
    t = {r.chance(80) ? "embeddings.word_embeddings.weight" : r.of(all), slot(0), 18, 32, 2, WARPWRIGHT_F32};
    Fields f;
    f.add(t.data), f.add(t.rows), f.add(t.columns), f.add(t.rank), f.add(t.dtype);
    if (r.chance(50)) f.mutate();
    clamp_matrix(t.rows, t.columns);
    if (t.columns > kElements && t.columns < kLargestMemory) t.columns = kElements;  // for rank 1
  }
  std::memcpy(memory, tensors, sizeof tensors);
  if (r.chance(60)) {
    o.folder = r.chance(50) ? w.folder.c_str() : cross.c_str();
  } else {
    o.config = w.config.c_str();
    o.tensors = reinterpret_cast<const warpwright_tensor*>(memory + (r.chance(90) ? 0 : r.below(8)));
    o.tensor_count = static_cast<std::int64_t>(r.below(5));
  }
  Fields f;
  f.add(o.max_batch_tokens), f.add(o.max_batch_sequences), f.add(o.max_length), f.add(o.dtype),
      f.add(o.pooling);
  f.add(o.normalization), f.add(o.batch_invariant), f.add(o.refuse_long), f.add(o.plain_text), f.add(o.tf32);
  f.add(o.reserved);
  f.mutate();
  if (r.chance(10)) o.folder = r.of(all);
  if (r.chance(10)) o.config = r.of(all);
  if (r.chance(10)) o.weights_cache = r.chance(50) ? cache.c_str() : r.of(all);
  if (r.chance(5)) o.tensor_count = r.number();
  if (o.tensors && o.tensor_count > 4 && o.tensor_count < kLargestMemory) o.tensor_count = 4;
  o.size = size_of_structure(sizeof o);
  Structure options(o, true);
  alignas(16) unsigned char places[32] = {};
  auto** place = reinterpret_cast<warpwright_encoder**>(places + (r.chance(95) ? 0 : 1));
  if (r.chance(3)) place = nullptr;
  const warpwright_status status = warpwright_encoder_create(context(), options.get(), place);
  check_status(status);
  warpwright_encoder* made = nullptr;
  std::memcpy(&made, places, sizeof made);
  if (status == WARPWRIGHT_OK) warpwright_encoder_destroy(made);
}

void encoder_get_info() {
  warpwright_encoder_info info{};
  info.size = size_of_structure(sizeof info);
  Structure structure(info, true);
  check_status(warpwright_encoder_get_info(encoder(), structure.get()));
}

void encoder_get_prompt() {
  alignas(16) unsigned char places[64];
  const auto place = [&](std::size_t at) {
    auto** p = reinterpret_cast<const char**>(places + at + (w.random.chance(95) ? 0 : 3));
    return w.random.chance(3) ? nullptr : p;
  };
  const std::int64_t index = w.random.chance(60) ? 0 : w.random.number();
  check_status(warpwright_encoder_get_prompt(encoder(), index, place(0), place(16)));
}

void encoder_texts() {
  Random& r = w.random;
  warpwright_encoder_texts_args a{};
  const std::vector<const char*> some = {"the cat",
                                         "",
                                         "dogs on a mat",
                                         "the cat",
                                         "a dog",
                                         r.chance(10) ? "boom" : "mat",
                                         "\xff\xfe the cat",
                                         "a\x01\x02 [SEP]"};
  alignas(16) static unsigned char memory[4][8 * 8 + 16];
  const auto pointers = [&](int place, bool present) {
    const char* texts[4];
    for (const char*& text : texts) text = r.chance(99) ? r.of(some) : nullptr;
    const std::size_t at = r.chance(97) ? 0 : 1 + r.below(7);
    std::memcpy(memory[place] + at, texts, sizeof texts);
    return present ? reinterpret_cast<const char* const*>(memory[place] + at) : nullptr;
  };
  const auto lengths = [&](int place, bool present) {
    std::size_t bytes[4];
    for (std::size_t& length : bytes) length = r.chance(98) ? 0 : (std::size_t{1} << 32) + r.next() / 2;
    const std::size_t at = r.chance(97) ? 0 : 1 + r.below(7);
    std::memcpy(memory[place] + at, bytes, sizeof bytes);
    return present ? reinterpret_cast<const std::size_t*>(memory[place] + at) : nullptr;
  };
  a.count = static_cast<std::int64_t>(r.below(5));
  a.result = r.chance(70) ? WARPWRIGHT_VECTORS : WARPWRIGHT_LOGITS;
  Fields f;
  a.out = reinterpret_cast<float*>(slot(0));
  if (r.chance(50)) a.tokens = reinterpret_cast<std::int64_t*>(slot(1));
  if (r.chance(50)) a.statuses = reinterpret_cast<warpwright_status*>(slot(2));
  f.add(a.out), f.add(a.tokens), f.add(a.statuses), f.add(a.count), f.add(a.result), f.add(a.reserved);
  f.add(a.prompt_bytes);
  f.mutate();
  if (a.count > 4 && a.count <= INT32_MAX) a.count = 4;
  a.texts = pointers(0, r.chance(97));
  a.text_bytes = lengths(1, r.chance(30));
  a.seconds = pointers(2, r.chance(15));
  a.second_bytes = lengths(3, a.seconds && r.chance(30));
  if (r.chance(30)) {
    a.prompt = "a mat: ";
    if (a.prompt_bytes > 7 && a.prompt_bytes <= (1 << 20)) a.prompt_bytes = 7;
  }
  if (r.chance(20)) a.prompt_name = r.of(strings());
  a.size = size_of_structure(sizeof a);
  Structure structure(a, true);
  check_status(warpwright_encoder_texts(encoder(), structure.get()));
}

// Fits the call, or has one wrong field.
warpwright_encoder_attention encoder_attention(const warpwright_encoder_tokens_args& a) {
  Random& r = w.random;
  warpwright_encoder_attention attention{};
  attention.temperature = 1 + 0.5 * static_cast<double>(r.below(3));
  attention.mask_dtype = WARPWRIGHT_U8;
  const std::int64_t L = a.cu_seqlens ? 20 : std::min<std::int64_t>(a.length, 20);
  unsigned char present = 0;
  if (r.chance(60)) attention.mask = &present;
  if (r.chance(50)) {
    attention.mask_rank = 2, attention.mask_shape[0] = a.sequences, attention.mask_shape[1] = a.length;
  } else {
    attention.mask_rank = 4, attention.mask_shape[0] = a.sequences, attention.mask_shape[1] = 1;
    attention.mask_shape[2] = attention.mask_shape[3] = L;
  }
  if (r.chance(40)) attention.bias = &present;
  attention.bias_rank = 3, attention.bias_shape[0] = 2;
  attention.bias_shape[1] = attention.bias_shape[2] = L;
  if (attention.mask) attention.mask = slot(6);
  if (attention.bias) attention.bias = slot(7);
  for (std::int64_t i = 0; i < kElements; ++i) slot(6)[i] = r.chance(70);
  if (r.chance(10)) slot(6)[r.below(20)] = 2;
  auto* bias = reinterpret_cast<float*>(slot(7));
  for (std::int64_t i = 0; i < kElements; ++i) bias[i] = static_cast<float>(r.below(5));
  Fields f;
  f.add(attention.temperature), f.add(attention.mask_rank), f.add(attention.bias_rank);
  f.add(attention.mask_shape[r.below(4)]), f.add(attention.bias_shape[r.below(4)]);
  f.add(attention.mask_dtype), f.add(attention.mask_on_device);
  if (r.chance(40)) f.mutate();
  attention.size = size_of_structure(sizeof attention);
  return attention;
}

void encoder_tokens() {
  Random& r = w.random;
  warpwright_encoder_tokens_args a{};
  a.sequences = static_cast<std::int64_t>(r.below(9));
  const bool packed = r.chance(50);
  a.length = packed ? 0 : static_cast<std::int64_t>(r.below(40));
  a.result = static_cast<warpwright_encoder_result>(r.below(3));
  auto* ids = reinterpret_cast<std::int32_t*>(slot(0));
  for (int i = 0; i < kElements; ++i) ids[i] = static_cast<std::int32_t>(r.below(16));
  if (r.chance(10)) ids[r.below(20)] = r.number32();
  auto* types = reinterpret_cast<std::int32_t*>(slot(1));
  for (int i = 0; i < kElements; ++i) types[i] = static_cast<std::int32_t>(r.below(2));
  if (r.chance(10)) types[r.below(20)] = r.number32();
  auto* bounds = reinterpret_cast<std::int32_t*>(slot(2));
  bounds[0] = 0;
  for (int i = 1; i <= 8; ++i) bounds[i] = bounds[i - 1] + static_cast<std::int32_t>(r.below(20));
  if (r.chance(15)) bounds[r.below(9)] = r.number32();
  for (std::int64_t i = 0; i < kElements; ++i) slot(3)[i] = r.chance(70);
  a.ids = ids;
  if (r.chance(50)) a.types = types;
  if (packed) a.cu_seqlens = bounds;
  if (!packed && r.chance(70)) a.mask = slot(3);
  a.out = slot(4);
  a.keep_padding = r.chance(20);
  Structure attention(encoder_attention(a), true);
  if (r.chance(40)) a.attention = attention.get();
  Fields f;
  f.add(a.ids), f.add(a.types), f.add(a.cu_seqlens), f.add(a.mask), f.add(a.out), f.add(a.states);
  if (r.chance(15)) a.states = slot(5), a.ids = a.types = nullptr;
  f.add(a.sequences), f.add(a.length), f.add(a.result), f.add(a.keep_padding);
  f.mutate();
  if (a.cu_seqlens && a.sequences > 8 && a.sequences <= INT32_MAX) a.sequences = 8;
  clamp_matrix(a.sequences, a.length);
  if (a.sequences > kElements && a.sequences <= INT32_MAX) a.sequences = kElements;
  if (a.length > kElements && a.length <= INT32_MAX) a.length = kElements;
  a.size = size_of_structure(sizeof a);
  Structure structure(a, true);
  check_status(warpwright_encoder_tokens(encoder(), structure.get()));
}

void decoder_create() {
  Random& r = w.random;
  static const std::string model = w.folder + "/gpt2", bare = w.folder + "/bare_gpt2";
  warpwright_decoder_options o{};
  o.folder = r.chance(50) ? model.c_str() : bare.c_str();
  o.sequences = static_cast<std::int64_t>(r.below(4));
  o.dtype = r.of(std::vector<warpwright_dtype>{WARPWRIGHT_F32, WARPWRIGHT_BF16, WARPWRIGHT_DTYPE_OF_MODEL});
  Fields f;
  f.add(o.sequences), f.add(o.context), f.add(o.cache_tokens), f.add(o.dtype), f.add(o.batch_invariant);
  f.add(o.tf32), f.add(o.reserved);
  f.mutate();
  if (r.chance(10)) o.folder = r.of(strings());
  // Memory that the machine could have would take too long to fill.
  if (o.sequences > 16 && o.sequences <= (1 << 20)) o.sequences = 16;
  if (o.cache_tokens > 4096 && o.cache_tokens < INT32_MAX) o.cache_tokens = 4096;
  o.size = size_of_structure(sizeof o);
  Structure options(o, true);
  alignas(16) unsigned char places[32] = {};
  auto** place = reinterpret_cast<warpwright_decoder**>(places + (r.chance(95) ? 0 : 1));
  if (r.chance(3)) place = nullptr;
  const warpwright_status status = warpwright_decoder_create(context(), options.get(), place);
  check_status(status);
  warpwright_decoder* made = nullptr;
  std::memcpy(&made, places, sizeof made);
  if (status == WARPWRIGHT_OK) warpwright_decoder_destroy(made);
}

void decoder_get_info() {
  warpwright_decoder_info info{};
  info.size = size_of_structure(sizeof info);
  Structure structure(info, true);
  check_status(warpwright_decoder_get_info(decoder(), structure.get()));
}

void decoder_encode() {
  Random& r = w.random;
  const char* text = r.of(std::vector<const char*>{nullptr, "", "the cat", "\xff\xfe", "<|endoftext|>"});
  const std::size_t bytes = r.chance(90) && text ? std::strlen(text) : (std::size_t{1} << 32) + r.next() / 2;
  const std::int64_t capacity = r.chance(50) ? 16 : std::min<std::int64_t>(r.number(), kElements);
  auto* ids = static_cast<std::int32_t*>(pointer(0));
  auto* count = static_cast<std::int64_t*>(pointer(1));
  check_status(warpwright_decoder_encode(decoder(), text, bytes, ids, capacity, count));
}

// Some ids of a model with a vocabulary of 259, rarely with one that it lacks.
std::int32_t* random_ids(int at) {
  Random& r = w.random;
  auto* ids = reinterpret_cast<std::int32_t*>(slot(at));
  for (int i = 0; i < kElements; ++i) ids[i] = static_cast<std::int32_t>(r.below(259));
  if (r.chance(20)) ids[r.below(20)] = r.number32();
  return ids;
}

void decoder_decode() {
  Random& r = w.random;
  std::int32_t* ids = random_ids(0);
  if (r.chance(10)) ids = r.chance(50) ? nullptr : reinterpret_cast<std::int32_t*>(slot(0) + 1);
  std::int64_t count = r.chance(80) ? static_cast<std::int64_t>(r.below(40)) : r.number();
  if (count > kElements && count <= INT32_MAX) count = kElements;
  const std::size_t capacity = r.chance(50) ? 4 * kElements : r.below(40);
  auto* bytes = static_cast<std::size_t*>(pointer(2));
  check_status(
      warpwright_decoder_decode(decoder(), ids, count, static_cast<char*>(pointer(1)), capacity, bytes));
}

warpwright_decoder_add_args decoder_add_args() {
  Random& r = w.random;
  static const std::size_t stop_bytes[4] = {3, 0, 1, 2};
  static const char* const stops[4] = {"the", "cat", "a", "\xff\xfe"};
  static const char* const odd_stops[4] = {"the", nullptr, "", "cat"};
  warpwright_decoder_add_args a{};
  a.max_tokens = 1 + static_cast<std::int64_t>(r.below(60));
  a.temperature = static_cast<double>(r.below(3)), a.top_p = 1, a.repetition_penalty = 1;
  const bool is_text = r.chance(50);
  unsigned char present = 0;
  if (!is_text) a.ids = reinterpret_cast<std::int32_t*>(&present);
  a.id_count = is_text ? 0 : 1 + static_cast<std::int64_t>(r.below(40));
  const std::int32_t* ids = random_ids(0);
  Fields f;
  f.add(a.ids), f.add(a.id_count), f.add(a.stop_count), f.add(a.max_tokens), f.add(a.temperature);
  f.add(a.top_k), f.add(a.top_p), f.add(a.min_p), f.add(a.repetition_penalty), f.add(a.ignore_end_of_text);
  f.add(a.reserved), f.add(a.text_bytes);
  if (a.ids) a.ids = ids;
  if (r.chance(60)) f.mutate();
  if (a.id_count > kElements && a.id_count <= INT32_MAX) a.id_count = kElements;
  if (is_text || r.chance(3)) a.text = "the cat";
  if (a.text && (r.chance(95) || a.text_bytes < (std::size_t{1} << 32))) a.text_bytes = r.below(8);
  if (r.chance(20)) a.stop_count = 1 + static_cast<std::int64_t>(r.below(4));
  if (a.stop_count > 4 && a.stop_count <= INT32_MAX) a.stop_count = 4;
  if (r.chance(95)) a.stops = r.chance(90) ? stops : odd_stops;
  if (r.chance(10) && a.stops == stops) a.stop_bytes = stop_bytes;
  a.seed = r.next();
  a.size = size_of_structure(sizeof a);
  return a;
}

void decoder_add() {
  Random& r = w.random;
  Structure structure(decoder_add_args(), true);
  std::int64_t sequence = -1;
  std::int64_t* place = r.chance(97)   ? &sequence
                        : r.chance(50) ? nullptr
                                       : static_cast<std::int64_t*>(pointer(3));
  check_status(warpwright_decoder_add(decoder(), structure.get(), place));
  if (r.chance(90)) warpwright_decoder_remove(w.decoder, sequence);
}

void decoder_step() {
  if (w.random.chance(30)) {
    Structure structure(decoder_add_args(), true);
    std::int64_t sequence = 0;
    warpwright_decoder_add(w.decoder, structure.get(), &sequence);
    mark();
  }
  check_status(warpwright_decoder_step(decoder(), static_cast<std::int64_t*>(pointer(4))));
}

void decoder_get_event() {
  if (w.random.chance(10)) decoder_step();
  warpwright_decoder_event event{};
  event.size = size_of_structure(sizeof event);
  Structure structure(event, true);
  const std::int64_t index = w.random.chance(60) ? 0 : w.random.number();
  mark();
  check_status(warpwright_decoder_get_event(decoder(), index, structure.get()));
}

void make_decoder() {
  warpwright_decoder_options o{};
  static const std::string model = w.folder + "/gpt2", bare = w.folder + "/bare_gpt2";
  o.size = sizeof o, o.folder = w.random.chance(80) ? model.c_str() : bare.c_str(), o.dtype = WARPWRIGHT_F32;
  o.sequences = 3;
  if (warpwright_decoder_create(w.context, &o, &w.decoder) != WARPWRIGHT_OK) fail("no decoder");
}

void make_encoder() {
  warpwright_encoder_options o{};
  o.size = sizeof o, o.folder = w.folder.c_str(), o.dtype = WARPWRIGHT_F32, o.max_batch_tokens = 128;
  static const std::string cross = w.folder + "/cross";
  if (w.random.chance(50)) o.folder = cross.c_str();
  if (warpwright_encoder_create(w.context, &o, &w.encoder) != WARPWRIGHT_OK) fail("no encoder");
}

void make_context() {
  warpwright_context_options o{};
  o.size = sizeof o, o.threads = 2;
  if (warpwright_context_create(&o, &w.context) != WARPWRIGHT_OK) fail("no context");
}

// A destroyed handle must be refused, and so must a pointer that never was a handle.
template <class T>
void check_destroyed(T* given, T* live) {
  if (given && given != live) {
    const std::string message = warpwright_last_error();
    if (message.find("did not make or has destroyed") == std::string::npos) fail("a silent refusal");
    ++w.progress->refused;
  } else {
    ++w.progress->accepted;
  }
}
void context_destroy() {
  warpwright_context* given = context();
  warpwright_context_destroy(given);
  check_destroyed(given, w.context);
  if (given == w.context) {
    w.dead_context = w.context;
    // An encoder remains usable after its context is destroyed.
    warpwright_encoder_info info{};
    info.size = sizeof info;
    if (warpwright_encoder_get_info(w.encoder, &info) != WARPWRIGHT_OK)
      fail("an encoder without its context");
    std::int64_t events = 0;
    if (warpwright_decoder_step(w.decoder, &events) != WARPWRIGHT_OK) fail("a decoder without its context");
    make_context();
  }
}
void encoder_destroy() {
  warpwright_encoder* given = encoder();
  warpwright_encoder_destroy(given);
  check_destroyed(given, w.encoder);
  if (given == w.encoder) {
    w.dead_encoder = w.encoder;
    make_encoder();
  }
}
void decoder_destroy() {
  warpwright_decoder* given = decoder();
  warpwright_decoder_destroy(given);
  check_destroyed(given, w.decoder);
  if (given == w.decoder) {
    w.dead_decoder = w.decoder;
    make_decoder();
  }
}

const std::map<std::string, std::function<void()>>& functions() {
  static const std::map<std::string, std::function<void()>> all = {
      {"warpwright_abi_version",
       [] {
         if (warpwright_abi_version() != 1000 * WARPWRIGHT_ABI_MAJOR + WARPWRIGHT_ABI_MINOR) fail("version");
       }},
      {"warpwright_version",
       [] {
         if (!*warpwright_version()) fail("no version");
       }},
      {"warpwright_status_name",
       [] {
         if (!*warpwright_status_name(w.random.number32())) fail("no name");
       }},
      {"warpwright_last_error",
       [] {
         if (!warpwright_last_error()) fail("NULL");
       }},
      {"warpwright_cuda_device_count",
       [] {
         if (warpwright_cuda_device_count() < 0) fail("negative");
       }},
      {"warpwright_context_create", context_create},
      {"warpwright_context_destroy", context_destroy},
      {"warpwright_context_set_stream",
       [] {
         check_status(warpwright_context_set_stream(context(), w.random.chance(50) ? nullptr : pointer(0)));
       }},
      {"warpwright_context_set_threads",
       [] {
         std::int32_t threads = w.random.number32();
         if (threads > 8 && threads <= 4096) threads = 8;
         check_status(warpwright_context_set_threads(context(), threads));
       }},
      {"warpwright_layernorm_forward", [] { run(forward_args(true, true), warpwright_layernorm_forward); }},
      {"warpwright_layernorm_backward",
       [] { run(backward_args(true, true), warpwright_layernorm_backward); }},
      {"warpwright_rmsnorm_forward", [] { run(forward_args(false, true), warpwright_rmsnorm_forward); }},
      {"warpwright_rmsnorm_backward", [] { run(backward_args(false, true), warpwright_rmsnorm_backward); }},
      {"warpwright_residual_norm_forward",
       [] { run(residual_args(true), warpwright_residual_norm_forward); }},
      {"warpwright_layernorm_forward_workspace",
       [] { ask(forward_args(true, false), warpwright_layernorm_forward_workspace); }},
      {"warpwright_layernorm_backward_workspace",
       [] { ask(backward_args(true, false), warpwright_layernorm_backward_workspace); }},
      {"warpwright_rmsnorm_forward_workspace",
       [] { ask(forward_args(false, false), warpwright_rmsnorm_forward_workspace); }},
      {"warpwright_rmsnorm_backward_workspace",
       [] { ask(backward_args(false, false), warpwright_rmsnorm_backward_workspace); }},
      {"warpwright_residual_norm_forward_workspace",
       [] { ask(residual_args(false), warpwright_residual_norm_forward_workspace); }},
      {"warpwright_encoder_create", encoder_create},
      {"warpwright_encoder_destroy", encoder_destroy},
      {"warpwright_encoder_get_info", encoder_get_info},
      {"warpwright_encoder_get_prompt", encoder_get_prompt},
      {"warpwright_encoder_texts", encoder_texts},
      {"warpwright_encoder_text_error",
       [] {
         if (!warpwright_encoder_text_error(encoder(), w.random.number())) fail("NULL");
       }},
      {"warpwright_encoder_tokens", encoder_tokens},
      {"warpwright_encoder_check_mask", [] { check_status(warpwright_encoder_check_mask(encoder())); }},
      {"warpwright_decoder_create", decoder_create},
      {"warpwright_decoder_destroy", decoder_destroy},
      {"warpwright_decoder_get_info", decoder_get_info},
      {"warpwright_decoder_encode", decoder_encode},
      {"warpwright_decoder_decode", decoder_decode},
      {"warpwright_decoder_add", decoder_add},
      {"warpwright_decoder_remove",
       [] { check_status(warpwright_decoder_remove(decoder(), w.random.number())); }},
      {"warpwright_decoder_step", decoder_step},
      {"warpwright_decoder_get_event", decoder_get_event},
      {"warpwright_padding_lengths", [] { run(padding_args(), warpwright_padding_lengths); }},
      {"warpwright_pack", [] { run(padding_args(), warpwright_pack); }},
      {"warpwright_unpack", [] { run(padding_args(), warpwright_unpack); }}};
  return all;
}

// ---- Processes -----------------------------------------------------------------------------------

// True if this test calls every function in the header. scripts/check-exports checks that these are the
// exports.
bool covers(const char* header) {
  std::ifstream file(header);
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  const std::regex name("\\b(warpwright_[a-z0-9_]+)\\(");
  std::set<std::string> declared;
  for (std::sregex_iterator i(text.begin(), text.end(), name), end; i != end; ++i) declared.insert((*i)[1]);
  bool all = !declared.empty();
  for (const std::string& function : declared) {
    if (functions().count(function)) continue;
    std::fprintf(stderr, "abuse_test does not call %s\n", function.c_str());
    all = false;
  }
  return all;
}

[[noreturn]] void child(const std::string& name, std::int64_t iterations, std::uint64_t seed) {
  w.random = Random(seed);
  make_context();
  make_encoder();
  make_decoder();
  for (w.progress->iteration = 0; w.progress->iteration < iterations; ++w.progress->iteration) {
    w.random = Random(seed + static_cast<std::uint64_t>(w.progress->iteration));
    mark();
    functions().at(name)();
  }
  warpwright_decoder_destroy(w.decoder);
  warpwright_encoder_destroy(w.encoder);
  warpwright_context_destroy(w.context);
  w.progress->done = true;
  std::exit(0);  // lets the sanitizers look for leaks
}

// To make a decoder takes as long as a hundred other calls.
bool makes_decoders(const std::string& name) {
  return name == "warpwright_decoder_create" || name == "warpwright_decoder_destroy";
}

bool survives(const std::string& name, std::int64_t iterations, std::uint64_t seed) {
  *w.progress = {};
  std::fflush(nullptr);
  const pid_t process = fork();
  if (process == 0) child(name, iterations, seed);
  int status = 0;
  waitpid(process, &status, 0);
  if (status == 0 && w.progress->done) {
    std::printf("%-44s %lld accepted, %lld refused\n", name.c_str(),
                static_cast<long long>(w.progress->accepted), static_cast<long long>(w.progress->refused));
    return true;
  }
  std::fprintf(stderr, "%s: the process ended with status %d in iteration %lld of seed %llu\n", name.c_str(),
               status, static_cast<long long>(w.progress->iteration), static_cast<unsigned long long>(seed));
  return false;
}

void make_folder() {
  std::string name = (fs::temp_directory_path() / "warpwright_abuse_XXXXXX").string();
  if (!mkdtemp(name.data())) std::abort();
  w.folder = name;
  warpwright::make_tiny_bert(name);
  warpwright::make_tiny_bert(name + "/cross", 2);
  warpwright::make_tiny_gpt2(name + "/gpt2");
  warpwright::make_tiny_gpt2(name + "/bare_gpt2", true);
  std::ofstream(name + "/config_sentence_transformers.json") << R"({"prompts": {"query": "a mat: "}})";
  std::ifstream file(name + "/config.json");
  w.config = {std::istreambuf_iterator<char>(file), {}};
  if (chdir(name.c_str()) != 0) std::abort();
}

// Makes slots between pages that cannot be read.
void make_slots() {
  const std::size_t page = 4096, bytes = (kSlots * kSlotBytes + page - 1) / page * page;
  auto* memory = static_cast<unsigned char*>(
      mmap(nullptr, bytes + 2 * page, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
  if (memory == MAP_FAILED || mprotect(memory + page, bytes, PROT_READ | PROT_WRITE) != 0) std::abort();
  w.slots = memory + page;
  for (std::size_t i = 0; i < bytes; ++i) w.slots[i] = static_cast<unsigned char>(w.random.next());
}

}  // namespace

int main(int count, char** arguments) {
  if (count < 2) {
    std::fprintf(stderr, "usage: abuse_test HEADER [ITERATIONS [SEED [FUNCTION]]]\n");
    return 2;
  }
  if (!covers(arguments[1])) return 1;
  const std::int64_t iterations = count > 2 ? std::atoll(arguments[2]) : 10000;
  const std::uint64_t seed = count > 3 ? std::strtoull(arguments[3], nullptr, 10) : 1;
  std::printf("%lld calls of each function, seed %llu\n", static_cast<long long>(iterations),
              static_cast<unsigned long long>(seed));
  w.progress = static_cast<Progress*>(
      mmap(nullptr, sizeof(Progress), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0));
  make_folder();
  make_slots();
  bool all = true;
  for (const auto& [name, unused] : functions()) {
    if (count > 4 && name != arguments[4]) continue;
    all = survives(name, makes_decoders(name) ? (iterations + 19) / 20 : iterations, seed) && all;
  }
  fs::remove_all(w.folder);
  return all ? 0 : 1;
}
