#include "runtime/memory.hpp"

#include <fmt/format.h>
#include <sys/mman.h>

#include <algorithm>
#include <numeric>
#include <utility>

#include "core/human_bytes.hpp"
#include "runtime/cuda/backend.hpp"
#include "runtime/device.hpp"
#include "runtime/out_of_memory.hpp"
#include "runtime/placement.hpp"

namespace warpwright {
namespace {

// For tables: rows in one unit can be compared.
std::string mebibytes(std::size_t bytes) {
  return fmt::format("{:.1f} MiB", static_cast<double>(bytes) / 0x1p20);
}

// Lists the activations that share memory with one: only the first few, since there may be thousands.
class SharedPlaces {
 public:
  explicit SharedPlaces(const std::vector<MemoryPlan::Block>& blocks) : blocks_(blocks) {
    for (const auto& block : blocks_) {
      if (!takes_memory(block)) continue;
      begins_.push_back(block.offset);
      ends_.push_back(block.offset + block.bytes);
    }
    std::sort(begins_.begin(), begins_.end());
    std::sort(ends_.begin(), ends_.end());
  }

  std::string of(const MemoryPlan::Block& block) const {
    const std::size_t count = others(block), named = std::min(count, kMostNamed);
    std::string text;
    std::size_t found = 0;
    for (auto other = blocks_.begin(); found < named; ++other) {
      const bool shares = &*other != &block && takes_memory(*other) &&
                          block.offset < other->offset + other->bytes &&
                          other->offset < block.offset + block.bytes;
      if (shares) text += fmt::format("{}{}", found++ ? ", " : "", other->name);
    }
    return count == named ? text : text + fmt::format(" and {} more", count - named);
  }

 private:
  static constexpr std::size_t kMostNamed = 16;

  static bool takes_memory(const MemoryPlan::Block& block) {
    return block.category == Category::activations && block.bytes > 0;
  }
  // All but those that end before the block or begin after it.
  std::size_t others(const MemoryPlan::Block& block) const {
    if (!takes_memory(block)) return 0;
    const auto begun = std::lower_bound(begins_.begin(), begins_.end(), block.offset + block.bytes);
    const auto ended = std::upper_bound(ends_.begin(), ends_.end(), block.offset);
    return static_cast<std::size_t>((begun - begins_.begin()) - (ended - ends_.begin()) - 1);
  }

  const std::vector<MemoryPlan::Block>& blocks_;
  std::vector<std::size_t> begins_, ends_;
};

}  // namespace

Buffer::Buffer(std::size_t bytes, Device device, std::string_view purpose) : bytes_(bytes) {
  if (bytes == 0) return;
  if (device.kind == DeviceKind::cuda) {
    data_ = cuda::allocate(bytes, device.index, purpose);
    kind_ = Kind::cuda;
    return;
  }
  void* address = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (address == MAP_FAILED) {
    throw OutOfMemory(fmt::format("cannot allocate {} of memory ({} are available)",
                                  human_bytes(static_cast<double>(bytes)),
                                  human_bytes(static_cast<double>(available_memory()))),
                      std::string(purpose), "use a smaller batch, sequence or model");
  }
  if (bytes >= (std::size_t{4} << 20)) madvise(address, bytes, MADV_HUGEPAGE);
  data_ = static_cast<std::byte*>(address);
}

Buffer Buffer::pinned(std::size_t bytes, std::string_view purpose) {
  Buffer buffer;
  buffer.bytes_ = bytes;
  buffer.kind_ = Kind::pinned;
  if (bytes > 0) buffer.data_ = cuda::allocate_pinned(bytes, purpose);
  return buffer;
}

Buffer::Buffer(Buffer&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)),
      bytes_(std::exchange(other.bytes_, 0)),
      kind_(other.kind_) {}

Buffer& Buffer::operator=(Buffer&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(bytes_, other.bytes_);
  std::swap(kind_, other.kind_);
  return *this;
}

Buffer::~Buffer() {
  if (!data_) return;
  switch (kind_) {
    case Kind::host:
      munmap(data_, bytes_);
      break;
    case Kind::pinned:
      cuda::release_pinned(data_);
      break;
    case Kind::cuda:
      cuda::release(data_);
      break;
  }
}

std::string_view name_of(Category category) {
  static constexpr std::string_view names[kCategories] = {
      "parameters", "master weights", "gradients", "optimizer", "batch", "cache", "activations"};
  return names[static_cast<int>(category)];
}

std::size_t MemoryPlan::total_bytes() const {
  return std::accumulate(std::begin(arena_bytes), std::end(arena_bytes), workspace_bytes);
}

std::string MemoryPlan::summary() const {
  std::string text;
  for (int c = 0; c < kCategories; ++c) {
    if (arena_bytes[c] == 0) continue;
    text += fmt::format("  {:<16}{:>14}\n", name_of(static_cast<Category>(c)), mebibytes(arena_bytes[c]));
  }
  text += fmt::format("  {:<16}{:>14}\n", "workspace", mebibytes(workspace_bytes));
  return text + fmt::format("  {:<16}{:>14}\n", "total", mebibytes(total_bytes()));
}

std::string MemoryPlan::details() const {
  std::size_t longest = 0;
  for (const Block& block : blocks) longest = std::max(longest, block.name.size());
  std::string text = fmt::format("{:<{}}  {:<16}{:>12}{:>14}  lifetime (calls), shares its place with\n",
                                 "tensor", longest, "arena", "bytes", "offset");
  const SharedPlaces places(blocks);
  for (const Block& block : blocks) {
    const bool activation = block.category == Category::activations;
    const std::string shared = activation ? places.of(block) : "";
    const std::string life =
        activation ? fmt::format("{}–{}", block.first_call, block.last_call) : std::string("whole run");
    text += fmt::format("{:<{}}  {:<16}{:>12}{:>14}  {}{}{}\n", block.name, longest, name_of(block.category),
                        block.bytes, block.offset, life, shared.empty() ? "" : "; ", shared);
  }
  return text;
}

Tensor Recorder::allocate(std::string_view name, DType dtype, const Shape& shape, Category category) {
  const Tensor tensor(reinterpret_cast<void*>(next_address_), dtype, shape);
  constexpr std::uintptr_t kMostBytes = std::uintptr_t{1} << 62;  // of all tensors together
  if (next_address_ + tensor.bytes() > kMostBytes) {
    throw Error(fmt::format("the plan up to {} needs more memory than any machine has", name), "memory plan",
                "use a smaller batch, sequence or model");
  }
  starts_[next_address_] = plan_.blocks.size();
  plan_.blocks.push_back({std::string(name), category, tensor.bytes(), 0, -1, -1});
  next_address_ += round_up(tensor.bytes()) + kAlignment;  // a gap: an empty tensor has an address of its own
  return tensor;
}

MemoryPlan::Block* Recorder::find(const void* address) {
  const auto after = starts_.upper_bound(reinterpret_cast<std::uintptr_t>(address));
  if (after == starts_.begin()) return nullptr;
  const auto [start, index] = *std::prev(after);
  MemoryPlan::Block& block = plan_.blocks[index];
  const bool inside =
      reinterpret_cast<std::uintptr_t>(address) < start + std::max<std::size_t>(block.bytes, 1);
  // Other memory is not in this plan, e.g. a model's weights while a generator is planned.
  return inside ? &block : nullptr;
}

void Recorder::call(std::string_view operation, const std::vector<TensorUse>& uses,
                    std::size_t workspace_bytes) {
  const int index = static_cast<int>(plan_.calls.size());
  plan_.calls.emplace_back(operation);
  plan_.workspace_bytes = std::max(plan_.workspace_bytes, round_up(workspace_bytes));
  for (const TensorUse& use : uses) {
    MemoryPlan::Block* block = use.tensor ? find(use.tensor.data) : nullptr;
    if (!block) continue;
    if (block->first_call < 0) {
      const bool reads = use.access == Access::read || use.access == Access::update;
      if (reads && block->category == Category::activations) {
        throw Error(fmt::format("reads {} ({}) before anything has written it", block->name, use.argument),
                    std::string(operation), "run the operations in order");
      }
      block->first_call = index;
    }
    block->last_call = index;
  }
}

MemoryPlan Recorder::plan() const {
  MemoryPlan plan = plan_;
  for (auto& block : plan.blocks) {
    if (block.category == Category::activations) continue;
    std::size_t& end = plan.arena_bytes[static_cast<int>(block.category)];
    block.offset = end;
    end += round_up(block.bytes);
  }
  plan.arena_bytes[static_cast<int>(Category::activations)] = place_activations(plan.blocks);
  return plan;
}

Arenas::Arenas(MemoryPlan plan, Device device) : plan_(std::move(plan)), device_(device) {
  for (int c = 0; c < kCategories; ++c) {
    buffers_[c] = Buffer(plan_.arena_bytes[c], device, warpwright::name_of(static_cast<Category>(c)));
  }
  for (std::size_t i = 0; i < plan_.blocks.size(); ++i) index_[plan_.blocks[i].name] = i;
}

Tensor Arenas::allocate(std::string_view name, DType dtype, const Shape& shape, Category category) {
  const auto found = index_.find(name);
  const Tensor wanted(nullptr, dtype, shape);
  if (found == index_.end() || plan_.blocks[found->second].bytes != wanted.bytes() ||
      plan_.blocks[found->second].category != category) {
    throw Error(fmt::format("{} {} {} is not in the memory plan", warpwright::name_of(category), name,
                            shape.to_string()),
                "memory plan", "allocate exactly what was recorded");
  }
  const auto& block = plan_.blocks[found->second];
  void* address = buffers_[static_cast<int>(category)].data() + block.offset;
  return Tensor(address, dtype, shape, device_);
}

std::string_view Arenas::name_of(const void* address, int call) const {
  for (const auto& block : plan_.blocks) {
    const std::byte* begin = buffers_[static_cast<int>(block.category)].data() + block.offset;
    const bool alive =
        block.category != Category::activations || (block.first_call <= call && call <= block.last_call);
    if (alive && address >= begin && address < begin + block.bytes) return block.name;
  }
  return "";
}

std::size_t Arenas::allocated_bytes() const {
  std::size_t bytes = 0;
  for (const Buffer& buffer : buffers_) bytes += buffer.bytes();
  return bytes;
}

Tensor HeapAllocator::allocate(std::string_view name, DType dtype, const Shape& shape, Category) {
  const Tensor layout(nullptr, dtype, shape);
  buffers_.emplace_back(std::max<std::size_t>(layout.bytes(), 1), device_, name);
  return Tensor(buffers_.back().data(), dtype, shape, device_);
}

}  // namespace warpwright
