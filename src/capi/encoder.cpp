// Encoders in the C ABI: made from a folder or from tensors, and what they say about themselves.
#include "capi/encoder.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <span>
#include <utility>

#include "capi/dtype.hpp"
#include "runtime/file.hpp"
#include "runtime/json.hpp"
#include "runtime/threads.hpp"

using namespace warpwright;
using namespace warpwright::capi;

namespace {

constexpr std::string_view kCreate = "warpwright_encoder_create", kInfo = "warpwright_encoder_get_info",
                           kPrompt = "warpwright_encoder_get_prompt";

std::optional<ops::Pooling> pooling_of(warpwright_pooling pooling) {
  switch (pooling) {
    case WARPWRIGHT_POOLING_OF_MODEL:
      return {};
    case WARPWRIGHT_POOLING_MEAN:
      return ops::Pooling::mean;
    case WARPWRIGHT_POOLING_CLS:
      return ops::Pooling::cls;
    case WARPWRIGHT_POOLING_MAX:
      return ops::Pooling::max;
    case WARPWRIGHT_POOLING_MEAN_SQRT:
      return ops::Pooling::mean_sqrt;
    default:
      fail(kCreate, fmt::format("options.pooling is {}", pooling));
  }
}

std::optional<bool> normalization_of(warpwright_normalization normalization) {
  if (normalization == WARPWRIGHT_NORMALIZE_OF_MODEL) return {};
  if (normalization == WARPWRIGHT_NORMALIZE || normalization == WARPWRIGHT_NORMALIZE_NOT) {
    return normalization == WARPWRIGHT_NORMALIZE;
  }
  fail(kCreate, fmt::format("options.normalization is {}", normalization));
}

warpwright_dtype number_of(DType dtype) {
  if (dtype == DType::bf16) return WARPWRIGHT_BF16;
  return dtype == DType::f16 ? WARPWRIGHT_F16 : WARPWRIGHT_F32;
}

EncoderOptions options_of(const warpwright_encoder_options& o, const DeviceInfo& device) {
  EncoderOptions options;
  check_reserved(kCreate, "options.reserved", o.reserved);
  if (o.dtype == WARPWRIGHT_F64) {
    fail(kCreate, "options.dtype is WARPWRIGHT_F64", "use F32, BF16, F16 or INT8");
  }
  options.weights.precision = precision_of(kCreate, "options.dtype", o.dtype, device);
  for (const auto& [name, value] : {std::pair("max_batch_tokens", o.max_batch_tokens),
                                    {"max_batch_sequences", o.max_batch_sequences},
                                    {"max_length", o.max_length},
                                    {"tensor_count", o.tensor_count}}) {
    if (value < 0) fail(kCreate, fmt::format("options.{} is {}", name, value), "use 0 or more");
  }
  if (o.max_batch_tokens > 0) options.model.max_batch_tokens = o.max_batch_tokens;
  options.model.max_batch_sequences = o.max_batch_sequences;
  options.model.batch_invariant = o.batch_invariant != 0;
  options.model.pooling = pooling_of(o.pooling);
  options.model.normalize = normalization_of(o.normalization);
  if (o.weights_cache) options.weights.cache = o.weights_cache;
  options.max_length = o.max_length;
  options.over_limit = o.refuse_long ? OverLimit::refuse : OverLimit::truncate;
  options.in_text = o.plain_text ? text::SpecialTokens::as_text : text::SpecialTokens::recognize;
  return options;
}

std::vector<BertTensor> tensors_of(const warpwright_encoder_options& o) {
  std::vector<BertTensor> tensors;
  check_place(kCreate, "options.tensors", o.tensors);
  if (o.tensor_count > kMostCount) fail(kCreate, fmt::format("options.tensor_count is {}", o.tensor_count));
  for (std::int64_t i = 0; i < o.tensor_count; ++i) {
    const warpwright_tensor& t = o.tensors[i];
    const std::string where = fmt::format("options.tensors[{}]", i);
    if (!t.name) fail(kCreate, where + ".name is NULL");
    const DType dtype = capi::dtype_of(kCreate, where + ".dtype", t.dtype);
    if (t.rank != 1 && t.rank != 2) {
      fail(kCreate, fmt::format("{} ({}) has rank {}", where, quote(t.name), t.rank), "use 1 or 2");
    }
    constexpr std::int64_t kMost = std::int64_t{1} << 40;
    const std::int64_t rows = t.rank == 2 ? t.rows : 1;
    if (rows < 0 || t.columns < 0 || rows > kMost || t.columns > kMost / std::max<std::int64_t>(rows, 1)) {
      fail(kCreate, fmt::format("{} ({}) has shape ({}, {})", where, quote(t.name), rows, t.columns));
    }
    const Shape shape = t.rank == 2 ? Shape{t.rows, t.columns} : Shape{t.columns};
    if (!t.data && shape.elements() > 0) fail(kCreate, where + ".data is NULL");
    check_alignment(kCreate, where + ".data", t.data, size_of(dtype));
    const std::size_t bytes = static_cast<std::size_t>(shape.elements()) * size_of(dtype);
    tensors.push_back({t.name, std::string(name_of(dtype)), dtype, shape,
                       std::span(static_cast<const std::byte*>(t.data), bytes)});
  }
  return tensors;
}

std::size_t info_bytes(const warpwright_encoder_info& info) {
  return std::min(info.size, sizeof info);
}

}  // namespace

BertSession::Result capi::result_of(std::string_view function, warpwright_encoder_result result) {
  switch (result) {
    case WARPWRIGHT_VECTORS:
      return BertSession::Result::vectors;
    case WARPWRIGHT_LOGITS:
      return BertSession::Result::logits;
    case WARPWRIGHT_HIDDEN:
      return BertSession::Result::hidden;
    default:
      fail(function, fmt::format("result is {}", result),
           "use WARPWRIGHT_VECTORS, WARPWRIGHT_LOGITS or WARPWRIGHT_HIDDEN");
  }
}

warpwright_encoder::warpwright_encoder(std::shared_ptr<warpwright_context> owner_,
                                       const warpwright_encoder_options& o)
    : owner(std::move(owner_)),
      context(options_of_model(*owner, o.tf32 != 0), owner->context.device().device,
              Stream::borrowed(owner->context.device().device, owner->context.stream().get())) {
  const EncoderOptions options = options_of(o, context.device());
  if (o.folder) {
    if (o.tensors || o.tensor_count || o.config) {
      fail(kCreate, "options.folder is given with tensors or config", "give one of the two");
    }
    const std::filesystem::path folder(o.folder);
    if (text::has_encoder_tokenizer(folder)) {
      texts = std::make_unique<Encoder>(context, folder, options);
    } else {
      ids_only = std::make_unique<BertSession>(
          context, std::make_shared<const BertWeights>(context, folder, options.weights), options.model);
    }
  } else {
    if (!o.tensors || !o.config) {
      fail(kCreate, "options.folder is NULL", "give a folder, or tensors and config");
    }
    const std::string where = "options.config";
    const BertConfig config =
        BertConfig::from_json(parse_json(o.config, where, 16, "give a BERT or RoBERTa's config.json"), where);
    ids_only = std::make_unique<BertSession>(
        context, std::make_shared<const BertWeights>(context, config, tensors_of(o), options.weights),
        options.model);
  }
}

warpwright_encoder::~warpwright_encoder() {
  if (!done_) return;
  try {
    const CurrentDevice current(context.device().device);
    done_->synchronize();            // the caller's stream may no longer exist
  } catch (const std::exception&) {  // after a failure there is nothing to wait for
  }
}

warpwright_status warpwright_encoder_create(warpwright_context* context,
                                            const warpwright_encoder_options* options,
                                            warpwright_encoder** encoder) {
  return guarded([&](warpwright_status& meaning) {
    check_place(kCreate, "encoder", encoder);
    *encoder = nullptr;
    const ContextInCall owner(kCreate, context);
    const warpwright_encoder_options known = known_part(kCreate, "options", options);
    const DeviceInfo& device = owner->context.device();
    if (known.dtype == WARPWRIGHT_F16 && device.device.kind == DeviceKind::cpu) {
      meaning = WARPWRIGHT_UNSUPPORTED;
      fail(kCreate, "options.dtype is WARPWRIGHT_F16, and the context is a CPU's",
           "use WARPWRIGHT_F32 or WARPWRIGHT_BF16, or a GPU's context");
    }
    check_int8(kCreate, known.dtype, device, meaning);
    meaning = WARPWRIGHT_FAILED;
    claim_threads(device.threads);
    meaning = WARPWRIGHT_INVALID_ARGUMENT;
    const CurrentDevice current(device.device);
    *encoder = Encoders::all().add(std::make_shared<warpwright_encoder>(owner.shared(), known));
  });
}

void warpwright_encoder_destroy(warpwright_encoder* encoder) {
  if (!encoder) return;
  guarded(
      [&](warpwright_status&) { Encoders::all().remove("warpwright_encoder_destroy", "encoder", encoder); });
}

warpwright_status warpwright_encoder_get_info(const warpwright_encoder* handle,
                                              warpwright_encoder_info* info) {
  return guarded([&](warpwright_status&) {
    const EncoderInCall encoder(kInfo, handle);
    known_part(kInfo, "info", info, offsetof(warpwright_encoder_info, prompts));
    const BertSession& model = encoder->model();
    const BertConfig& config = model.config();
    const Prompts prompts = encoder->texts ? encoder->texts->prompts() : Prompts();
    const auto is_default = [&](const auto& prompt) { return prompt.first == prompts.default_name; };
    const auto first = std::find_if(prompts.named.begin(), prompts.named.end(), is_default);
    const warpwright_encoder_info known = {
        .size = info->size,
        .hidden_size = config.hidden,
        .layers = config.layers,
        .heads = config.heads,
        .vocabulary = config.vocab,
        .token_types = config.types,
        .max_length = encoder->texts ? encoder->texts->max_length() : model.max_length(),
        .vector_size = model.vector_size(),
        .labels = model.labels(),
        .max_batch_tokens = model.options().max_batch_tokens,
        .max_batch_sequences = model.options().max_batch_sequences,
        .wasted_tokens = model.wasted_tokens(),
        .has_tokenizer = encoder->texts != nullptr,
        .dtype = number_of(model.weights()->dtype()),
        .prompts = static_cast<std::int32_t>(prompts.named.size()),
        .default_prompt =
            first == prompts.named.end() ? -1 : static_cast<std::int32_t>(first - prompts.named.begin())};
    std::memcpy(info, &known, info_bytes(*info));
  });
}

warpwright_status warpwright_encoder_get_prompt(const warpwright_encoder* handle, int64_t index,
                                                const char** name, const char** text) {
  return guarded([&](warpwright_status&) {
    const EncoderInCall encoder(kPrompt, handle);
    check_place(kPrompt, "name", name);
    check_place(kPrompt, "text", text);
    const auto count = encoder->texts ? static_cast<std::int64_t>(encoder->texts->prompts().named.size()) : 0;
    if (index < 0 || index >= count) {
      fail(kPrompt, fmt::format("index is {}", index), fmt::format("the model has {} prompts", count));
    }
    const auto& prompt = encoder->texts->prompts().named[static_cast<std::size_t>(index)];
    *name = prompt.first.c_str();
    *text = prompt.second.c_str();
  });
}
