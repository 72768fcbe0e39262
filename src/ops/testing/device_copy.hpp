// Copies of an operation's tensors in a GPU's memory, so that a GPU's variant can run on a test's arguments.
#pragma once

#include <cstddef>
#include <string_view>
#include <vector>

#include "ops/op.hpp"

namespace warpwright::ops::testing {

class DeviceCopy {
 public:
  // Overlapping views share one copy. Each copy has guard bytes on both sides.
  DeviceCopy(const std::vector<TensorUse>& uses, Device device, const Stream& stream);

  // Copies everything back, including the gaps between strided rows. Fails the current test if guard bytes
  // have changed.
  void download(const Stream& stream);
  // The arguments with their tensors replaced by the copies.
  template <class A>
  A moved(A args) const {
    args.visit([&](std::string_view, Tensor& tensor, Access) {
      if (tensor) move(tensor);
    });
    return args;
  }

 private:
  struct Region {
    std::byte *begin, *end;  // on the host
    Buffer buffer;
  };
  void move(Tensor& tensor) const;

  Device device_;
  std::vector<Region> regions_;  // sorted by address
};

}  // namespace warpwright::ops::testing
