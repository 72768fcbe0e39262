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

  // Nothing if this process may speak. It then keeps the floor until it ends. Otherwise a rank of this host
  // has the floor, and says that it ends like this.
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
