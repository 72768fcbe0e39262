#include "train/resume.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>

#include "core/system_error.hpp"
#include "runtime/file.hpp"

namespace warpwright {
namespace {

namespace fs = std::filesystem;

// True if a checkpoint is not whole. Otherwise it may be intact, and the run must not go on from an older
// one: a later version wrote it, or the system failed (no permission, too many open files, a disk that cannot
// be read).
bool is_damage(const Error& error) {
  if (dynamic_cast<const NewerCheckpoint*>(&error)) return false;
  const auto* system = dynamic_cast<const SystemError*>(&error);
  return !system || system->code() == ENOENT || system->code() == ENOTDIR;
}

std::optional<SavedRun> newest(const std::vector<Checkpoint>& list,
                               const std::function<TrainerState(const fs::path&)>& read,
                               const Notice& notice) {
  std::set<std::int64_t> damaged;
  for (auto c = list.rbegin(); c != list.rend(); ++c) {
    try {
      return SavedRun{c->folder, read(c->folder), damaged};
    } catch (const Error& error) {
      if (!is_damage(error)) throw;
      if (c + 1 == list.rend()) {
        throw Error(fmt::format("holds no intact checkpoint: {} {}", error.where(), error.problem()),
                    c->folder.parent_path().string(),
                    "restore one from a copy, or train into another folder");
      }
      if (notice) {
        notice(fmt::format("{} is damaged ({}: {}): the run goes on from the checkpoint before it",
                           c->folder.string(), error.where(), error.problem()));
      }
      damaged.insert(c->step);
    }
  }
  return std::nullopt;
}

}  // namespace

std::optional<SavedRun> newest_readable(const fs::path& run) {
  return newest(list_checkpoints(run), read_trainer_state, {});
}

std::optional<SavedRun> newest_whole(const fs::path& run, const Notice& notice, const Comm& comm) {
  const std::vector<Checkpoint> list = list_checkpoints(run);
  std::string steps;
  for (const Checkpoint& c : list) steps += fmt::format(" {}", c.step);
  const std::vector<std::string> all = comm.all_gather(steps);
  const auto other = std::ranges::find_if(all, [&](const std::string& text) { return text != all[0]; });
  if (other != all.end()) {
    throw Error(fmt::format("rank 0 sees the checkpoints{}, and rank {}{}", all[0].empty() ? " none" : all[0],
                            other - all.begin(), other->empty() ? " none" : *other),
                run.string(), "give all ranks the same folder, on a file system that they share");
  }
  return newest(
      list, [&](const fs::path& path) { return verified_trainer_state(path, comm); }, notice);
}

bool is_finished(const fs::path& run, const TrainerState& state, std::int64_t steps) {
  if (state.step != steps || !state.unreported.is_null()) return false;
  const auto origin = read_origin(run / "model");
  return origin && origin->step == state.step;
}

void clear_leftovers(const fs::path& run) {
  remove_stale_partials(run / "checkpoints");
  remove_stale_partials(run);
}

ModelOrigin origin_of(const TrainOptions& options, const Notice& notice) {
  std::vector<std::string> changed;
  const ModelOrigin origin = {
      .step = 0,
      .sequence = options.step.T,
      .tokenizer = text::fingerprint_in(options.data),
      .data = fingerprint_of_data(options.data, options.allow_data_change ? &changed : nullptr)};
  if (notice) {
    for (const std::string& line : changed) notice(line);
  }
  return origin;
}

void compare_origins(const ModelOrigin& saved, const ModelOrigin& present, const TrainOptions& options,
                     const Notice& notice) {
  const auto compare = [&](const std::string& differs, bool allowed, const char* flag) {
    if (differs.empty()) return;
    if (!allowed) {
      throw Error(fmt::format("is not what the run was trained on: {}", differs), options.data.string(),
                  fmt::format("restore it, train into another folder, or go on with {}", flag));
    }
    if (notice) notice(fmt::format("{} changed, the run goes on: {}", options.data.string(), differs));
  };
  if (saved.tokenizer && present.tokenizer) {
    const std::string parts = text::difference(*saved.tokenizer, *present.tokenizer);
    compare(parts.empty() ? "" : fmt::format("the tokenizer has changed: {}", parts),
            options.allow_tokenizer_change, "--allow-tokenizer-change");
  } else if (saved.tokenizer && notice) {
    notice(fmt::format("{} no longer has a tokenizer, so it was not compared", options.data.string()));
  } else if (present.tokenizer && notice) {
    notice(fmt::format("{} has a tokenizer, but the run records none to compare it with",
                       options.data.string()));
  }
  compare(difference(saved.data, present.data, options.data), options.allow_data_change,
          "--allow-data-change");
}

}  // namespace warpwright
