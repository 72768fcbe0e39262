// The machine on which this process runs.
#pragma once

#include <string>

namespace warpwright {

std::string host_name();
// "rank 1 on HOST", for messages.
std::string rank_on_host(int rank);
// A name that all processes of this machine share, containers' included, and that no other machine has.
std::string machine_id();

}  // namespace warpwright
