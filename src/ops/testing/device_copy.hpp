// An operation's tensors in the memory of a GPU, for running a GPU's variant on arguments that a test made.
#pragma once

#include <cstddef>
#include <string_view>
#include <vector>

#include "ops/op.hpp"

namespace warpwright::ops::testing {

class DeviceCopy {
 public:
  // Views that overlap share their copy, with guard bytes on either side.
  DeviceCopy(const std::vector<TensorUse>& uses, Device device, const Stream& stream);

  // Brings everything back, gaps between strided rows included; fails the present test where guard bytes have
  // changed.
  void download(const Stream& stream);
  // The arguments with their tensors in the copy.
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
  std::vector<Region> regions_;  // in order of addresses
};

}  // namespace warpwright::ops::testing
