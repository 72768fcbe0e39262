#include "cli/encoder_flags.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "cli/cache_folder.hpp"
#include "cli/checks.hpp"
#include "cli/model_flags.hpp"
#include "cli/named.hpp"
#include "core/error.hpp"
#include "runtime/file.hpp"

namespace warpwright::cli {
namespace {

constexpr Word<OverLimit> kOverLimit[] = {{"truncate", OverLimit::truncate}, {"refuse", OverLimit::refuse}};

// Makes a cache folder that the user named, and refuses one that is empty and stays so.
void prepare_named_cache(const std::filesystem::path& folder) {
  create_folders(folder);
  if (folder.empty() || ::access(folder.c_str(), W_OK) == 0) return;
  const int reason = errno;
  if (!list_folder(folder).empty()) return;  // filled by someone who may write
  throw Error(fmt::format("cannot be written: {}", std::strerror(reason)), folder.string(),
              "give --weights-cache a folder that can be written, or none");
}

}  // namespace

UsageError naming_flag(const UsageError& error) {
  for (const auto& [option, flag] :
       {std::pair("max_length", "--max-length"), {"batch_tokens", "--batch-tokens"}}) {
    if (error.where() == option) return {error.problem(), flag, error.remedy()};
  }
  return error;
}

void add_encoder_dtype_flag(CLI::App& command, std::string& dtype) {
  command
      .add_option(
          "--dtype", dtype,
          "fp32, tf32 (GPU), bf16, fp16 (GPU) or int8 (CPU: the layers' products; the rest in bf16 or fp32)")
      ->capture_default_str()
      ->check(one_of({"fp32", "tf32", "bf16", "fp16", "int8"}));
}

void EncoderFlags::add_to(CLI::App& command) {
  command.add_option("--model", model, "Folder of a BERT or RoBERTa model with its tokenizer")->required();
  command.add_option("--max-length", max_length, "Most tokens of a text; 0: as the model's files say")
      ->capture_default_str()
      ->check(at_least(0));
  command.add_option("--over-limit", over_limit, "For a longer text: truncate (cut off its end) or refuse")
      ->capture_default_str()
      ->check(one_of(names_of(kOverLimit)));
  command.add_option("--batch-tokens", batch_tokens, "Most tokens of a batch: sizes the memory")
      ->capture_default_str()
      ->check(at_least(1));
  add_encoder_dtype_flag(command, dtype);
  command
      .add_option("--weights-cache", weights_cache,
                  "Folder where processes share the weights in the layout of a CPU's kernels; none, or auto "
                  "(warpwright in the user's cache folder)")
      ->capture_default_str();
  command.add_flag("--batch-invariant", batch_invariant, "The same bits whatever shares the batch; slower");
  command.add_flag("--special-as-text", special_as_text,
                   "Treat special tokens spelled out in a text, such as [SEP], as plain text");
  device.add_to(command);
}

EncoderOptions EncoderFlags::options(const DeviceInfo& info) const {
  EncoderOptions options;
  options.weights.precision = precision_named(dtype, info);
  options.weights.cache = weights_cache == "auto"   ? users_cache_folder()
                          : weights_cache == "none" ? std::filesystem::path()
                                                    : std::filesystem::path(weights_cache);
  if (weights_cache != "auto") prepare_named_cache(options.weights.cache);
  options.model.max_batch_tokens = batch_tokens;
  options.model.batch_invariant = batch_invariant;
  options.max_length = max_length;
  options.over_limit = named(kOverLimit, over_limit, "--over-limit").value;
  if (special_as_text) options.in_text = text::SpecialTokens::as_text;
  return options;
}

}  // namespace warpwright::cli
