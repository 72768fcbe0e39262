#include "train/checkpoint.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <span>

#include "core/error.hpp"
#include "model/decoder_files.hpp"
#include "model/safetensors.hpp"
#include "runtime/file.hpp"
#include "runtime/host_view.hpp"
#include "runtime/json.hpp"

namespace warpwright {
namespace {

namespace fs = std::filesystem;

constexpr int kVersion = 3, kVersionWithoutChecksum = 1;
constexpr std::uint64_t kMostStateBytes = 16 << 20;
constexpr const char* kNeeded[] = {"config.json", "model.safetensors", "optimizer.safetensors"};
constexpr int kStateDepth = 16;
constexpr const char* kRemedy = "resume from another checkpoint: delete this one";
constexpr std::string_view kPrefix = "step_";

std::string folder_name(std::int64_t step) {
  return fmt::format("{}{:08}", kPrefix, step);
}

void write_optimizer(const fs::path& path, const TrainingStep& step) {
  std::vector<TensorInfo> infos;
  const TrainingStep::Tensors& t = step.tensors();
  for (const OptimizerTensor& tensor : optimizer_tensors(t.parameters, t.optimizer)) {
    infos.push_back({tensor.name, tensor.dtype, tensor.shape});
  }
  TensorFileWriter writer = write_safetensors(path, infos);
  step.gather_optimizer(
      [&](const std::string& name, std::span<const std::byte> bytes) { writer.write(name, bytes); });
  writer.commit();
}

// Reads the pieces of the rank.
void read_optimizer(const fs::path& path, const TrainingStep::Tensors& tensors, const Stream& stream) {
  const SafetensorsFile file(path);
  for (const OptimizerTensor& tensor : optimizer_tensors(tensors.parameters, tensors.optimizer)) {
    const SafetensorsEntry* entry = file.find(tensor.name);
    if (!entry || entry->dtype != tensor.dtype || entry->shape != tensor.shape) {
      throw Error(
          fmt::format("has no {} of {} {}", tensor.name, name_of(tensor.dtype), tensor.shape.to_string()),
          path.string(), "resume with the model and dtype of the run");
    }
    const auto bytes = file.bytes(*entry);
    const ShardPieces& pieces = tensors.optimizer.pieces;
    for (std::size_t i = 0; i < pieces.size(); ++i) {
      if (pieces[i].tensor != tensor.parameter) continue;
      const Tensor& piece = (tensors.optimizer.*tensor.set)[i];
      const std::size_t row = piece.bytes() / static_cast<std::size_t>(pieces[i].rows);
      const auto part = bytes.subspan(static_cast<std::size_t>(pieces[i].first) * row, piece.bytes());
      write_on_host(piece, stream,
                    [&](const Tensor& host) { std::ranges::copy(part, bytes_of(host).data()); });
    }
  }
}

// The checksum of everything in trainer.json but itself.
std::string checksum_of_state(nlohmann::json json) {
  json.erase("checksum");
  const std::string text = json.dump();
  return checksum_of(std::as_bytes(std::span(text)));
}

nlohmann::json read_json(const fs::path& checkpoint) {
  const fs::path path = checkpoint / "trainer.json";
  nlohmann::json json = parse_json(read_file(path, kMostStateBytes), path.string(), kStateDepth, kRemedy);
  const auto version = json.is_object() ? json.value("version", nlohmann::json()) : nlohmann::json();
  if (!version.is_number_integer() || version < kVersionWithoutChecksum || version > kVersion) {
    throw Error(fmt::format("is not the state of a trainer (version {})", kVersion), path.string(), kRemedy);
  }
  const bool has_checksum = json.contains("checksum");
  if (has_checksum != (version != kVersionWithoutChecksum) ||
      (has_checksum && json["checksum"] != checksum_of_state(json))) {
    throw Error("is damaged: its checksum does not match", path.string(), kRemedy);
  }
  return json;
}

// A folder that holds what a checkpoint does, and nothing else.
Replaceable replaceable_checkpoint() {
  Replaceable folder = replaceable_model_folder();
  folder.kind = "a checkpoint";
  folder.files.insert(folder.files.end(), {"optimizer.safetensors", "trainer.json"});
  return folder;
}

// The step of "step_00001000", or nothing.
std::optional<std::int64_t> step_of(std::string_view name) {
  if (!name.starts_with(kPrefix)) return std::nullopt;
  std::int64_t step = 0;
  const char* end = name.data() + name.size();
  const auto parsed = std::from_chars(name.data() + kPrefix.size(), end, step);
  // Only our own spelling counts: old checkpoints are deleted, and "step_1000" is somebody's copy.
  const bool ours = parsed.ec == std::errc() && parsed.ptr == end && step >= 0 && folder_name(step) == name;
  return ours ? std::optional(step) : std::nullopt;
}

}  // namespace

std::vector<Checkpoint> list_checkpoints(const fs::path& run) {
  std::vector<Checkpoint> list;
  const fs::path folder = run / "checkpoints";
  if (!path_exists(folder)) return list;
  for (const fs::path& entry : list_folder(folder)) {
    const auto step = step_of(entry.filename().string());
    if (step && is_folder(entry)) list.push_back({*step, entry});
  }
  std::sort(list.begin(), list.end(), [](const auto& a, const auto& b) { return a.step < b.step; });
  return list;
}

fs::path save_checkpoint(const fs::path& run, const TrainerState& state, const Decoder& decoder,
                         std::int64_t eos_token, const fs::path& tokenizer, const TrainingStep& step) {
  const fs::path target = run / "checkpoints" / folder_name(state.step);
  AtomicFolder folder(target, replaceable_checkpoint());
  decoder.save(folder.folder(), step.tensors().parameters, step.parameter_reader(), eos_token);
  write_optimizer(folder.folder() / "optimizer.safetensors", step);
  copy_tokenizer(tokenizer, folder.folder());
  if (state.origin) write_origin(folder.folder(), *state.origin);
  nlohmann::json json = {{"version", kVersion},
                         {"step", state.step},
                         {"options", state.options},
                         {"settings", state.settings},
                         {"plan_hash", fmt::format("{:016x}", state.plan_hash)},
                         {"loss_window", state.loss_window},
                         {"norm_window", state.norm_window}};
  if (state.origin) json["origin"] = to_json(*state.origin);
  if (!state.unreported.is_null()) json["unreported"] = state.unreported;
  for (const fs::path& file : list_folder(folder.folder())) {
    json["checksums"][file.filename().string()] = checksum_of(file);
  }
  json["checksum"] = checksum_of_state(json);
  write_file_atomically(folder.folder() / "trainer.json", json.dump(2) + "\n");
  folder.commit();
  return target;
}

TrainerState read_trainer_state(const fs::path& checkpoint) {
  const nlohmann::json json = read_json(checkpoint);
  try {
    TrainerState state;
    state.step = json.at("step").get<std::int64_t>();
    state.options = json.at("options");
    state.settings = json.value("settings", nlohmann::json::object());
    state.unreported = json.value("unreported", nlohmann::json());
    if (json.contains("origin")) state.origin = model_origin(json.at("origin"));
    state.plan_hash = std::stoull(json.at("plan_hash").get<std::string>(), nullptr, 16);
    state.loss_window = json.at("loss_window").get<std::vector<double>>();
    state.norm_window = json.at("norm_window").get<std::vector<double>>();
    const bool whole = json.at("step").is_number_integer() && state.step >= 0 &&
                       checkpoint.filename() == folder_name(state.step) && state.options.is_object() &&
                       state.settings.is_object() && json.at("checksums").is_object();
    if (!whole) throw std::range_error("");
    return state;
  } catch (
      const std::exception&) {  // of the JSON library and stoull: a field that is missing or of another type
    throw Error("a field is missing or of the wrong type", (checkpoint / "trainer.json").string(), kRemedy);
  }
}

TrainerState verified_trainer_state(const fs::path& checkpoint) {
  TrainerState state = read_trainer_state(checkpoint);
  const nlohmann::json checksums = read_json(checkpoint).at("checksums");
  for (const char* name : kNeeded) {
    if (!checksums.contains(name)) {
      throw Error(fmt::format("has no checksum of {}", name), (checkpoint / "trainer.json").string(),
                  kRemedy);
    }
  }
  for (const auto& [name, checksum] : checksums.items()) {
    if (fs::path(name).filename() != name || checksum != checksum_of(checkpoint / name)) {
      throw Error("is damaged: its checksum is not the one in trainer.json", (checkpoint / name).string(),
                  kRemedy);
    }
  }
  return state;
}

void load_checkpoint(const fs::path& checkpoint, const TrainingStep& step, const Stream& stream) {
  read_decoder(checkpoint)->load(checkpoint, step.parameter_writer());
  read_optimizer(checkpoint / "optimizer.safetensors", step.tensors(), stream);
}

std::vector<std::string> prune_checkpoints(const fs::path& run, std::int64_t keep, std::int64_t keep_every,
                                           const std::set<std::int64_t>& damaged) {
  std::vector<std::string> failures;
  if (keep == 0) return failures;
  std::vector<Checkpoint> list = list_checkpoints(run);
  std::erase_if(list, [&](const Checkpoint& c) { return damaged.contains(c.step); });
  for (std::size_t i = 0; i + static_cast<std::size_t>(keep) < list.size(); ++i) {
    if (keep_every > 0 && list[i].step % keep_every == 0) continue;
    try {
      delete_folder(list[i].folder);
    } catch (const Error& error) {
      failures.push_back(fmt::format("warning: {}", error.what()));
    }
  }
  return failures;
}

}  // namespace warpwright
