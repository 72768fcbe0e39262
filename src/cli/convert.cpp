// warpwright convert: decoders between Hugging Face folders and llm.c files.
#include <fmt/format.h>

#include "cli/checks.hpp"
#include "cli/command.hpp"
#include "cli/model_flags.hpp"
#include "cli/standard_streams.hpp"
#include "core/error.hpp"
#include "infer/decoder_texts.hpp"
#include "infer/origin.hpp"
#include "model/decoder_files.hpp"
#include "model/gpt2_decoder.hpp"
#include "model/gpt2_llmc.hpp"
#include "runtime/file.hpp"
#include "runtime/json.hpp"

namespace warpwright::cli {
namespace {

struct ConvertFlags {
  std::filesystem::path from, to, tokenizer;
  std::string format, dtype = "auto";
  bool force = false, allow_tokenizer_change = false;
};

std::optional<Replaceable> replaceable_model(const ConvertFlags& flags) {
  return flags.force ? std::optional(replaceable_model_folder(flags.to)) : std::nullopt;
}

// The contents of a model folder other than its weights.
struct Companions {
  std::filesystem::path tokenizer;  // empty: none
  BoundaryTokens tokens;
};

// The tokenizer's end-of-text token counts if it is given by --tokenizer, or if the model names none.
Companions companions_of(const ConvertFlags& flags, const Decoder& decoder) {
  Companions found;
  const bool from_folder = is_folder(flags.from);
  found.tokenizer = flags.tokenizer;
  if (flags.tokenizer.empty() && from_folder && text::has_tokenizer(flags.from)) found.tokenizer = flags.from;
  const bool asks_tokenizer =
      !flags.tokenizer.empty() || (from_folder && read_boundary_tokens(flags.from).eos.empty());
  std::optional<text::Tokenizer> tokenizer;
  if (asks_tokenizer && !found.tokenizer.empty()) {
    tokenizer = load_tokenizer(flags.from, flags.tokenizer, decoder, flags.allow_tokenizer_change);
  }
  found.tokens = boundary_tokens(flags.from, decoder, tokenizer ? &*tokenizer : nullptr);
  return found;
}

// "bos 1, eos 2"
std::string text_of(const BoundaryTokens& tokens) {
  return fmt::format("bos {}, eos {}", tokens.bos ? std::to_string(*tokens.bos) : "none",
                     tokens.eos.empty() ? "none" : fmt::format("{}", fmt::join(tokens.eos, " or ")));
}

// Writes a .bin; returns a note on what the format cannot hold.
std::string write_llmc(const ConvertFlags& flags, const DecoderWeights& model) {
  const auto* gpt2 = dynamic_cast<const GPT2Decoder*>(model.decoder.get());
  if (!gpt2) {
    throw UsageError(
        fmt::format("llm.c's format holds GPT-2 only, and {} is another model", quote(flags.from.string())),
        "--format", "use hf");
  }
  write_gpt2_llmc(flags.to, gpt2->sizes(), model.parameters, Stream());
  if (!is_folder(flags.from)) return {};
  const BoundaryTokens tokens = read_boundary_tokens(flags.from);
  const bool rounds = model.dtype == DType::bf16;
  return fmt::format(
      "the file has no place for the tokenizer and for the ids of the tokens that begin and end a text "
      "({}): to convert back, keep {} and give it with --tokenizer\n{}",
      text_of(tokens), flags.from.string(),
      rounds ? "in bf16 the format holds the norms' fp32 parameters rounded to bf16\n" : "");
}

// Writes a folder; returns a note on what it lacks.
std::string write_folder(const ConvertFlags& flags, const DecoderWeights& model) {
  const Companions companions = companions_of(flags, *model.decoder);
  AtomicFolder folder(flags.to, replaceable_model(flags));
  const Stream stream;
  model.decoder->save(folder.folder(), model.parameters, reader_of(model.parameters, stream),
                      companions.tokens);
  if (!companions.tokenizer.empty()) copy_tokenizer(companions.tokenizer, folder.folder());
  // Its ids are those of the model's own tokenizer.
  if (flags.tokenizer.empty()) copy_generation_config(flags.from, folder.folder());
  const auto origin = flags.tokenizer.empty() ? read_origin(flags.from) : std::nullopt;
  if (origin) write_origin(folder.folder(), *origin);
  folder.commit();
  if (!companions.tokenizer.empty()) return {};
  return fmt::format(
      "the folder has no tokenizer, because none was given; config.json names the tokens that begin and end "
      "a text ({}). To add a tokenizer and its ids, give --tokenizer\n",
      text_of(companions.tokens));
}

void run(const ConvertFlags& flags) {
  const bool llmc = flags.format == "llmc";
  if (!llmc) require_replaceable(flags.to, replaceable_model(flags));
  require_model(flags.from);
  const DType dtype = flags.dtype == "auto" ? stored_dtype(flags.from) : compute_dtype(flags.dtype);
  if (llmc && dtype == DType::f16) {
    throw UsageError("llm.c has no format for fp16", "--dtype", "choose fp32 or bf16");
  }
  if (llmc && !flags.tokenizer.empty()) {
    throw UsageError("llm.c's format holds no tokenizer", "--tokenizer", "leave it out, or use --format hf");
  }
  const DecoderWeights model = load_weights(flags.from, dtype);
  const std::string lacks = llmc ? write_llmc(flags, model) : write_folder(flags, model);
  const std::string summary = fmt::format("{}{}: {} parameters in {}\n", lacks, flags.to.string(),
                                          human_count(model.decoder->parameter_count()), name_of(dtype));
  // Standard output may be the file.
  is_replaced(flags.to) ? write_output(summary) : write_message(summary);
}

}  // namespace

void add_convert(CLI::App& app) {
  CLI::App* command = app.add_subcommand(
      "convert",
      "Convert a decoder between file formats; bit-exact in one dtype, except norms in a bf16 llm.c file");
  auto f = std::make_shared<ConvertFlags>();
  command->add_option("--from", f->from, "Model folder or llm.c .bin")->required();
  command->add_option("--to", f->to, "Folder (hf) or file (llmc) to write")->required();
  command
      ->add_option("--format", f->format,
                   "hf (config.json, model.safetensors) or llmc (GPT-2's .bin, version 3 or 5)")
      ->required()
      ->check(one_of({"hf", "llmc"}));
  command->add_option(
      "--tokenizer", f->tokenizer,
      "hf: folder of the tokenizer, whose end-of-text token gives the bos and eos ids; default: the "
      "model folder's");
  add_tokenizer_change_flag(*command, f->allow_tokenizer_change);
  command->add_flag("--force", f->force, "Replace the folder if it holds a model and nothing else");
  command->add_option("--dtype", f->dtype, "fp32, bf16 or auto (as stored)")
      ->capture_default_str()
      ->check(one_of({"auto", "fp32", "bf16"}));
  command->callback([f] { run(*f); });
}

}  // namespace warpwright::cli
