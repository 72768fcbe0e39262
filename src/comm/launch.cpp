#include "comm/launch.hpp"

#include <fmt/format.h>

#include <charconv>
#include <cstdint>
#include <initializer_list>
#include <limits>
#include <optional>

#include "core/error.hpp"

namespace warpwright {
namespace {

constexpr int kMostRanks = 1 << 20, kMostPort = 65535;

// A number in an environment variable; nothing if it is not set.
template <class T>
std::optional<T> number_in(const Variables& variable, const char* name, T least, T most) {
  const char* text = variable(name);
  if (!text) return std::nullopt;
  const std::string_view all = text;
  T value = 0;
  const auto [end, failed] = std::from_chars(all.data(), all.data() + all.size(), value);
  if (failed != std::errc() || end != all.data() + all.size() || value < least || value > most) {
    throw Error(fmt::format("is '{}', not a number from {} to {}", all, least, most), name,
                "start the process with the launcher, or unset the variable");
  }
  return value;
}

std::optional<int> first_number(const Variables& variable, std::initializer_list<const char*> names,
                                int least, int most) {
  for (const char* name : names) {
    if (const auto value = number_in(variable, name, least, most)) return value;
  }
  return std::nullopt;
}

void require_master(const Launch& launch, const Variables& variable, const char* launcher) {
  if (launch.address.empty()) {
    throw Error(fmt::format("is {}, but {} has started {} ranks",
                            variable("MASTER_ADDR") ? "empty" : "not set", launcher, launch.ranks),
                "MASTER_ADDR", "set it to the host of rank 0");
  }
}

// Reads the variables of torchrun, which other launchers also set.
Launch by_torchrun(const Variables& variable) {
  Launch launch{.by = Launch::By::store};
  launch.ranks = number_in(variable, "WORLD_SIZE", 1, kMostRanks).value_or(1);
  const bool has_rank = variable("RANK"), has_ranks = variable("WORLD_SIZE");
  if (has_rank ? !has_ranks : launch.ranks > 1) {
    throw Error(fmt::format("is not set, but {} is", has_rank ? "RANK" : "WORLD_SIZE"),
                has_rank ? "WORLD_SIZE" : "RANK", "set both, or neither");
  }
  if (launch.ranks == 1) return {};
  launch.rank = *number_in(variable, "RANK", 0, launch.ranks - 1);
  launch.local_rank = number_in(variable, "LOCAL_RANK", 0, launch.ranks - 1).value_or(launch.rank);
  launch.local_ranks = number_in(variable, "LOCAL_WORLD_SIZE", 1, launch.ranks).value_or(0);
  if (const char* address = variable("MASTER_ADDR")) launch.address = address;
  require_master(launch, variable, "a launcher");
  if (const char* run = variable("TORCHELASTIC_RUN_ID")) launch.session = run;
  const auto port = number_in(variable, "MASTER_PORT", 1, kMostPort);
  if (!port) throw Error("is not set", "MASTER_PORT", "set it to a free port of rank 0's host");
  // torchrun may listen at this port itself.
  const char* taken = variable("TORCHELASTIC_USE_AGENT_STORE");
  const bool is_taken = taken && std::string_view(taken) == "True";
  launch.port = !is_taken ? *port : *port < kMostPort ? *port + 1 : *port - 1;
  return launch;
}

// Open MPI's mpirun sets the first variable, and MPICH's the second. srun may set the second as well, for
// programs with MPI, but not MPICH's own variable.
Launch by_mpi(const Variables& variable) {
  const bool by_srun = variable("SLURM_STEP_NUM_TASKS") && !variable("MPI_LOCALNRANKS");
  const auto open = number_in(variable, "OMPI_COMM_WORLD_SIZE", 1, kMostRanks);
  const auto ranks = open || by_srun ? open : number_in(variable, "PMI_SIZE", 1, kMostRanks);
  if (!ranks || *ranks == 1) return {};
  Launch launch{.by = Launch::By::mpi, .ranks = *ranks};
  launch.rank = first_number(variable, {"OMPI_COMM_WORLD_RANK", "PMI_RANK"}, 0, *ranks - 1).value_or(0);
  launch.local_rank =
      first_number(variable, {"OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID"}, 0, *ranks - 1).value_or(0);
  launch.local_ranks =
      first_number(variable, {"OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS"}, 1, *ranks).value_or(0);
  if (const char* address = variable("MASTER_ADDR")) launch.address = address;
  return launch;
}

// Reads the variables of srun. Only a step's processes have these variables, not the batch script.
Launch by_slurm(const Variables& variable) {
  const auto ranks = number_in(variable, "SLURM_STEP_NUM_TASKS", 1, kMostRanks);
  if (!ranks || *ranks == 1 || !variable("SLURM_PROCID")) return {};
  Launch launch{.by = Launch::By::store, .ranks = *ranks};
  launch.rank = *number_in(variable, "SLURM_PROCID", 0, launch.ranks - 1);
  launch.local_rank = number_in(variable, "SLURM_LOCALID", 0, launch.ranks - 1).value_or(0);
  if (const char* address = variable("MASTER_ADDR")) {
    launch.address = address;
  } else if (const char* hosts = variable("SLURM_STEP_NODELIST")) {
    launch.address = first_host(hosts);
  }
  require_master(launch, variable, "srun");
  // Steps on one machine get ports of their own, below those that the system gives out.
  constexpr int kFirstPort = 20'000, kPorts = 10'000, kStepsPerJob = 7;
  constexpr std::uint64_t kLeast = 0, kMost = std::numeric_limits<std::uint64_t>::max();
  const auto number = [&](const char* name) { return number_in(variable, name, kLeast, kMost).value_or(0); };
  const std::uint64_t job = number("SLURM_JOB_ID"), step = number("SLURM_STEP_ID");
  launch.session = fmt::format("{}.{}.{}", job, step, number("SLURM_RESTART_COUNT"));
  launch.port =
      number_in(variable, "MASTER_PORT", 1, kMostPort)
          .value_or(kFirstPort + static_cast<int>((job % kPorts * kStepsPerJob + step % kPorts) % kPorts));
  return launch;
}

}  // namespace

std::string first_host(std::string_view hosts) {
  std::string host;
  bool in_brackets = false, copies = true;
  for (const char c : hosts) {
    if (c == '[') {
      in_brackets = copies = true;
    } else if (c == ']') {
      in_brackets = false;
      copies = true;
    } else if (in_brackets && (c == ',' || c == '-')) {
      copies = false;
    } else if (c == ',') {
      break;
    } else if (copies) {
      host += c;
    }
  }
  return host;
}

Launch read_launch(const Variables& variable) {
  const Launch torchrun = by_torchrun(variable), mpi = by_mpi(variable);
  if (torchrun.ranks > 1 && mpi.ranks > 1 && (torchrun.ranks != mpi.ranks || torchrun.rank != mpi.rank)) {
    throw Error(fmt::format("RANK and WORLD_SIZE say rank {} of {}, and mpirun says rank {} of {}",
                            torchrun.rank, torchrun.ranks, mpi.rank, mpi.ranks),
                "launcher", "unset RANK and WORLD_SIZE, or start the ranks without mpirun");
  }
  Launch launch = torchrun.ranks > 1 ? torchrun : mpi.ranks > 1 ? mpi : by_slurm(variable);
  launch.job = job_here(variable);
  return launch;
}

std::string job_here(const Variables& variable) {
  std::string job;
  for (const char* name : {"PMIX_NAMESPACE", "TORCHELASTIC_RUN_ID"}) {
    if (const char* value = variable(name)) job += fmt::format("{} {}\n", name, value);
  }
  if (variable("MPI_LOCALNRANKS")) return job;  // of MPICH's mpirun: a step may run it more than once
  const char *of_slurm = variable("SLURM_JOB_ID"), *step = variable("SLURM_STEP_ID");
  return of_slurm && step ? fmt::format("{}step {}.{}", job, of_slurm, step) : job;
}

}  // namespace warpwright
