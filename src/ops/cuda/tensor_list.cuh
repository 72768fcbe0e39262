// One launch over many tensors. A table of them travels in the kernel's parameters, so that nothing need be
// copied to the device beforehand and a captured graph holds it. The tensors' elements are cut into blocks,
// none of which spans two tensors; a thread block takes one of them.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

namespace warpwright::ops::gpu {

// What a kernel's parameters may take: since CUDA 12.1, on compute capability 7.0 and later.
inline constexpr std::size_t kParameterBytes = CUDART_VERSION >= 12010 ? 32764 : 4096;
// Of these, for the parameters beside the table.
inline constexpr std::size_t kOtherParameterBytes = 192;

// Entry: what a kernel knows of one tensor, `elements` (> 0) and `first_block` among it.
template <class Entry>
struct TensorList {
  static constexpr int kCapacity = (kParameterBytes - kOtherParameterBytes) / sizeof(Entry);

  Entry entries[kCapacity];
  int count;

  // The tensor that the block lies in: the last that begins at or before it.
  __device__ const Entry& at_block(unsigned block) const {
    int low = 0, high = count;
    while (high - low > 1) {
      const int middle = (low + high) / 2;
      (entries[middle].first_block <= block ? low : high) = middle;
    }
    return entries[low];
  }
};

// Calls launch(list, blocks) with all of the entries (empty tensors aside) in as few lists as hold them:
// 580 tensors, those of GPT-2 1558M, are one list of up to 56 bytes an entry.
template <class Entry, class EntryOf, class Launch>
void for_each_tensor_list(std::int64_t tensors, std::int64_t block_elements, const EntryOf& entry_of,
                          const Launch& launch) {
  TensorList<Entry> list;
  unsigned blocks = 0;
  list.count = 0;
  for (std::int64_t i = 0; i < tensors; ++i) {
    Entry entry = entry_of(i);
    if (entry.elements > 0) {
      entry.first_block = blocks;
      blocks += static_cast<unsigned>((entry.elements + block_elements - 1) / block_elements);
      list.entries[list.count++] = entry;
    }
    if (list.count == 0 || (i + 1 < tensors && list.count < list.kCapacity)) continue;
    launch(list, blocks);
    list.count = 0;
    blocks = 0;
  }
}

}  // namespace warpwright::ops::gpu
