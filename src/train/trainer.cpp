#include "train/trainer.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <random>
#include <thread>
#include <utility>

#include "comm/host.hpp"
#include "core/error.hpp"
#include "infer/decoder_texts.hpp"
#include "model/decoder_files.hpp"
#include "runtime/partial.hpp"
#include "text/fingerprint.hpp"

namespace warpwright {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

// Thrown by work that a stop has made pointless. It never leaves this file.
struct Abandoned {};

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

bool has_metrics(const fs::path& run) {
  const fs::path path = run / "metrics.jsonl";
  return path_exists(path) && FileReader(path, FileReader::Kind::regular).size() > 0;
}

// The checkpoint to go on from. A folder that holds a run is refused unless it is to be resumed, or there is
// nothing to resume because the run ended before its first checkpoint.
std::optional<SavedRun> find_resume(const TrainOptions& o, const Notice& notice, const Comm& comm) {
  if (o.resume) {
    if (auto saved = newest_whole(o.out, notice, comm)) return saved;
  } else if (!list_checkpoints(o.out).empty() || path_exists(o.out / "model")) {
    throw Error("holds a run already", o.out.string(), "go on with --resume or choose another --out");
  }
  if (path_exists(o.out / "model")) {
    throw Error("holds a finished model and no checkpoint to go on from", o.out.string(),
                "start from it with --model and another --out");
  }
  if (notice && o.resume) {
    notice(fmt::format("{} holds no checkpoint: the run starts at step 0", o.out.string()));
  } else if (notice && has_metrics(o.out)) {
    notice(fmt::format("{} ended before its first checkpoint: the run starts again", o.out.string()));
  }
  return std::nullopt;
}

std::unique_ptr<ProvisionalFolder> prepared(const fs::path& run) {
  if (path_exists(run) && !is_folder(run)) {
    throw Error("is not a folder", run.string(), "choose another --out");
  }
  const bool is_empty =
      !is_folder(run) || list_folder(run).empty();  // first: another process may be filling it
  constexpr const char* kOfARun[] = {"checkpoints", "lock", "metrics.jsonl", "model", kTunedFile};
  const bool is_run = std::ranges::any_of(kOfARun, [&](const char* name) { return path_exists(run / name); });
  if (!is_empty && !is_run) {
    throw Error("holds files, but not a run", run.string(), "choose another --out");
  }
  auto folder = std::make_unique<ProvisionalFolder>(run);
  folder->make_folder("checkpoints");
  clear_leftovers(run);
  require_replaceable(run / "model", replaceable_model_folder(run / "model"));
  return folder;
}

// Every rank writes into the run's folder, so all must find there what rank 0 has put for this start alone.
// The machine of rank 0 sees it at once. A network file system may show it to others late.
void require_shared(const fs::path& run, const Comm& comm) {
  constexpr double kPatience = 60;
  constexpr std::chrono::milliseconds kPause(100);
  if (comm.size() == 1) return;
  const std::string mine = fs::absolute(run).string();
  std::optional<PartialFolder> sign;
  if (comm.rank() == 0) sign.emplace(run / fmt::format("start-{:08x}", std::random_device()()));
  const std::string machine = machine_id();
  std::string tells;
  if (sign) {
    tells = nlohmann::json({sign->path().filename().string(), machine, mine})
                .dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
  }
  const auto told = nlohmann::json::parse(comm.all_gather(tells).front());
  const fs::path path = run / told[0].get<std::string>();
  const double patience = told[1] == machine ? 0 : kPatience;
  bool is_there = path_exists(path);
  for (const auto start = Clock::now(); !is_there && seconds_since(start) < patience;) {
    std::this_thread::sleep_for(kPause);
    is_there = path_exists(path);
  }
  const std::string first = told[2].get<std::string>(), rank = rank_on_host(comm.rank());
  const std::string differs = first == mine
                                  ? fmt::format("{} is one folder for rank 0 and another for {}", mine, rank)
                                  : fmt::format("{} of rank 0 is not {} of {}", first, mine, rank);
  for (const std::string& problem : comm.all_gather(is_there ? "" : differs)) {
    if (problem.empty()) continue;
    throw Error(problem, "--out", "give all ranks the same folder, on a file system that they share");
  }
}

// The run's folder, on rank 0, once every rank has read what the folder holds. The others go on when it is
// prepared.
std::unique_ptr<ProvisionalFolder> locked(const fs::path& run, const Comm& comm) {
  comm.barrier();
  std::unique_ptr<ProvisionalFolder> folder;
  if (comm.rank() == 0) folder = prepared(run);
  require_shared(run, comm);
  return folder;
}

TrainOptions checked(Context& context, TrainOptions options, const Comm& comm) {
  options.validate();
  require_equal_shares(options.step, comm.size());
  options.step.sharding = chosen_sharding(context, options, comm);
  if (comm.size() > 1 && options.step.sharding == Sharding::parameters && options.sample_every > 0) {
    throw UsageError("needs all weights on rank 0, and --shard parameters divides them", "--sample-every",
                     "leave it out, or use --shard gradients");
  }
  options.step.halt_on_non_finite = options.on_non_finite == OnNonFinite::stop;
  options.step.rounding_seed = options.seed;
  return options;
}

// The tokens that begin and end a text in the models that a run writes. data.json names the end of text, and
// a model that has several keeps the others. A run without data.json keeps what the model that it began with
// (a folder, or another path) names, or asks a tokenizer.
BoundaryTokens boundary_of(const TrainOptions& o, const fs::path& begun_with, const Notice& notice) {
  const Decoder& decoder = *o.step.model;
  const auto exists = [&](std::int64_t id) { return id >= 0 && id < decoder.vocab(); };
  BoundaryTokens named = is_folder(begun_with) ? read_boundary_tokens(begun_with) : BoundaryTokens();
  const auto manifest = read_manifest(o.data);
  if (manifest) named = named.with_eos(manifest->end_of_text);
  if (const auto wrong = std::ranges::find_if_not(named.eos, exists); wrong != named.eos.end()) {
    throw Error(
        fmt::format("\"eos_token_id\" is {}, but the vocabulary has ids below {}", *wrong, decoder.vocab()),
        file_of_eos(begun_with).string(), "write the tokenizer's id, or null for none");
  }
  if (manifest) return named;
  std::optional<text::Tokenizer> tokenizer;
  if (named.eos.empty() && text::has_tokenizer(o.data)) tokenizer = text::Tokenizer::load(o.data);
  const bool asks = tokenizer && tokenizer->eos_id() && exists(*tokenizer->eos_id());
  const BoundaryTokens tokens = boundary_tokens(begun_with, decoder, asks ? &*tokenizer : nullptr);
  if (tokens.eos.empty()) {
    notice(
        fmt::format("{} has no data.json, and no model or tokenizer names an end-of-text token: the model "
                    "will have none, and samples begin with token 0",
                    o.data.string()));
  }
  return tokens;
}

// The tokenizer of the models that a run writes: the data's. Data without one are taken to have the ids of
// the model that the run began with, as for their end of text, so that model's tokenizer goes on.
TokenizerFiles tokenizer_of(const TrainOptions& o, const fs::path& begun_with, const Notice& notice) {
  if (text::has_tokenizer(o.data) || !is_folder(begun_with) || !text::has_tokenizer(begun_with))
    return read_tokenizer_files(o.data);
  try {
    const text::Tokenizer tokenizer = load_tokenizer(begun_with, *o.step.model);
    const auto manifest = read_manifest(o.data);
    const auto size = static_cast<std::int64_t>(tokenizer.vocab_size());
    if (!manifest || manifest->vocabulary_size == size) return read_tokenizer_files(begun_with);
    notice(
        fmt::format("{} has a vocabulary of {}, and the model's tokenizer one of {}: the result will have "
                    "no tokenizer",
                    o.data.string(), manifest->vocabulary_size, size));
  } catch (const Error& error) {
    notice(fmt::format("the result will have no tokenizer: {}", error.what()));
  }
  return {};
}

// Throws if a rank's record differs from rank 0's, with the first field that does, in this order.
void require_equal(const Comm& comm, const nlohmann::ordered_json& mine) {
  const std::vector<std::string> all = comm.all_gather(mine.dump());
  const auto first = nlohmann::ordered_json::parse(all.front()).flatten();
  for (std::size_t r = 1; r < all.size(); ++r) {
    const auto other = nlohmann::ordered_json::parse(all[r]).flatten();
    for (const auto& [field, value] : first.items()) {
      const auto found = other.find(field);
      if (found != other.end() && *found == value) continue;
      throw Error(fmt::format("rank 0 and rank {} differ in {}: {} and {}", r, field.substr(1), value.dump(),
                              found == other.end() ? "none" : found->dump()),
                  "start of the ranks", "give all ranks the same program, options, data and checkpoints");
    }
  }
}

}  // namespace

Trainer::Trainer(Context& context, TrainOptions options, TrainObserver observer, const Comm& comm)
    : context_(context),
      options_(checked(context, std::move(options), comm)),
      observer_(std::move(observer)),
      comm_(comm),
      folder_(locked(options_.out, comm)),
      train_stream_(options_.data, Split::train, options_.step.model->vocab()),
      loader_(train_stream_, options_.seed, options_.step.T, options_.step.B * options_.step.slices),
      step_(context, options_.step, comm),
      loss_outliers_(options_.skip_loss_z),
      norm_outliers_(options_.skip_norm_z) {
  if (leads() && check_replacing(options_.out / "checkpoints") == Replacing::two_steps) {
    notify(
        "the file system cannot exchange two folders: they are replaced in two steps, and the next start "
        "repairs what a crash between them leaves");
  }
  const Notice notice = [this](const std::string& line) { notify(line); };
  const auto saved = find_resume(options_, notice, comm);
  if (options_.val_every > 0) {
    val_stream_.emplace(options_.data, Split::val, options_.step.model->vocab());
    ValidationLoader(*val_stream_, options_.step.T);  // says whether it holds a sample
  }
  if (options_.sample_every > 0 && leads()) {
    sampling_ = DecodingEngine::planned(context_, *options_.step.model, options_.step.dtype,
                                        sampling_engine(options_));
  }
  const fs::path begun_with = saved ? saved->checkpoint : options_.initial_model;
  boundary_ = boundary_of(options_, begun_with, notice);
  if (leads()) {
    tokenizer_ = tokenizer_of(options_, begun_with, notice);
    add_chat_template(tokenizer_, begun_with);
  }
  origin_ = origin_of(options_, notice);
  if (saved) {
    restore(*saved);
  } else if (!options_.initial_model.empty()) {
    notify(compare_tokenizers(options_.initial_model, options_.step.model->vocab(), options_.data,
                              options_.allow_tokenizer_change));
  }
  if (leads()) require_replaceable_checkpoints(options_.out, step_index_, options_.schedule.steps);
  if (comm_.size() > 1) compare_ranks();
}

// Threads may differ between ranks.
void Trainer::compare_ranks() const {
  nlohmann::ordered_json mine = {
      {"program", checksum_of(fs::path("/proc/self/exe"))},
      {"options", identity_of(options_)},
      {"settings", settings_of(options_, context_)},
      {"origin", to_json(origin_)},
      {"kernels", fmt::format("{:016x}", step_.plan_hash())},
      {"step", step_index_},
      {"checkpoint", resume_from_ ? checksum_of(*resume_from_ / "trainer.json") : ""}};
  mine["settings"].erase("threads");
  mine["settings"]["device"] = context_.device().name;  // each rank has a GPU of its own
  require_equal(comm_, mine);
}

// Ranks may read their weights from different folders of one name.
void Trainer::restore(const SavedRun& saved) {
  TrainerState state = saved.state;
  state.options.emplace("master_weights", "fp32");  // a checkpoint that is older than the option
  const Notice notice = [this](const std::string& line) { notify(line); };
  if (options_.schedule.steps < state.step) {
    throw UsageError(fmt::format("is {}, but the run has done {}", options_.schedule.steps, state.step),
                     "--steps", "give more");
  }
  compare_options(state.options, identity_of(options_), saved.checkpoint, notice);
  compare_options(state.settings, settings_of(options_, context_), saved.checkpoint, notice);
  if (state.origin) {
    compare_origins(*state.origin, origin_, options_, notice);
  } else {
    notify(fmt::format("{} does not record its data or tokenizer, so neither was compared",
                       saved.checkpoint.string()));
  }
  if (options_.step.reduce == Reduce::ring && state.ranks != comm_.size()) {
    notify(
        fmt::format("{} was written over {} rank{}, and the run goes on over {}: with --reduce ring the "
                    "results will match to rounding, not bit for bit",
                    saved.checkpoint.string(), state.ranks, state.ranks == 1 ? "" : "s", comm_.size()));
  }
  if (state.plan_hash != step_.plan_hash()) {
    notify(
        "the kernels differ from the checkpoint's (another machine, build or --batch): results will "
        "match to rounding, not bit for bit");
  }
  resume_from_ = saved.checkpoint;
  damaged_ = saved.damaged;
  step_index_ = launched_ = state.step;
  saved_step_ = state.step;
  loss_outliers_.restore(state.loss_window);
  norm_outliers_.restore(state.norm_window);
  if (!state.unreported.is_null()) {
    unreported_ = read_report(state.unreported);
    saved_step_.reset();
  }
  finished_ = is_finished(options_.out, state, options_.schedule.steps);
}

Trainer::~Trainer() = default;

RankMemory Trainer::memory() const {
  return rank_memory(step_.plan(), sampling_, context_.device().device, comm_.size());
}

std::optional<std::int64_t> Trainer::resumed_step() const {
  return resume_from_ ? std::optional(step_index_) : std::nullopt;
}

// Fills the weights, and the optimizer's state of a run that goes on.
void Trainer::load() {
  std::string checksums;  // of the weights as this rank has read or made them
  const auto noted = [&](const ParameterWriter& write) -> ParameterWriter {
    if (comm_.size() == 1) return write;
    return [&checksums, write](std::size_t index, const std::function<void(const Tensor&)>& fill) {
      write(index, [&](const Tensor& host) {
        fill(host);
        checksums += checksum_of(bytes_of(host));
      });
    };
  };
  if (resume_from_) {
    load_checkpoint(*resume_from_, step_, context_.stream());
  } else if (options_.initial_model.empty()) {
    options_.step.model->initialize(options_.seed, noted(step_.full_precision()));
  } else {
    verify_model(options_.initial_model);
    options_.step.model->load(options_.initial_model, noted(step_.full_precision()));
  }
  if (comm_.size() > 1) require_equal(comm_, {{"weights", checksum_of(std::as_bytes(std::span(checksums)))}});
}

bool Trainer::start() {
  if (asked_to_stop()) return false;
  step_.allocate();
  load();
  if (options_.sample_every > 0 && leads()) {
    generator_ = std::make_unique<DecodingEngine>(context_, step_.weights(), sampling_engine(options_));
  }
  if (asked_to_stop()) return false;
  const std::vector<std::string> hosts = comm_.all_gather(host_name());
  const auto here = std::ranges::count(hosts, hosts[static_cast<std::size_t>(comm_.rank())]);
  stragglers_.emplace(hosts);
  const CheckpointWriter::Reports reports = {.complete =
                                                 [this](const fs::path& path) {
                                                   if (observer_.checkpoint) observer_.checkpoint(path);
                                                 },
                                             .notice = [this](const std::string& line) { notify(line); }};
  checkpoints_.emplace(options_, boundary_, tokenizer_, damaged_, comm_, static_cast<std::size_t>(here),
                       reports);
  if (leads()) metrics_.emplace(options_.out / "metrics.jsonl", unreported_ ? step_index_ - 1 : step_index_);
  saved_at_ = Clock::now();
  if (observer_.started) observer_.started();
  return true;
}

bool Trainer::asked_to_stop() const {
  const std::vector<double> all = gathered(comm_, {*stop_ ? 1.0 : 0.0});
  return std::ranges::count(all, 1.0) > 0;
}

void Trainer::notify(const std::string& line) const {
  if (observer_.notice && !line.empty()) observer_.notice(line);
}

// A rank that left its work would keep the others waiting.
void Trainer::leave_if_stopped() const {
  if (*stop_ && comm_.size() == 1) throw Abandoned();
}

// A GPU's operations return before they are done and are replayed as graphs. There the work itself checks for
// a stop, between slices and tokens.
bool Trainer::unless_stopped(const std::function<void()>& work) {
  std::optional<Inspecting> watch;
  if (context_.device().device.kind == DeviceKind::cpu) {
    watch.emplace(context_, [this](std::string_view, const std::vector<TensorUse>&) { leave_if_stopped(); });
  }
  try {
    work();
    return true;
  } catch (const Abandoned&) {
    return false;
  }
}

void Trainer::load_slice(std::int64_t step, std::int64_t slice) {
  const TrainingStep::HostBatch batch = step_.host_batch();
  loader_.load(options_.overfit ? 0 : step, step_.slice_of_rank(slice) * options_.step.B, batch.tokens,
               batch.targets);
}

void Trainer::throw_non_finite(double loss, double norm) {
  std::optional<std::string> culprit;
  // Ranks that share their layers must run the same number of slices.
  const bool shares_layers = comm_.size() > 1 && options_.step.sharding == Sharding::parameters;
  for (std::int64_t slice = 0; slice < slices_of_rank() && (!culprit || shares_layers); ++slice) {
    load_slice(step_index_, slice);
    const auto found = step_.first_non_finite();
    if (!culprit) culprit = found;
  }
  const std::vector<std::string> all = comm_.all_gather(culprit.value_or(""));
  const auto named = std::ranges::find_if(all, [](const std::string& name) { return !name.empty(); });
  // The bad update was not applied, so the steps before it are worth keeping.
  if (step_index_ > 0 && saved_step_ != step_index_) write_checkpoint(CheckpointWriter::Mode::wait);
  checkpoints_->finish();
  throw Error(
      fmt::format("loss {} and gradient norm {}; the first tensor that is not finite is {}; the weights are "
                  "those of step {}",
                  std::abs(loss), std::abs(norm),  // a NaN's sign means nothing
                  named == all.end() ? "the sum of finite gradients" : *named, step_index_),
      fmt::format("step {}", step_index_ + 1),
      step_index_ > 0 ? "go on with --resume and a lower --lr or --on-nonfinite skip"
                      : "start again with a lower --lr or --on-nonfinite skip");
}

std::string Trainer::reason_to_skip(double loss, double norm) {
  if (!std::isfinite(loss) || !std::isfinite(norm)) {
    if (options_.on_non_finite == OnNonFinite::stop) throw_non_finite(loss, norm);
    return "not finite";
  }
  if (loss_outliers_.is_outlier(loss))
    return fmt::format("loss outlier (z {:.1f})", loss_outliers_.z_score(loss));
  if (norm_outliers_.is_outlier(norm)) {
    return fmt::format("gradient norm outlier (z {:.1f})", norm_outliers_.z_score(norm));
  }
  loss_outliers_.add(loss);
  norm_outliers_.add(norm);
  return "";
}

bool Trainer::updates_need_the_host() const {
  return context_.device().device.kind == DeviceKind::cpu || options_.skip_loss_z > 0 ||
         options_.skip_norm_z > 0;
}

void Trainer::launch_step() {
  comm_.at_step(launched_ + 1);
  step_.begin();
  for (std::int64_t slice = 0; slice < slices_of_rank(); ++slice) {
    leave_if_stopped();
    load_slice(launched_, slice);
    step_.forward_backward();
  }
  step_.gradient_norm();
  if (!updates_need_the_host()) step_.update(options_.schedule.learning_rate(launched_), launched_ + 1);
  ++launched_;
}

Trainer::StepResult Trainer::finish_step() {
  const TrainingStep::Result result = step_.collect();
  const StepOptions& s = options_.step;
  const double loss = result.loss_sum / static_cast<double>(s.slices * s.B * s.T);
  std::string skipped = reason_to_skip(loss, result.norm);
  if (skipped.empty() && updates_need_the_host()) {
    step_.update(options_.schedule.learning_rate(step_index_), step_index_ + 1);
  }
  ++step_index_;
  return {loss, result.norm, std::move(skipped), result.seconds};
}

// True if something that reads the weights comes after the step: validation, a sample or a checkpoint.
bool Trainer::pauses_after(std::int64_t step) const {
  const auto due = [&](std::int64_t every) { return is_due(every, step); };
  return due(options_.val_every) || due(options_.sample_every) || due(options_.checkpoint_every);
}

bool Trainer::is_due(std::int64_t every, std::int64_t step) const {
  return every > 0 && (step % every == 0 || step == options_.schedule.steps);
}

std::optional<Trainer::StepResult> Trainer::run_step(bool draining) {
  const std::int64_t most = updates_need_the_host() ? 1 : TrainingStep::kStepsInFlight;
  while (!draining && launched_ < options_.schedule.steps && launched_ - step_index_ < most &&
         (launched_ == step_index_ || !pauses_after(launched_))) {
    if (!unless_stopped([this] { launch_step(); })) break;
  }
  if (launched_ == step_index_) return std::nullopt;
  return finish_step();
}

// The mean over the split's samples, as `warpwright eval` computes it. In the last batch rows beyond
// the samples do not count.
double Trainer::validate_loss() {
  const StepOptions& s = options_.step;
  const ValidationLoader loader(*val_stream_, s.T);
  const std::int64_t all = (loader.samples() + s.B - 1) / s.B;
  const std::int64_t batches = options_.val_batches > 0 ? std::min(all, options_.val_batches) : all;
  const std::int64_t samples = std::min(loader.samples(), batches * s.B);
  std::vector<double> sums;  // of this rank's share of the batches
  const std::int64_t begin = batches * comm_.rank() / comm_.size() * s.B,
                     end = std::min(samples, batches * (comm_.rank() + 1) / comm_.size() * s.B);
  for (std::int64_t first = begin; first < end; first += s.B) {
    leave_if_stopped();
    const std::int64_t rows = std::min(s.B, samples - first);
    const TrainingStep::HostBatch batch = step_.host_batch();
    loader.load(first, batch.tokens.slice(0, 0, rows), batch.targets.slice(0, 0, rows));
    const auto used = static_cast<std::size_t>(rows * s.T),
               rest = static_cast<std::size_t>((s.B - rows) * s.T);
    std::fill_n(batch.tokens.as<std::int32_t>() + used, rest, 0);
    std::fill_n(batch.targets.as<std::int32_t>() + used, rest, -1);
    sums.push_back(step_.forward());
  }
  // A rank with fewer batches than others still takes part in their exchange of layers.
  const std::int64_t most =
      s.sharding == Sharding::parameters ? (batches + comm_.size() - 1) / comm_.size() : 0;
  for (auto ran = static_cast<std::int64_t>(sums.size()); ran < most; ++ran) {
    const TrainingStep::HostBatch batch = step_.host_batch();
    std::fill_n(batch.tokens.as<std::int32_t>(), s.B * s.T, 0);
    std::fill_n(batch.targets.as<std::int32_t>(), s.B * s.T, -1);
    step_.forward();
  }
  double sum = 0;
  for (const double of_batch : gathered(comm_, sums)) sum += of_batch;
  return sum / static_cast<double>(samples * s.T);
}

void Trainer::draw_sample() {
  const auto start = static_cast<std::int32_t>(boundary_.eos.empty() ? 0 : boundary_.eos.front());
  GenerationOptions o;
  o.max_tokens = options_.sample_tokens;
  o.sampling.seed = options_.seed + static_cast<std::uint64_t>(step_index_);
  std::vector<std::int32_t> tokens;
  generator_->forget_beginnings();
  generate(*generator_, {&start, 1}, o, [&](std::int32_t token) {
    leave_if_stopped();
    tokens.push_back(token);
    return true;
  });
  if (observer_.sample) observer_.sample(step_index_, tokens);
}

TrainerState Trainer::state() const {
  TrainerState state{.step = step_index_,
                     .ranks = comm_.size(),
                     .options = identity_of(options_),
                     .settings = settings_of(options_, context_),
                     .plan_hash = step_.plan_hash(),
                     .loss_window = loss_outliers_.values(),
                     .norm_window = norm_outliers_.values(),
                     .origin = origin_,
                     .unreported = {}};
  state.origin->step = step_index_;
  if (unreported_) {
    state.unreported = {{"loss", unreported_->loss},
                        {"norm", unreported_->gradient_norm},
                        {"seconds", unreported_->seconds},
                        {"skipped", unreported_->skipped}};
  }
  return state;
}

void Trainer::keep_folder() {
  folder_->keep();
  const auto& tuned = context_.options().tuned;
  if (!tuned || table_is_written_) return;
  tuned->write(options_.out / kTunedFile);
  table_is_written_ = true;
}

void Trainer::write_checkpoint(CheckpointWriter::Mode mode) {
  if (leads()) keep_folder();
  checkpoints_->write(state(), step_, context_, mode);
  saved_step_ = step_index_;
  saved_at_ = Clock::now();
}

void Trainer::write_model() {
  checkpoints_->finish();
  if (leads()) notify(stragglers_->summary());
  leads() ? save_model() : step_.give_parameters();
  comm_.barrier();
}

void Trainer::save_model() {
  origin_.step = step_index_;
  const std::filesystem::path model = options_.out / "model";
  AtomicFolder folder(model, replaceable_model_folder(model));
  options_.step.model->save(folder.folder(), step_.tensors().parameters, step_.parameter_reader(), boundary_);
  write_tokenizer_files(tokenizer_, folder.folder());
  write_origin(folder.folder(), origin_);
  folder.commit();
}

void Trainer::write_metrics(const StepReport& r, std::optional<double> val_loss) {
  keep_folder();
  nlohmann::json json = {{"step", r.step},
                         {"loss", r.loss},
                         {"norm", r.gradient_norm},
                         {"lr", r.learning_rate},
                         {"ms", r.seconds * 1e3},
                         {"tokens_per_second", r.tokens_per_second},
                         {"epoch", loader_.epochs_at(r.step)}};
  if (val_loss) json["val_loss"] = *val_loss;
  if (!r.skipped.empty()) json["skipped"] = r.skipped;
  metrics_->write(json);
}

void Trainer::after_step(StepReport report) {
  if (observer_.step) observer_.step(report);
  const bool done = unless_stopped([&] {
    std::optional<double> val_loss;
    if (is_due(options_.val_every, step_index_)) {
      val_loss = validate_loss();
      if (observer_.validation) observer_.validation(step_index_, *val_loss);
    }
    if (is_due(options_.sample_every, step_index_) && leads()) draw_sample();
    if (leads()) write_metrics(report, val_loss);
  });
  unreported_ = done ? std::nullopt : std::optional(std::move(report));
  const bool is_last = step_index_ == options_.schedule.steps;
  if (done && !is_last && is_due(options_.checkpoint_every, step_index_)) {
    write_checkpoint(CheckpointWriter::Mode::background);
  }
}

StepReport Trainer::report_of(StepResult result, double seconds, double seconds_left) const {
  const StepOptions& s = options_.step;
  const std::int64_t tokens = s.B * s.T * s.slices;
  StepReport report;
  report.step = step_index_;
  report.steps = options_.schedule.steps;
  report.loss = result.loss;
  report.gradient_norm = result.norm;
  report.learning_rate = options_.schedule.learning_rate(step_index_ - 1);
  report.seconds = seconds;
  report.tokens_per_second = static_cast<double>(tokens) / seconds;
  report.flops_per_second = s.model->flops_per_token(s.T) * report.tokens_per_second;
  report.seconds_left = seconds_left;
  report.skipped = std::move(result.skipped);
  return report;
}

StepReport Trainer::read_report(const nlohmann::json& json) const {
  const auto number = [&](const char* key) {  // JSON has no NaN: such a loss is null
    const auto found = json.find(key);
    const bool is_number = found != json.end() && found->is_number();
    return is_number ? found->get<double>() : std::numeric_limits<double>::quiet_NaN();
  };
  const auto skipped = json.find("skipped");
  const bool is_text = skipped != json.end() && skipped->is_string();
  return report_of({number("loss"), number("norm"), is_text ? skipped->get<std::string>() : "", 0},
                   number("seconds"), 0);
}

// Once the steps have begun, the only place that looks at the signal and the clock, once a step and never
// within one, so that all ranks do the same next.
Trainer::Next Trainer::decide() {
  const double minutes = options_.checkpoint_minutes;
  const bool is_time = minutes > 0 && seconds_since(saved_at_) >= 60 * minutes;
  const Next mine = *stop_ ? Next::stop : is_time ? Next::checkpoint : Next::go_on;
  checkpoints_->poll();
  constexpr std::size_t kNumbers = 3;
  const std::vector<double> all =
      gathered(comm_, {static_cast<double>(mine), checkpoints_->has_written() ? 1.0 : 0.0, worked_seconds_});
  Next next = Next::go_on;
  bool all_have_written = true;
  std::vector<double> worked;
  for (std::size_t i = 0; i < all.size(); i += kNumbers) {
    next = std::max(next, static_cast<Next>(all[i]));
    all_have_written &= all[i + 1] == 1;
    worked.push_back(all[i + 2]);
  }
  if (all_have_written) checkpoints_->complete();
  compare_work(worked);
  return next;
}

void Trainer::compare_work(const std::vector<double>& worked) {
  if (leads() && step_seconds_ > 0) notify(stragglers_->add(step_index_, step_seconds_, worked));
  step_seconds_ = worked_seconds_ = 0;
}

bool Trainer::run(const std::atomic<bool>& stop) {
  stop_ = &stop;
  if (finished_) return true;
  has_begun_ = start();
  if (!has_begun_) return false;
  if (unreported_) after_step(*std::exchange(unreported_, std::nullopt));
  const auto started = Clock::now();
  const std::int64_t first = step_index_;
  while (step_index_ < options_.schedule.steps || unreported_) {
    Next next = decide();
    if (launched_ == step_index_ && next != Next::go_on) {
      const bool stops = next == Next::stop;
      if (saved_step_ != step_index_ || unreported_) {
        write_checkpoint(stops ? CheckpointWriter::Mode::wait : CheckpointWriter::Mode::background);
      }
      if (stops) {
        write_model();
        return false;
      }
      saved_at_ = Clock::now();
      next = Next::go_on;
    }
    const auto step_start = Clock::now();
    const double exchanged = comm_.seconds_in_exchanges();
    auto result = run_step(next != Next::go_on);
    if (!result) continue;  // abandoned
    const bool warms_up = step_index_ == first + 1;
    if (!warms_up) {
      step_seconds_ = seconds_since(step_start);
      worked_seconds_ = step_seconds_ - (comm_.seconds_in_exchanges() - exchanged);
    }
    const double left = seconds_since(started) / static_cast<double>(step_index_ - first) *
                        static_cast<double>(options_.schedule.steps - step_index_);
    // Without a step in flight the host's clock includes the update, which comes after the norm.
    const double seconds = updates_need_the_host() ? seconds_since(step_start) : result->seconds;
    after_step(report_of(std::move(*result), seconds, left));
  }
  compare_work(gathered(comm_, {worked_seconds_}));  // of the last step
  if (saved_step_ != step_index_) write_checkpoint(CheckpointWriter::Mode::wait);
  write_model();
  return true;
}

}  // namespace warpwright
