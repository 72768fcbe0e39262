// --dtype, and models given by a folder.
#pragma once

#include <CLI/CLI.hpp>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "core/dtype.hpp"
#include "model/decoder_files.hpp"
#include "model/packed_decoder.hpp"
#include "text/tokenizer.hpp"
#include "train/step.hpp"

namespace warpwright::cli {

// --dtype: fp32, tf32, bf16 and others: "auto", "fp16", "int8". Encoders have a flag of their own
// (encoder_flags.hpp).
void add_dtype_flag(CLI::App& command, std::string& dtype, const std::vector<std::string>& others = {});
// The dtype of weights and activations: fp32 for "fp32" and "tf32" (a mode of products,
// DeviceFlags::context_options), bf16 or fp16. UsageError for any other name.
DType compute_dtype(const std::string& name);
// For inference on this device: the same, or int8. UsageError if the device has no kernels for int8.
Precision precision_named(const std::string& name, const DeviceInfo& device);

// The words of --recompute, and the one that a word names; UsageError for any other.
std::vector<std::string> recompute_names();
Recompute recompute_named(const std::string& name);
// Those of --optimizer.
std::vector<std::string> optimizer_names();
Optimizer optimizer_named(const std::string& name);
// Those of --shard, and auto.
std::vector<std::string> sharding_names();
Sharding sharding_named(const std::string& name);

// --allow-data-change and --allow-tokenizer-change, the same in every command that compares them.
void add_data_change_flag(CLI::App& command, bool& allow);
void add_tokenizer_change_flag(CLI::App& command, bool& allow);

// Prints a line on standard error, or nothing for "". Only rank 0 prints.
void notify(const std::string& line);
// Prints lines of this command as notify() does, "warpwright: COMMAND: LINE".
std::function<void(const std::string&)> notify_of(std::string command);

// Throws Error if there is no model, saying what is there: nothing, or a run that has not written one.
void require_model(const std::filesystem::path& source);

// The model of --model: FAMILY:SIZE, with another vocabulary and context if they are not 0, or a folder's;
// UsageError for anything else.
std::shared_ptr<const Decoder> decoder_of(const std::string& model, std::int64_t vocab = 0,
                                          std::int64_t context = 0);

// Tokens in a sequence if no option says how many: the model's context, at most 2048.
std::int64_t default_sequence(const Decoder& decoder);

// Loads the folder's (or .bin's) model for inference in the named precision. "auto" means bf16 for bf16
// weights, else fp32.
DecoderWeights load_model(const Context& context, const std::filesystem::path& source,
                          const std::string& dtype);

// Loads the tokenizer in `folder` or, if that is empty, in the model's. Throws Error if it has ids beyond the
// model's vocabulary. Throws Error if the model was trained with another tokenizer; with `allow_change` it
// reports that on standard error instead.
text::Tokenizer load_tokenizer(const std::filesystem::path& model, const std::filesystem::path& folder,
                               const Decoder& decoder, bool allow_change);

}  // namespace warpwright::cli
