// Floor: which rank of this host says why a run ends, as long as no rank 0 can decide that.
#pragma once

#include <optional>
#include <string>
#include <utility>

#include "comm/ending.hpp"

namespace warpwright {

class Floor {
 public:
  // run: a name that only the ranks of this run have.
  explicit Floor(std::string run) : run_(std::move(run)) {}

  // Nothing if this process may speak. It then keeps the floor until it ends. Otherwise a rank of this host
  // has the floor, and says that it ends like this.
  std::optional<Ending> take(Ending ending) const;
  std::optional<Ending> taken() const;

 private:
  std::string run_;
};

// The floor of the ranks that one launcher has started on this host, for those that know no more of each
// other.
Floor floor_of_launcher();

}  // namespace warpwright
