// One launch over many tensors. The kernel's parameters contain a table of the tensors, so nothing is copied
// to the device beforehand and a captured graph keeps the table. The tensors' elements are divided into
// blocks, one for each thread block. No block spans two tensors.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

namespace warpwright::ops::gpu {

// The size of a kernel's parameters: the larger limit needs CUDA 12.1 and compute capability 7.0.
inline constexpr std::size_t kParameterBytes = CUDART_VERSION >= 12010 ? 32764 : 4096;
// The part of it that is reserved for parameters other than the table.
inline constexpr std::size_t kOtherParameterBytes = 192;

// Entry describes one tensor to a kernel. It has the members `elements` (> 0) and `first_block`.
template <class Entry, int capacity>
struct TensorList {
  static constexpr int kCapacity = capacity;

  Entry entries[capacity];
  int count;

  // Returns the tensor that contains the block: the last tensor whose first block is not after it.
  __device__ const Entry& at_block(unsigned block) const {
    int low = 0, high = count;
    while (high - low > 1) {
      const int middle = (low + high) / 2;
      (entries[middle].first_block <= block ? low : high) = middle;
    }
    return entries[low];
  }
};

template <class List, class EntryOf, class Launch>
void launch_lists(std::int64_t tensors, std::int64_t block_elements, const EntryOf& entry_of,
                  const Launch& launch) {
  List list;
  unsigned blocks = 0;
  list.count = 0;
  for (std::int64_t i = 0; i < tensors; ++i) {
    auto entry = entry_of(i);
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

// Calls launch(list, blocks) for all entries, in as few lists as possible. Empty tensors are left out. GPT-2
// 1558M has 580 tensors; they fit into one list if an entry has at most 56 bytes. A layer's tensors fit into
// a short list: a launch takes longer if its parameters are many.
template <class Entry, class EntryOf, class Launch>
void for_each_tensor_list(std::int64_t tensors, std::int64_t block_elements, const EntryOf& entry_of,
                          const Launch& launch) {
  using Short = TensorList<Entry, 16>;
  using Long = TensorList<Entry, (kParameterBytes - kOtherParameterBytes) / sizeof(Entry)>;
  if (tensors <= Short::kCapacity) {
    launch_lists<Short>(tensors, block_elements, entry_of, launch);
  } else {
    launch_lists<Long>(tensors, block_elements, entry_of, launch);
  }
}

}  // namespace warpwright::ops::gpu
