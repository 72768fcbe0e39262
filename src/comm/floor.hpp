// Floor: which rank of this host says why a run ends, as long as no rank 0 can decide that.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "comm/ending.hpp"

namespace warpwright {

class Floor {
 public:
  // run: a name of any length that only the ranks of this run have.
  explicit Floor(std::string_view run);

  // Returns nothing if this process may print; it then holds the floor until the process ends. Otherwise a
  // rank of this host and user has the floor, and says that it ends like this. If a process of another user
  // keeps the floor from this run, each rank may print.
  std::optional<Ending> take(Ending ending) const;
  std::optional<Ending> taken() const;

 private:
  std::string run_;  // its checksum
};

// The floor of the ranks that one launcher has started on this host, for those that know no more of each
// other. job: job_here(); if it is "", the ranks are children of one process.
Floor floor_of_launcher(std::string_view job);
// The floor of the ranks of a store. If the job is "", they are processes of one session, as those of a shell
// or a script are.
Floor floor_at(std::string_view place, std::string_view session, std::string_view job);

}  // namespace warpwright
