// Memory from one plan. A program allocates its tensors by name from an Allocator and runs its operations
// once under a recording Context; the Recorder then knows each tensor's lifetime and lays all of them out.
// The same allocation code, run again over Arenas made from that plan, gets the planned addresses.
#pragma once

#include <algorithm>
#include <cstddef>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "core/tensor.hpp"

namespace warpwright {

// Alignment of every tensor in bytes. A GPU's asynchronous copies and cuBLAS prefer 256; a CPU's cache line
// is 64.
inline constexpr std::size_t kAlignment = 256;
// The next multiple of kAlignment.
inline std::size_t round_up(std::size_t bytes) {
  return (bytes + kAlignment - 1) / kAlignment * kAlignment;
}

// Owns one block of device memory, aligned to at least kAlignment and, unless it is pinned, zero at the
// start. Move-only.
class Buffer {
 public:
  Buffer() = default;
  Buffer(std::size_t bytes, Device device, std::string_view purpose);
  // Host memory that a GPU copies from and to without the host's help. Its contents are undefined.
  static Buffer pinned(std::size_t bytes, std::string_view purpose);
  Buffer(Buffer&& other) noexcept;
  Buffer& operator=(Buffer&& other) noexcept;
  ~Buffer();

  std::byte* data() const { return data_; }
  std::size_t bytes() const { return bytes_; }

 private:
  enum class Kind : std::uint8_t { host, pinned, cuda };
  std::byte* data_ = nullptr;
  std::size_t bytes_ = 0;
  Kind kind_ = Kind::host;
};

// The purpose of a tensor. Activations are the only tensors that share memory, since each lives only from its
// first use to its last.
enum class Category : std::uint8_t {
  parameters,
  master_weights,
  gradients,
  optimizer,
  batch,
  cache,
  activations
};
inline constexpr int kCategories = 7;
std::string_view name_of(Category category);

class Allocator {
 public:
  virtual ~Allocator() = default;
  // A contiguous tensor; the name is unique within the allocator.
  virtual Tensor allocate(std::string_view name, DType dtype, const Shape& shape, Category category) = 0;
};

// scratch: the operation may write it, and leaves arbitrary values.
enum class Access : std::uint8_t { read, write, update, scratch };

// A tensor as an operation uses it, under the name of the operation's argument.
struct TensorUse {
  std::string_view argument;
  Tensor tensor;
  Access access = Access::read;
};

struct MemoryPlan {
  struct Block {
    std::string name;
    Category category = Category::activations;
    std::size_t bytes = 0;
    std::size_t offset = 0;               // in its category's arena
    int first_call = -1, last_call = -1;  // indices into calls; -1: not used by any operation
  };
  std::vector<Block> blocks;       // in order of allocation
  std::vector<std::string> calls;  // operation names in order
  std::size_t arena_bytes[kCategories] = {};
  std::size_t workspace_bytes = 0;  // the largest scratch any call asks for; shared by all

  std::size_t total_bytes() const;
  std::string summary() const;  // a table of the categories
  std::string details() const;  // a line per block: bytes, place, lifetime, what shares its place
};

// Hands out addresses without memory and notes every use of them.
class Recorder final : public Allocator {
 public:
  Tensor allocate(std::string_view name, DType dtype, const Shape& shape, Category category) override;
  // Called for every operation in order. Reading an activation that nothing has written is an Error.
  void call(std::string_view operation, const std::vector<TensorUse>& uses, std::size_t workspace_bytes);
  MemoryPlan plan() const;

 private:
  MemoryPlan::Block* find(const void* address);

  MemoryPlan plan_;
  std::map<std::uintptr_t, std::size_t> starts_;  // fake address → index of its block
  std::uintptr_t next_address_ = std::uintptr_t{1} << 40;
};

// One buffer per category, laid out by a plan.
class Arenas final : public Allocator {
 public:
  Arenas(MemoryPlan plan, Device device);
  Tensor allocate(std::string_view name, DType dtype, const Shape& shape, Category category) override;
  // The name of the block that holds this address while the plan's given call runs, or "".
  std::string_view name_of(const void* address, int call) const;
  const MemoryPlan& plan() const { return plan_; }
  std::size_t allocated_bytes() const;

 private:
  MemoryPlan plan_;
  Device device_;
  Buffer buffers_[kCategories];
  std::map<std::string, std::size_t, std::less<>> index_;
};

// Gives each tensor a buffer of its own: for tests and tools that need no plan.
class HeapAllocator final : public Allocator {
 public:
  explicit HeapAllocator(Device device = {}) : device_(device) {}
  Tensor allocate(std::string_view name, DType dtype, const Shape& shape, Category category) override;

 private:
  Device device_;
  std::vector<Buffer> buffers_;
};

}  // namespace warpwright
