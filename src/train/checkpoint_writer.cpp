#include "train/checkpoint_writer.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <utility>

#include "core/human_bytes.hpp"
#include "runtime/out_of_memory.hpp"

namespace warpwright {
namespace {

namespace fs = std::filesystem;

template <class T>
bool is_ready(const std::future<T>& future) {
  return future.valid() && future.wait_for(std::chrono::seconds(0)) != std::future_status::timeout;
}

// If no thread can be made, get() does the work.
constexpr std::launch kInThread = std::launch::async | std::launch::deferred;

}  // namespace

CheckpointWriter::CheckpointWriter(const TrainOptions& options, const BoundaryTokens& boundary,
                                   const TokenizerFiles& tokenizer, std::set<std::int64_t> damaged,
                                   const Comm& comm, std::size_t ranks_here, Reports reports)
    : options_(options),
      boundary_(boundary),
      tokenizer_(tokenizer),
      damaged_(std::move(damaged)),
      comm_(comm),
      ranks_here_(ranks_here),
      reports_(std::move(reports)) {}

bool CheckpointWriter::can_copy(const StatePart& part, Device device) {
  if (copies_) return *copies_;
  if (part.bytes() * ranks_here_ <= available_memory()) {
    try {
      snapshot_.emplace(part, device);
    } catch (const OutOfMemory&) {  // not as much of it can be pinned
    }
  }
  const std::vector<double> all = gathered(comm_, {snapshot_ ? 1.0 : 0.0});
  copies_ = std::ranges::count(all, 1.0) == comm_.size();
  if (*copies_) return true;
  snapshot_.reset();
  if (leads()) {
    reports_.notice(
        fmt::format("no memory for a copy of the state ({} for each rank): training waits while a "
                    "checkpoint is written",
                    human_bytes(static_cast<double>(part.bytes()))));
  }
  return false;
}

void CheckpointWriter::write(const TrainerState& state, const TrainingStep& step, const Context& context,
                             Mode mode) {
  finish();
  state_ = state;
  if (leads()) checkpoint_.emplace(options_.out, state.step);
  const fs::path folder = comm_.all_gather(leads() ? checkpoint_->folder().string() : "").front();
  HeapAllocator heap;
  StatePart part = step.state_part(heap);
  const bool waits = mode == Mode::wait || !can_copy(part, context.device().device);
  if (!waits) part = snapshot_->copy_of(part, context.stream());
  const auto write = [this, folder, part, waits, &context] {
    const Stream of_copy;
    return write_part(folder, part, comm_.rank(), comm_.size(), *options_.step.model,
                      waits ? context.stream() : of_copy);
  };
  const std::launch how = waits ? std::launch::deferred : kInThread;
  if (comm_.size() == 1) {
    completion_ = std::async(how, [this, write] { return finish_and_prune(write()); });
  } else {
    part_ = std::async(how, write);
  }
  if (waits) finish();
}

void CheckpointWriter::poll() {
  if (is_ready(completion_)) report(completion_.get());
}

bool CheckpointWriter::has_written() const {
  return is_ready(part_);
}

void CheckpointWriter::complete() {
  Checksums parts;
  for (const std::string& text : comm_.all_gather(nlohmann::json(part_.get()).dump())) {
    parts.merge(nlohmann::json::parse(text).get<Checksums>());
  }
  if (leads()) completion_ = std::async(kInThread, [this, parts] { return finish_and_prune(parts); });
}

void CheckpointWriter::finish() {
  if (part_.valid()) complete();
  if (completion_.valid()) report(completion_.get());
  comm_.barrier();
}

std::vector<std::string> CheckpointWriter::finish_and_prune(const Checksums& parts) {
  checkpoint_->complete(state_, *options_.step.model, boundary_, tokenizer_, parts);
  damaged_.erase(state_.step);
  return prune_checkpoints(options_.out, options_.keep, options_.keep_every, damaged_);
}

void CheckpointWriter::report(const std::vector<std::string>& warnings) {
  for (const std::string& warning : warnings) reports_.notice(warning);
  reports_.complete(checkpoint_->target());
  checkpoint_.reset();
}

}  // namespace warpwright
