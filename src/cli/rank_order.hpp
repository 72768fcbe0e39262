// Which of the processes that a launcher such as mpirun has started together reports an error. Most errors
// are those of all ranks, and one line is enough.
#pragma once

#include <string_view>

#include "comm/ending.hpp"

namespace warpwright::cli {

// This process's rank according to the launcher; 0 without one.
int launched_rank();

// From here on an error is reported unless connect_ranks() says otherwise, or with MPI another rank of this
// host.
void begin_to_connect();

// Reports an error unless another rank does, and ends the others. Returns how this process ends: all ranks
// end like the one that reports.
Ending end_launched(Ending ending, std::string_view line);

// Before a rank ends because of an error: launchers may end the others as soon as one has ended, and the
// ranks of this host see who reports.
// The one that reports ends first: mpirun may hang if several ranks end at the same moment.
void wait_for_others(bool reports);

}  // namespace warpwright::cli
