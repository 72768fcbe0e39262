#include "tests/faults/scenario.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <fstream>
#include <random>
#include <stdexcept>

#include "tests/tiny_bert.hpp"

namespace warpwright::faults {
namespace {

namespace fs = std::filesystem;

void put(const fs::path& path, const std::string& text) {
  std::ofstream(path, std::ios::binary) << text;
}

std::string some_text() {
  constexpr const char* kWords[] = {"the", "king", "said", "unto", "him", "and", "it", "came", "to", "pass"};
  std::mt19937 random(20);
  std::string text;
  for (int i = 0; i < 600; ++i) text += fmt::format("{}{}", kWords[random() % 10], i % 12 == 11 ? "\n" : " ");
  return text;
}

Command operator+(Command command, const Command& more) {
  command.insert(command.end(), more.begin(), more.end());
  return command;
}

class Commands {
 public:
  explicit Commands(const fs::path& world) : world_(world) {}

  std::string at(const std::string& name) const { return (world_ / name).string(); }
  Command tokenizer(const std::string& out, int size) const {
    return {"tokenizer",          "train", "--input", at("text.txt"), "--vocab-size",
            std::to_string(size), "--out", at(out)};
  }
  Command data(const std::string& out, const std::string& val_fraction) const {
    return {"data",         "build", "--tokenizer", at("tok"),        "--input",
            at("text.txt"), "--out", at(out),       "--val-fraction", val_fraction};
  }
  Command convert(const std::string& from, const std::string& to, const std::string& format,
                  const std::string& dtype) const {
    return {"convert", "--from", at(from), "--to", at(to), "--format", format, "--dtype", dtype};
  }
  Command embed(const std::string& out, const std::string& dtype) const {
    return {"embed",   "--model", at("bert"),        "--input",   at("lines.txt"), "--out", at(out),
            "--dtype", dtype,     "--weights-cache", at("cache"), "--threads",     "1"};
  }
  Command train(const std::string& out, int steps) const {
    return {"train",
            "--data",
            at("data"),
            "--out",
            at(out),
            "--layers",
            "1",
            "--heads",
            "1",
            "--channels",
            "16",
            "--seq",
            "16",
            "--batch",
            "2",
            "--steps",
            std::to_string(steps),
            "--threads",
            "1",
            "--dtype",
            "bf16"};
  }

 private:
  fs::path world_;
};

std::vector<Scenario> writers(const Commands& c) {
  const Command force = {"--force"};
  const Command tokenizer = c.tokenizer("out", 270), data = c.data("out", "0.2");
  const Command llmc = c.convert("gpt2", "out.bin", "llmc", "bf16");
  const Command folder = c.convert("gpt2.bin", "out", "hf", "bf16");
  const Command npy = c.embed("out.npy", "bf16"), jsonl = c.embed("out.jsonl", "bf16");
  const std::vector<Command> other_tokenizer = {c.tokenizer("out", 265)}, other_data = {c.data("out", "0.5")};
  const std::vector<Command> other_llmc = {c.convert("gpt2", "out.bin", "llmc", "fp32")};
  const std::vector<Command> other_npy = {c.embed("out.npy", "fp32")};
  using List = std::vector<std::string>;
  const List out = {"out"};
  const Command man = {"man", "--out", c.at("pages")};
  return {
      {.name = "tokenizer train", .command = tokenizer, .again = tokenizer + force, .outputs = out},
      {.name = "tokenizer train over another",
       .before = other_tokenizer,
       .command = tokenizer + force,
       .again = tokenizer + force,
       .outputs = out},
      {.name = "data build", .command = data, .again = data + force, .outputs = out, .kill_percent = 7},
      {.name = "data build over another",
       .before = other_data,
       .command = data + force,
       .again = data + force,
       .outputs = out,
       .kill_percent = 6},
      {.name = "data build over another on NFS",
       .before = other_data,
       .command = data + force,
       .again = data + force,
       .outputs = out,
       .can_exchange = false},
      {.name = "convert to llm.c", .command = llmc, .again = llmc, .outputs = {"out.bin"}},
      {.name = "convert to llm.c over another",
       .before = other_llmc,
       .command = llmc,
       .again = llmc,
       .outputs = {"out.bin"},
       .kill_percent = 6},
      {.name = "convert to a folder",
       .command = folder,
       .again = folder + force,
       .outputs = out,
       .kill_percent = 6},
      {.name = "embed to npy over another",
       .before = other_npy,
       .command = npy,
       .again = npy,
       .outputs = {"out.npy"},
       .cache = "cache"},
      {.name = "embed to jsonl",
       .command = jsonl,
       .again = jsonl,
       .outputs = {"out.jsonl"},
       .cache = "cache"},
      {.name = "man", .command = man, .again = man, .outputs = {}, .files = "pages"},
  };
}

std::vector<Scenario> trainings(const Commands& c) {
  const Command often = {"--checkpoint-every", "1"}, one = {"--keep", "1"}, all = {"--keep", "0"};
  const Command looks = {"--val-every", "1", "--sample-every", "2", "--sample-tokens", "2"},
                resume = {"--resume"};
  const Command two_steps = c.train("run", 2) + often + one, four_steps = c.train("run", 4) + often;
  using List = std::vector<std::string>;
  const List model = {"run/model"};
  const List after_two = {"run/model", "run/checkpoints/step_00000003", "run/checkpoints/step_00000004"};
  return {
      {.name = "train",
       .command = two_steps + looks,
       .again = two_steps + looks + resume,
       .outputs = model,
       .run = "run",
       .kill_percent = 35},
      {.name = "train resumes",
       .before = {four_steps + all},
       .removed = after_two,
       .command = four_steps + one + resume,
       .again = four_steps + one + resume,
       .outputs = model,
       .run = "run",
       .kill_percent = 25},
      {.name = "train goes further",
       .before = {two_steps},
       .command = four_steps + one + resume,
       .again = four_steps + one + resume,
       .outputs = model,
       .run = "run",
       .kill_percent = 15},
  };
}

// Makes text.txt, lines.txt, tok (a tokenizer), data, gpt2 (a folder), gpt2.bin (in llm.c's format) and bert.
void make_inputs(const fs::path& world, const fs::path& scratch) {
  const Commands c(world);
  fs::create_directories(world);
  put(world / "text.txt", some_text());
  put(world / "lines.txt", "the cat sat\non a mat .\na dog\n");
  make_tiny_bert(world / "bert");
  must_run(c.tokenizer("tok", 280), scratch);
  must_run(c.data("data", "0.2"), scratch);
  must_run(c.train("trained", 1), scratch);
  fs::rename(world / "trained/model", world / "gpt2");
  fs::remove_all(world / "trained");
  must_run(c.convert("gpt2", "gpt2.bin", "llmc", "bf16"), scratch);
}

}  // namespace

void must_run(const Command& command, const fs::path& scratch) {
  const ProcessResult result = run_process(command, scratch);
  if (result.code == 0) return;
  throw std::runtime_error(fmt::format("{}: exit {}: {}", fmt::join(command, " "), result.code, result.err));
}

std::vector<Scenario> scenarios(const fs::path& world) {
  const Commands c(world);
  std::vector<Scenario> all = writers(c);
  for (Scenario& scenario : trainings(c)) all.push_back(std::move(scenario));
  return all;
}

Stage::Stage(const fs::path& folder, std::size_t scenario)
    : folder_(folder), world_(folder / "world"), initial_(folder / "initial") {
  ::setenv("OMP_NUM_THREADS", "1", 1);  // makes the calls come in the same order each time
  make_inputs(world_, folder_);
  scenario_ = scenarios(world_).at(scenario);
  for (const Command& command : scenario_.before) must_run(command, folder_);
  for (const std::string& path : scenario_.removed) fs::remove_all(world_ / path);
  fs::rename(world_, initial_);
  run_undisturbed();
}

void Stage::reset() const {
  fs::remove_all(world_);
  fs::copy(initial_, world_, fs::copy_options::recursive | fs::copy_options::copy_symlinks);
}

ProcessResult Stage::run_traced(const Command& command, const Judge& judge) const {
  return faults::run_traced(command, folder_, [&](const SystemCall& call) {
    const Verdict verdict = judge(call);
    const bool refused = verdict.kind == Verdict::Kind::proceed && call.exchanges && !scenario_.can_exchange;
    return refused ? Verdict{Verdict::Kind::fail, EINVAL} : verdict;
  });
}

void Stage::run_undisturbed() {
  reset();
  golden_.before = snapshot_of(world_);
  const auto look_for_checkpoints = [&] {
    std::error_code none;
    for (const auto& entry : fs::directory_iterator(world_ / scenario_.run / "checkpoints", none)) {
      const std::string path = entry.path().lexically_relative(world_).string();
      if (scenario_.run.empty() || is_partial(path) || golden_.checkpoints.contains(path)) continue;
      golden_.checkpoints.emplace(path, part_of(snapshot_of(world_), path));
    }
  };
  const ProcessResult result = run_traced(scenario_.command, [&](const SystemCall& call) {
    look_for_checkpoints();
    golden_.calls.push_back(call);
    return Verdict{};
  });
  if (result.code != 0) {
    throw std::runtime_error(fmt::format("{}: exit {}: {}", scenario_.name, result.code, result.err));
  }
  golden_.after = snapshot_of(world_);
  for (const auto& [path, content] : golden_.after) {
    const bool inside = !scenario_.files.empty() && path.starts_with(scenario_.files + "/");
    if (inside) scenario_.outputs.push_back(path);
  }
  golden_.lines_on_stderr = std::count(result.err.begin(), result.err.end(), '\n');
}

bool is_at_or_below(const std::string& path, const std::string& folder) {
  return path == folder || path.starts_with(folder + "/");
}

bool is_partial(const std::string& path) {
  return path.find(".partial-") != std::string::npos || path.find(".deleted") != std::string::npos;
}

std::vector<std::string> checkpoints_in(const Snapshot& world, const std::string& run) {
  const std::string prefix = run + "/checkpoints/step_";
  std::vector<std::string> paths;
  for (const auto& [path, content] : world) {
    const bool whole =
        path.starts_with(prefix) && path.find_first_not_of("0123456789", prefix.size()) == path.npos;
    if (whole) paths.push_back(path);
  }
  return paths;
}

bool Expectation::is_output(const std::string& path) const {
  const auto is_in = [&](const std::string& o) { return !o.empty() && is_at_or_below(path, o); };
  return is_in(scenario_.files) || is_in(scenario_.run) || is_in(scenario_.cache) ||
         std::ranges::any_of(scenario_.outputs, is_in);
}

std::string Expectation::wrong_in_cache(const Snapshot& state) const {
  for (const auto& entry : state) {
    const bool cached = !scenario_.cache.empty() && entry.first.starts_with(scenario_.cache + "/");
    const auto wanted = golden_.after.find(entry.first);
    if (!cached || is_partial(entry.first)) continue;
    if (wanted == golden_.after.end() || *wanted != entry) return fmt::format("{} is wrong", entry.first);
  }
  return "";
}

std::string Expectation::disturbed(const Snapshot& state, bool partials_may_be_left) const {
  for (const std::string& output : scenario_.outputs) {
    const Snapshot found = part_of(state, output);
    // Between the two renames no folder has the name. The next process puts the old folder back.
    if (found.empty() && !scenario_.can_exchange && partials_may_be_left) continue;
    const std::string newer = difference(found, part_of(golden_.after, output));
    if (!newer.empty() && !difference(found, part_of(golden_.before, output)).empty()) {
      return fmt::format("{} is neither the old one nor the new one: {}", output, newer);
    }
  }
  for (const std::string& checkpoint : checkpoints_in(state, scenario_.run)) {
    const auto wanted = golden_.checkpoints.find(checkpoint);
    if (wanted == golden_.checkpoints.end()) return fmt::format("{} is of no undisturbed run", checkpoint);
    const std::string wrong = difference(part_of(state, checkpoint), wanted->second);
    if (!wrong.empty()) return fmt::format("{}: {}", checkpoint, wrong);
  }
  if (std::string wrong = wrong_in_cache(state); !wrong.empty()) return wrong;
  Snapshot others, others_before;
  for (const auto& entry : state) {
    if (is_partial(entry.first) && !partials_may_be_left) return fmt::format("{} is left over", entry.first);
    if (!is_partial(entry.first) && !is_output(entry.first)) others.insert(entry);
  }
  for (const auto& entry : golden_.before) {
    if (!is_partial(entry.first) && !is_output(entry.first)) others_before.insert(entry);
  }
  return difference(others, others_before);
}

std::string Expectation::finished(const Snapshot& state, bool partials_may_be_left) const {
  // A disturbed run may write its checkpoints at other steps. The last one is always at the last step.
  const auto comparable = [&](Snapshot all) {
    std::vector<std::string> list = checkpoints_in(all, scenario_.run);
    if (!list.empty()) list.pop_back();
    std::erase_if(all, [&](const auto& entry) {
      const auto is_inside = [&](const std::string& checkpoint) {
        return entry.first.starts_with(checkpoint);
      };
      const bool cached = !scenario_.cache.empty() && is_at_or_below(entry.first, scenario_.cache);
      const bool may_differ = cached && !is_partial(entry.first);
      return std::ranges::any_of(list, is_inside) || may_differ ||
             (partials_may_be_left && is_partial(entry.first));
    });
    return all;
  };
  if (std::string wrong = wrong_in_cache(state); !wrong.empty()) return wrong;
  return difference(comparable(state), comparable(golden_.after));
}

}  // namespace warpwright::faults
