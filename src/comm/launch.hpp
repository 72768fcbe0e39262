// Launch: the place of this process among others, as a launcher (mpirun, srun, torchrun) has told it.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <functional>
#include <string>
#include <string_view>

namespace warpwright {

struct Launch {
  enum class By : std::uint8_t { nobody, mpi, store };  // how the ranks find each other

  By by = By::nobody;
  int rank = 0, ranks = 1;
  int local_rank = 0;     // among the ranks of this machine
  int local_ranks = 0;    // 0: not told
  std::string address{};  // of rank 0, for the store; with MPI it may be empty
  int port = 0;
  std::string session{};  // the launcher's name of this run, for the store
  std::string job{};      // job_here()
};

// The value of an environment variable, or null.
using Variables = std::function<const char*(const char* name)>;

// The last launcher that started this process counts: torchrun's variables come before those of mpirun, and
// those before Slurm's. A launcher with one rank does not count. Throws Error if variables contradict each
// other, if one is missing, or if one is not a number in its range.
Launch read_launch(const Variables& variable = [](const char* name) { return std::getenv(name); });

// The names that launchers (Open MPI's mpirun, torchrun, srun) give this run, the same for its ranks on this
// host. "" if there are none: MPICH's mpirun gives no name.
std::string job_here(const Variables& variable = [](const char* name) { return std::getenv(name); });

// The first host of a list as Slurm writes it: "node03" for "node[03-05,7],login1".
std::string first_host(std::string_view hosts);

}  // namespace warpwright
