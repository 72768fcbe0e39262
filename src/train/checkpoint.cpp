#include "train/checkpoint.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <map>
#include <span>

#include "core/system_error.hpp"
#include "model/decoder_files.hpp"
#include "model/safetensors.hpp"
#include "model/safetensors_folder.hpp"
#include "runtime/host_view.hpp"
#include "runtime/json.hpp"
#include "runtime/output_target.hpp"
#include "runtime/threads.hpp"

namespace warpwright {
namespace {

namespace fs = std::filesystem;

constexpr int kVersion = 5, kVersionWithoutChecksum = 1;
constexpr int kMostRanks = 1 << 20;
constexpr std::uint64_t kMostStateBytes = 16 << 20;
constexpr int kStateDepth = 16;
constexpr const char* kOfTheRun = "resume with the model and dtype of the run";
constexpr const char* kRemedy = "resume from another checkpoint: delete this one";
constexpr std::string_view kPrefix = "step_";

std::string folder_name(std::int64_t step) {
  return fmt::format("{}{:08}", kPrefix, step);
}

std::string file_name(std::string_view content, int index, int count) {
  return shard_name(content, static_cast<std::size_t>(index), static_cast<std::size_t>(count));
}

void write_tensors(const fs::path& path, const DecoderParameters& tensors, const Stream& stream) {
  std::vector<TensorInfo> infos;
  for (const auto& [name, tensor] : tensors) infos.push_back({name, tensor.dtype, tensor.shape});
  TensorFileWriter writer = write_safetensors(path, infos);
  for (const auto& [name, tensor] : tensors)
    writer.write(name, bytes_of(downloaded(tensor, stream).tensor()));
  writer.commit();
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
  if (version.is_number_integer() && version > kVersion) {
    throw NewerCheckpoint(
        fmt::format("was written by a newer warpwright (version {}; this one reads up to {})", version.dump(),
                    kVersion),
        path.string(), "resume with that build, or train into another folder");
  }
  if (!version.is_number_integer() || version < kVersionWithoutChecksum) {
    throw Error(fmt::format("is not the state of a trainer (version {})", kVersion), path.string(), kRemedy);
  }
  const bool has_checksum = json.contains("checksum");
  if (has_checksum != (version != kVersionWithoutChecksum) ||
      (has_checksum && json["checksum"] != checksum_of_state(json))) {
    throw Error("is damaged: its checksum does not match", path.string(), kRemedy);
  }
  return json;
}

// The ranks that have written the checkpoint. Those of version 3 and older have one part.
int ranks_of(const nlohmann::json& json) {
  const auto ranks = json.value("ranks", nlohmann::json(1));
  return ranks.is_number_integer() && ranks >= 1 && ranks <= kMostRanks ? ranks.get<int>() : 0;
}

// The fields of trainer.json. A field that is missing or of another type is an Error that names it.
class StateFields {
 public:
  StateFields(const nlohmann::json& json, std::string where) : json_(json), where_(std::move(where)) {}

  // The result of `convert` for a field. It throws a nlohmann::json::exception for another type.
  template <class Convert>
  auto read(const char* key, const Convert& convert) const {
    try {
      return convert(json_.at(key));
    } catch (const nlohmann::json::exception&) {
      refuse(key);
    }
  }
  template <class T>
  T value(const char* key) const {
    return read(key, [](const nlohmann::json& field) { return field.get<T>(); });
  }
  nlohmann::json object(const char* key) const {
    nlohmann::json field = value<nlohmann::json>(key);
    if (!field.is_object()) refuse(key);
    return field;
  }
  [[noreturn]] void refuse(const char* key) const {
    throw Error(fmt::format("\"{}\" is missing or wrong", key), where_, kRemedy);
  }

 private:
  const nlohmann::json& json_;
  const std::string where_;
};

std::uint64_t plan_hash_in(const StateFields& fields) {
  const auto digits = fields.value<std::string>("plan_hash");
  std::uint64_t hash = 0;
  const char* end = digits.data() + digits.size();
  const auto parsed = std::from_chars(digits.data(), end, hash, 16);
  if (parsed.ec != std::errc() || parsed.ptr != end) fields.refuse("plan_hash");
  return hash;
}

// Compares this rank's share of the files with their checksums.
void verify_files(const fs::path& checkpoint, const Comm& comm) {
  const nlohmann::json json = read_json(checkpoint), checksums = json.at("checksums");
  std::vector<std::string> needed = {"config.json"};
  needed.push_back(checksums.contains(kSafetensorsIndex) ? kSafetensorsIndex : kSafetensors);
  const int ranks = ranks_of(json);
  for (int r = 0; r < ranks; ++r) needed.push_back(file_name("optimizer", r, ranks));
  for (const std::string& name : needed) {
    if (!checksums.contains(name)) {
      throw Error(fmt::format("has no checksum of {}", name), (checkpoint / "trainer.json").string(),
                  kRemedy);
    }
  }
  int index = 0;
  for (const auto& [name, checksum] : checksums.items()) {
    if (index++ % comm.size() != comm.rank()) continue;
    if (fs::path(name).filename() != name || checksum != checksum_of(checkpoint / name)) {
      throw Error("is damaged: its checksum is not the one in trainer.json", (checkpoint / name).string(),
                  kRemedy);
    }
  }
}

// The optimizer's state in the parts of all ranks.
class OptimizerFiles {
 public:
  OptimizerFiles(const fs::path& checkpoint, int ranks) {
    for (int r = 0; r < ranks; ++r) files_.emplace_back(checkpoint / file_name("optimizer", r, ranks));
    for (const SafetensorsFile& file : files_) {
      for (const SafetensorsEntry& entry : file.entries()) note(file, entry);
    }
  }

  bool has(const std::string& tensor) const { return rows_.contains(tensor); }
  std::string folder() const { return files_.front().path().parent_path().string(); }

  // Fills `host` with the rows of the tensor from `first` on.
  void read(const OptimizerTensor& tensor, std::int64_t first, const Tensor& host) const {
    const std::int64_t end = first + host.shape[0];
    std::int64_t next = first;
    const auto found = rows_.find(tensor.name);
    while (next < end) {
      if (found == rows_.end()) lacks(tensor, next);
      const auto after = found->second.upper_bound(next);
      if (after == found->second.begin()) lacks(tensor, next);
      const auto& [begin, stored] = *std::prev(after);
      const std::int64_t count = std::min(begin + stored.entry->shape[0], end) - next;
      if (count <= 0) lacks(tensor, next);
      copy_rows(tensor, stored, next - begin, host.slice(0, next - first, count));
      next += count;
    }
  }

 private:
  struct Stored {
    const SafetensorsFile* file;
    const SafetensorsEntry* entry;
  };

  [[noreturn]] void lacks(const OptimizerTensor& tensor, std::int64_t row) const {
    throw Error(fmt::format("has no row {} of {} {} {}", row, tensor.name, name_of(tensor.dtype),
                            tensor.shape.to_string()),
                folder(), kOfTheRun);
  }

  // "m.wte.weight[128:256]": from row 128 on.
  void note(const SafetensorsFile& file, const SafetensorsEntry& entry) {
    if (entry.shape.rank() == 0) return;
    const std::string_view name = entry.name;
    const std::size_t bracket = std::min(name.find('['), name.size());
    std::int64_t first = 0;
    if (bracket < name.size()) std::from_chars(name.data() + bracket + 1, name.data() + name.size(), first);
    rows_[std::string(name.substr(0, bracket))][first] = {&file, &entry};
  }

  static void copy_rows(const OptimizerTensor& tensor, const Stored& stored, std::int64_t first,
                        const Tensor& host) {
    Shape row = stored.entry->shape, wanted = tensor.shape;
    row[0] = wanted[0] = 1;
    if (stored.entry->dtype != tensor.dtype || row != wanted) {
      throw Error(
          fmt::format("{} is {} {}, not rows of {} {}", stored.entry->name, stored.entry->stored_dtype,
                      stored.entry->shape.to_string(), name_of(tensor.dtype), tensor.shape.to_string()),
          stored.file->path().string(), kOfTheRun);
    }
    const std::size_t bytes = host.bytes() / static_cast<std::size_t>(host.shape[0]);
    const auto rows = stored.file->bytes(*stored.entry).subspan(static_cast<std::size_t>(first) * bytes);
    std::ranges::copy(rows.first(host.bytes()), bytes_of(host).data());
  }

  std::vector<SafetensorsFile> files_;
  std::map<std::string, std::map<std::int64_t, Stored>> rows_;  // of each tensor, by their first
};

// The first element whose master does not round to its weight, or the number of elements.
std::int64_t first_other(const Tensor& masters, const Tensor& weights) {
  const float* master = masters.as<float>();
  const bf16* weight = weights.as<bf16>();
  const std::int64_t count = masters.elements();
  std::int64_t first = count;
#pragma omp parallel for schedule(static) num_threads(claimed_threads()) reduction(min : first)
  for (std::int64_t i = 0; i < count; ++i) {
    if (i < first && bf16(master[i]).bits != weight[i].bits) first = i;
  }
  return first;
}

// Before version 5 a checkpoint has whole masters. parameters: the rows that they belong to.
void read_masters(const OptimizerFiles& files, const OptimizerTensor& tensor, std::int64_t first,
                  const Tensor& host, const Tensor& parameters) {
  HeapAllocator heap;
  const Tensor masters = heap.allocate(tensor.name, DType::f32, host.shape, Category::master_weights);
  files.read(tensor, first, masters);
  if (const std::int64_t i = first_other(masters, parameters); i < masters.elements()) {
    throw Error(fmt::format("{} is not its weight in full precision: {} for {}", tensor.name,
                            masters.as<float>()[i], static_cast<float>(parameters.as<bf16>()[i])),
                files.folder(), kRemedy);
  }
  set_remainders(host, masters);
}

// Fills `host` with piece i of the tensor.
void read_piece(const OptimizerFiles& files, const OptimizerTensor& tensor, const OptimizerShard& shard,
                std::size_t i, const Tensor& host, const Stream& stream) {
  const std::int64_t first = shard.pieces[i].first;
  if (tensor.set != &OptimizerShard::remainders) return files.read(tensor, first, host);
  OptimizerTensor master = tensor;
  master.dtype = DType::f32;
  master.name.replace(0, kRemainderPrefix.size(), "master.");
  if (!files.has(master.name)) return files.read(tensor, first, host);
  if (files.has(tensor.name)) {
    throw Error(fmt::format("has both {} and {}", master.name, tensor.name), files.folder(), kRemedy);
  }
  read_masters(files, master, first, host, downloaded(shard.parameters[i], stream).tensor());
}

// A folder that holds what a checkpoint does, and nothing else.
Replaceable replaceable_checkpoint(const fs::path& folder) {
  folder_target(folder);  // throws for a file
  Replaceable replaceable = replaceable_model_folder(folder);
  replaceable.kind = "a checkpoint";
  auto& files = replaceable.files;
  files.insert(files.end(), {"optimizer.safetensors", "trainer.json"});
  for (std::string& part : shards_in(folder, "optimizer")) files.push_back(std::move(part));
  return replaceable;
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

void require_replaceable_checkpoints(const fs::path& run, std::int64_t done, std::int64_t last) {
  for (const fs::path& entry : list_folder(run / "checkpoints")) {
    const auto step = step_of(entry.filename().string());
    if (step && *step > done && *step <= last) require_replaceable(entry, replaceable_checkpoint(entry));
  }
}

NewCheckpoint::NewCheckpoint(const fs::path& run, std::int64_t step)
    : target_(run / "checkpoints" / folder_name(step)), folder_(target_, replaceable_checkpoint(target_)) {}

Checksums write_part(const fs::path& folder, const StatePart& part, int rank, int ranks,
                     const Decoder& decoder, const Stream& stream) {
  std::vector<std::string> files;
  if (!part.parameters.empty()) {
    files.push_back(file_name("model", rank, part.files_of_weights));
    decoder.save_weights(folder / files.back(), part.parameters, reader_of(part.parameters, stream));
  }
  files.push_back(file_name("optimizer", rank, ranks));
  write_tensors(folder / files.back(), part.optimizer, stream);
  Checksums checksums;
  for (const std::string& file : files) checksums[file] = checksum_of(folder / file);
  return checksums;
}

void NewCheckpoint::complete(const TrainerState& state, const Decoder& decoder,
                             const BoundaryTokens& boundary, const TokenizerFiles& tokenizer,
                             const Checksums& parts) {
  decoder.save_config(folder(), boundary);
  write_tokenizer_files(tokenizer, folder());
  if (state.origin) write_origin(folder(), *state.origin);
  std::vector<std::string> weights;
  for (const auto& [name, checksum] : parts) {
    if (name.starts_with("model-")) weights.push_back(name);
  }
  if (!weights.empty()) write_safetensors_index(folder(), weights);
  nlohmann::json json = {{"version", kVersion},
                         {"step", state.step},
                         {"options", state.options},
                         {"settings", state.settings},
                         {"plan_hash", fmt::format("{:016x}", state.plan_hash)},
                         {"loss_window", state.loss_window},
                         {"norm_window", state.norm_window},
                         {"ranks", state.ranks},
                         {"checksums", parts}};
  if (state.origin) json["origin"] = to_json(*state.origin);
  if (!state.unreported.is_null()) json["unreported"] = state.unreported;
  for (const fs::path& file : list_folder(folder())) {
    const std::string name = file.filename().string();
    if (!parts.contains(name)) json["checksums"][name] = checksum_of(file);
  }
  json["checksum"] = checksum_of_state(json);
  write_file_atomically(folder() / "trainer.json", json.dump(2) + "\n");
  folder_.commit();
}

TrainerState read_trainer_state(const fs::path& checkpoint) {
  const nlohmann::json json = read_json(checkpoint);
  const StateFields fields(json, (checkpoint / "trainer.json").string());
  TrainerState state;
  state.step = fields.value<std::int64_t>("step");
  if (checkpoint.filename() != folder_name(state.step)) fields.refuse("step");
  state.options = fields.object("options");
  state.options.emplace("optimizer", "adamw");  // of an older checkpoint, as the next
  state.options.emplace("reduce", "tree");
  state.settings = json.contains("settings") ? fields.object("settings") : nlohmann::json::object();
  state.unreported = json.value("unreported", nlohmann::json());
  if (json.contains("origin")) state.origin = fields.read("origin", model_origin);
  state.plan_hash = plan_hash_in(fields);
  state.loss_window = fields.value<std::vector<double>>("loss_window");
  state.norm_window = fields.value<std::vector<double>>("norm_window");
  fields.object("checksums");
  state.ranks = ranks_of(json);
  if (state.ranks == 0) fields.refuse("ranks");
  return state;
}

TrainerState verified_trainer_state(const fs::path& checkpoint, const Comm& comm) {
  TrainerState state;
  nlohmann::json problem;  // null: none
  try {
    state = read_trainer_state(checkpoint);
    verify_files(checkpoint, comm);
  } catch (const Error& error) {
    const bool newer = dynamic_cast<const NewerCheckpoint*>(&error) != nullptr;
    const auto* system = dynamic_cast<const SystemError*>(&error);
    problem = {error.problem(), error.where(), error.remedy(), newer, system ? system->code() : 0};
  }
  constexpr auto kRepair = nlohmann::json::error_handler_t::replace;  // of names that are not UTF-8
  for (const std::string& of_rank : comm.all_gather(problem.dump(-1, ' ', false, kRepair))) {
    const nlohmann::json first = nlohmann::json::parse(of_rank);
    if (first.is_null()) continue;
    if (first[3]) throw NewerCheckpoint(first[0], first[1], first[2]);
    if (first[4] != 0) throw SystemError(first[4], first[0], first[1], first[2]);
    throw Error(first[0], first[1], first[2]);
  }
  return state;
}

void load_checkpoint(const fs::path& checkpoint, const TrainingStep& step, const Stream& stream) {
  read_decoder(checkpoint)->load(checkpoint, step.parameter_writer());
  const OptimizerFiles files(checkpoint, ranks_of(read_json(checkpoint)));
  const TrainingStep::Tensors& t = step.tensors();
  for (const OptimizerTensor& tensor : optimizer_tensors(t.parameters, t.optimizer)) {
    const ShardPieces& pieces = t.optimizer.pieces;
    for (std::size_t i = 0; i < pieces.size(); ++i) {
      if (pieces[i].tensor != tensor.parameter) continue;
      write_on_host((t.optimizer.*tensor.set)[i], stream,
                    [&](const Tensor& host) { read_piece(files, tensor, t.optimizer, i, host, stream); });
    }
  }
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
