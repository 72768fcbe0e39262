// --dtype, and models given by a folder.
#pragma once

#include <CLI/CLI.hpp>
#include <filesystem>
#include <functional>
#include <string>

#include "core/dtype.hpp"
#include "model/gpt2_files.hpp"
#include "text/tokenizer.hpp"

namespace warpwright::cli {

// Of weights and activations: fp32 for "fp32" and "tf32" (a mode of products, DeviceFlags::context_options),
// bf16 for "bf16"; UsageError for anything else.
DType compute_dtype(const std::string& name);

// "none", "gelu", "norm" or "block"; UsageError for anything else.
Recompute recompute_named(const std::string& name);

// --allow-data-change and --allow-tokenizer-change, the same in every command that compares them.
void add_data_change_flag(CLI::App& command, bool& allow);
void add_tokenizer_change_flag(CLI::App& command, bool& allow);

// Prints a line on standard error; nothing for "".
void notify(const std::string& line);
// Prints lines of this command as notify() does, "warpwright: COMMAND: LINE".
std::function<void(const std::string&)> notify_of(std::string command);

// Throws Error if there is no model, saying what is there: nothing, or a run that has not written one.
void require_model(const std::filesystem::path& source);

// The sizes of --model: gpt2:NAME, or a model's folder; UsageError for anything else.
GPT2Config gpt2_config_of(const std::string& model);

// A model of the folder (or .bin) in the dtype by name, "auto" being bf16 for bf16 weights and fp32 for the
// rest.
GPT2Model load_model(const std::filesystem::path& source, const std::string& dtype, Device device);

// The tokenizer in `folder` or, if that is empty, in the model's. Throws Error if it has ids beyond the
// model's vocabulary, or if it is not the tokenizer the model was trained with; with `allow_change` the
// latter is only reported on standard error.
text::Tokenizer load_tokenizer(const std::filesystem::path& model, const std::filesystem::path& folder,
                               const GPT2Config& config, bool allow_change);

}  // namespace warpwright::cli
