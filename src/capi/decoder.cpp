// Decoders in the C ABI: made from a folder, what they say about themselves, and their tokenizer.
#include "capi/decoder.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <span>
#include <string>
#include <utility>

#include "capi/dtype.hpp"
#include "capi/texts.hpp"
#include "infer/decoder_texts.hpp"
#include "infer/decoding_memory.hpp"
#include "model/decoder_files.hpp"
#include "model/packed_decoder.hpp"
#include "runtime/threads.hpp"
#include "text/unicode.hpp"

using namespace warpwright;
using namespace warpwright::capi;

namespace {

constexpr std::string_view kCreate = "warpwright_decoder_create", kInfo = "warpwright_decoder_get_info",
                           kEncode = "warpwright_decoder_encode", kDecode = "warpwright_decoder_decode";
constexpr std::int64_t kSequences = 64, kContext = 2048;  // if the caller does not say

warpwright_decoder_options checked(const warpwright_decoder_options* given) {
  const warpwright_decoder_options o = known_part(kCreate, "options", given);
  check_reserved(kCreate, "options.reserved", o.reserved);
  if (!o.folder) throw_missing(kCreate, "options.folder");
  constexpr int kDTypes[] = {WARPWRIGHT_F32, WARPWRIGHT_BF16, WARPWRIGHT_INT8, WARPWRIGHT_DTYPE_OF_MODEL};
  if (std::ranges::find(kDTypes, o.dtype) == std::end(kDTypes)) {
    fail(kCreate, fmt::format("options.dtype is {}", o.dtype),
         "use WARPWRIGHT_F32, _BF16, _INT8 or _DTYPE_OF_MODEL");
  }
  for (const auto& [name, value] :
       {std::pair("sequences", o.sequences), {"context", o.context}, {"cache_tokens", o.cache_tokens}}) {
    if (value < 0) fail(kCreate, fmt::format("options.{} is {}", name, value), "use 0 or more");
  }
  return o;
}

DecoderWeights load(const Context& context, const warpwright_decoder_options& o) {
  const std::filesystem::path folder = model_folder(o.folder);
  const Precision precision = o.dtype == WARPWRIGHT_DTYPE_OF_MODEL
                                  ? Precision{.dtype = dtype_of_model(folder)}
                                  : precision_of(kCreate, "options.dtype", o.dtype, context.device());
  return load_inference_weights(context, folder, precision);
}

DecodingOptions decoding_options(Context& context, const DecoderWeights& model,
                                 const warpwright_decoder_options& o) {
  DecodingOptions options{.sequences = o.sequences,
                          .context = o.context,
                          .cache_tokens = o.cache_tokens,
                          .batch_invariant = o.batch_invariant != 0};
  if (options.context == 0) options.context = std::min(model.decoder->context(), kContext);
  if (options.sequences == 0) {
    options.sequences = kSequences;
    return with_sequences_that_fit(context, model, options);
  }
  require_room(context, model, options);
  return options;
}

}  // namespace

warpwright_decoder::warpwright_decoder(std::shared_ptr<warpwright_context> owner_,
                                       const warpwright_decoder_options& o)
    : owner(std::move(owner_)),
      context(options_of_model(*owner, o.tf32 != 0), owner->context.device().device),
      model(load(context, o)) {
  const std::filesystem::path folder = model_folder(o.folder);
  if (text::has_tokenizer(folder)) tokenizer = load_tokenizer(folder, *model.decoder);
  const text::Tokenizer* texts = tokenizer ? &*tokenizer : nullptr;
  end_of_text = end_of_text_tokens(folder, *model.decoder, texts);
  options = decoding_options(context, model, o);
  engine.emplace(context, model, options);
  sequences.emplace(*engine, texts);
}

void warpwright_decoder::follow_owner() {
  context.set_threads(owner->context.threads());
  claim_threads(context.threads());
}

const text::Tokenizer& warpwright_decoder::require_tokenizer(std::string_view function) const {
  if (!tokenizer) fail(function, "the decoder has no tokenizer", "use a folder that has one, or token ids");
  return *tokenizer;
}

warpwright_status warpwright_decoder_create(warpwright_context* context,
                                            const warpwright_decoder_options* options,
                                            warpwright_decoder** decoder) {
  return guarded([&](warpwright_status& meaning) {
    check_place(kCreate, "decoder", decoder);
    *decoder = nullptr;
    const ContextInCall owner(kCreate, context);
    const warpwright_decoder_options known = checked(options);
    const DeviceInfo& device = owner->context.device();
    check_int8(kCreate, known.dtype, device, meaning);
    meaning = WARPWRIGHT_FAILED;
    claim_threads(device.threads);
    meaning = WARPWRIGHT_INVALID_ARGUMENT;
    const CurrentDevice current(device.device);
    *decoder = Decoders::all().add(std::make_shared<warpwright_decoder>(owner.shared(), known));
  });
}

void warpwright_decoder_destroy(warpwright_decoder* decoder) {
  if (!decoder) return;
  guarded(
      [&](warpwright_status&) { Decoders::all().remove("warpwright_decoder_destroy", "decoder", decoder); });
}

warpwright_status warpwright_decoder_get_info(const warpwright_decoder* handle,
                                              warpwright_decoder_info* info) {
  return guarded([&](warpwright_status&) {
    const DecoderInCall decoder(kInfo, handle);
    known_part(kInfo, "info", info);
    const warpwright_decoder_info known = {
        .size = info->size,
        .vocabulary = decoder->model.decoder->vocab(),
        .model_context = decoder->model.decoder->context(),
        .context = decoder->options.context,
        .sequences = decoder->options.sequences,
        .running = decoder->engine->running(),
        .waiting = decoder->engine->waiting(),
        .has_tokenizer = decoder->tokenizer.has_value(),
        .dtype = decoder->model.dtype == DType::bf16 ? WARPWRIGHT_BF16 : WARPWRIGHT_F32};
    std::memcpy(info, &known, std::min(info->size, sizeof known));
  });
}

warpwright_status warpwright_decoder_encode(warpwright_decoder* handle, const char* text, size_t text_bytes,
                                            int32_t* ids, int64_t capacity, int64_t* count) {
  return guarded([&](warpwright_status&) {
    const DecoderInCall decoder(kEncode, handle);
    check_place(kEncode, "count", count);
    const std::string_view view = texts_of(kEncode, "text", &text, &text_bytes, 1)[0];
    if (capacity < 0) fail(kEncode, fmt::format("capacity is {}", capacity), "use 0 or more");
    if (capacity > 0) check_place(kEncode, "ids", ids);
    const std::vector<std::int32_t> found = prompt_ids(decoder->require_tokenizer(kEncode), view);
    *count = static_cast<std::int64_t>(found.size());
    if (*count <= capacity) std::ranges::copy(found, ids);
  });
}

warpwright_status warpwright_decoder_decode(warpwright_decoder* handle, const int32_t* ids, int64_t count,
                                            char* text, size_t capacity, size_t* text_bytes) {
  return guarded([&](warpwright_status&) {
    const DecoderInCall decoder(kDecode, handle);
    check_place(kDecode, "text_bytes", text_bytes);
    if (count < 0 || count > kMostCount) {
      fail(kDecode, fmt::format("count is {}", count), fmt::format("use 0 to {}", kMostCount));
    }
    if (count > 0) check_place(kDecode, "ids", ids);
    if (capacity > 0) check_place(kDecode, "text", text);
    const text::Tokenizer& tokenizer = decoder->require_tokenizer(kDecode);
    std::vector<text::TokenId> known;
    for (const std::int32_t id : std::span(ids, static_cast<std::size_t>(count))) {
      if (id < 0 || id >= decoder->model.decoder->vocab()) {
        fail(kDecode, fmt::format("ids has {}", id),
             fmt::format("the vocabulary has ids below {}", decoder->model.decoder->vocab()));
      }
      // Ids beyond the tokenizer (a model may have more) have no text.
      const auto token = static_cast<text::TokenId>(id);
      if (token < tokenizer.vocab_size()) known.push_back(token);
    }
    const std::string found = text::repair_utf8(tokenizer.decode(known));
    *text_bytes = found.size();
    if (found.size() <= capacity) std::ranges::copy(found, text);
  });
}
