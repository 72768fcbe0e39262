// The keys and values of a sequence on their way through shared memory, a stage of 128 keys at a time. Each
// warp has an adjacent part of a stage, which no other warp copies or reads.
#pragma once

#include "ops/cached_attention/cuda/sequences.cuh"
#include "ops/cuda/cp_async.cuh"
#include "ops/cuda/mma.cuh"
#include "ops/cuda/reduce.cuh"
#include "ops/cuda/vector.cuh"

namespace warpwright::ops::cached {

constexpr int kStage = 128;
constexpr int kTile = 16;  // keys that are computed at once

// A warp copies rows of row_packs × 16 bytes. A head that has fewer is filled up with zeros.
template <class T, int row_packs>
struct RingLayout {
  static constexpr int kLanes = gpu::kPackedLanes<T>, kColumns = row_packs * kLanes;
  static constexpr int kWarps = row_packs / 2 < 8 ? row_packs / 2 : 8, kThreads = kWarps * gpu::kWarp;
  static constexpr int kKeys = kStage / kWarps;         // of a warp
  static constexpr int kRows = gpu::kWarp / row_packs;  // that a warp copies at once
  static constexpr int kPasses = kKeys / kRows, kTiles = kKeys / kTile, kTilePasses = kTile / kRows;
  static constexpr int kWarpPacks = kKeys * row_packs, kPacks = kStage * row_packs;

  // The place of a pack of a warp's row. It is swizzled: eight rows of an ldmatrix use all banks.
  __device__ static unsigned swizzle(unsigned row) { return row_packs >= 8 ? row % 8 : row / 2 % 4; }
  __device__ static unsigned place(unsigned row, unsigned pack) {
    return row * row_packs + (pack ^ swizzle(row));
  }
};

__device__ inline int lane() {
  return static_cast<int>(threadIdx.x) % gpu::kWarp;
}

template <class T, int row_packs>
class Ring {
 public:
  using Layout = RingLayout<T, row_packs>;

  __device__ Ring(const Arguments<T>& a, uint4* memory, const RowOfSequence& row, int key_head)
      : a_(a),
        row_(row),
        key_head_(key_head),
        pack_(static_cast<int>(threadIdx.x) % row_packs),
        at_(lane() / row_packs),
        warp_(static_cast<int>(threadIdx.x) / gpu::kWarp),
        place_(static_cast<int>(Layout::place(static_cast<unsigned>(at_), static_cast<unsigned>(pack_)))),
        inside_(pack_ * Layout::kLanes < a.HS),
        column_(inside_ ? pack_ * Layout::kLanes : 0),
        cached_keys_(a.keys + a.at(0, key_head) + column_),
        cached_values_(a.values + a.at(0, key_head) + column_),
        keys_(memory + warp_ * Layout::kWarpPacks),
        values_(keys_ + Layout::kPacks) {}

  // This warp's part of the stage that has arrived.
  __device__ const uint4* keys() const { return keys_; }
  __device__ const uint4* values() const { return values_; }
  // The first key of this warp in a stage, and how many tiles of it have keys that exist.
  __device__ int first_key(int stage) const { return stage * kStage + warp_ * Layout::kKeys; }
  __device__ int tiles(int stage) const {
    return max(0, min((row_.last - first_key(stage) + kTile - 1) / kTile, Layout::kTiles));
  }
  // True if the query sees all keys of the stage that this warp has.
  __device__ bool is_whole(int stage) const {
    return first_key(stage) >= row_.first && first_key(stage) + Layout::kKeys <= row_.last;
  }
  __device__ bool sees(int key) const { return key >= row_.first && key < row_.last; }

  // Starts the copies of the first stage: what the cache has, then, when the kernels before this one have
  // ended, what it has not.
  __device__ void start_from_cache(int stage) {
    look_up(stage);
    copy_cached(stage, keys_, cached_keys_);
    copy_cached(stage, values_, cached_values_);
  }
  __device__ void start_rest(int stage) {
    copy_new(stage, keys_, a_.k);
    copy_new(stage, values_, a_.v);
    gpu::cp_async_commit_group();
    gpu::cp_async_commit_group();
  }
  // Finds the places of a stage's keys, one or two in each thread; negative: there is none.
  __device__ void look_up(int stage) {
    if (stage < 0) return;
#pragma unroll
    for (int i = 0; i < kPlaces; ++i) {
      const int j = first_key(stage) + i * gpu::kWarp + lane();
      const int known = max(0, min(j, row_.last - 1));
      places_[i] = static_cast<int>(a_.place(row_, known, known >> a_.block_shift));  // not wide
    }
  }
  // Starts the copies of the stage that was looked up. Each call is a group, even without any copy.
  __device__ void start_keys(int stage) {
    start(stage, keys_, cached_keys_, a_.k);
  }
  __device__ void start_values(int stage) {
    start(stage, values_, cached_values_, a_.v);
  }
  // Waits for all groups but the last one, and makes them visible to the warp.
  __device__ void wait() const {
    gpu::cp_async_wait_group<1>();
    __syncwarp();
  }

 private:
  static constexpr int kPlaces = (Layout::kKeys + gpu::kWarp - 1) / gpu::kWarp;

  __device__ void start(int stage, uint4* to, const T* cache, const Heads<const T>& rows) {
    __syncwarp();  // the warp has read what was there
    if (stage >= 0) {
      copy_cached(stage, to, cache);
      copy_new(stage, to, rows);
    }
    gpu::cp_async_commit_group();
  }
  // Keys that the query does not see become zeros.
  __device__ void copy_cached(int stage, uint4* to, const T* cache) const {
    const int first = first_key(stage);
    if (first >= row_.last) return;
    if (first >= row_.first && first + Layout::kKeys <= min(row_.last, row_.appended)) {
#pragma unroll
      for (int p = 0; p < Layout::kPasses; ++p) copy(to + place(p), cached_at(cache, p), inside_);
      return;
    }
#pragma unroll
    for (int p = 0; p < Layout::kPasses; ++p) {
      const int j = first + p * Layout::kRows + at_;
      const bool is_new = j >= row_.appended && j < row_.last;
      copy(to + place(p), cached_at(cache, p), inside_ && sees(j), !is_new);
    }
  }
  __device__ void copy_new(int stage, uint4* to, const Heads<const T>& rows) const {
    const int first = first_key(stage), end = min(first + Layout::kKeys, row_.last);
    if (end <= row_.appended) return;
#pragma unroll 1
    for (int j = max(first, row_.appended) + at_; j < end; j += Layout::kRows) {
      copy(to + Layout::place(static_cast<unsigned>(j - first), static_cast<unsigned>(pack_)),
           rows.at(j + row_.to_row, key_head_) + column_, inside_ && sees(j));
    }
  }
  // Copies a pack, or zeros if it is not wanted. Does nothing, without a branch, if `starts` is false. If
  // this were in a function of cp_async.cuh, nvcc would make other code of the whole kernel.
  __device__ static void copy(uint4* to, const T* from, bool wanted, bool starts = true) {
    asm volatile(
        "{\n.reg .pred p;\nsetp.ne.b32 p, %3, 0;\n@p cp.async.cg.shared.global [%0], [%1], 16, %2;\n}\n" ::
            "r"(gpu::shared_address(to)),
        "l"(from), "r"(wanted ? 16 : 0), "r"(static_cast<int>(starts)));
  }
  // This thread's pack of its key of a pass: in the ring, and in the cache.
  __device__ int place(int pass) const {
    const int row = pass * Layout::kRows;
    return row * row_packs + (place_ ^ static_cast<int>(Layout::swizzle(static_cast<unsigned>(row))));
  }
  __device__ const T* cached_at(const T* cache, int pass) const {
    const int row = pass * Layout::kRows;
    const int place = __shfl_sync(gpu::kAllLanes, places_[row / gpu::kWarp], row % gpu::kWarp + at_);
    return cache + std::int64_t{place} * a_.HS;
  }

  const Arguments<T>& a_;
  const RowOfSequence row_;
  const int key_head_, pack_, at_, warp_, place_;
  const bool inside_;  // this thread's pack is one of the head's
  const int column_;
  const T *const cached_keys_, *const cached_values_;  // this thread's column in place 0
  uint4 *const keys_, *const values_;
  int places_[kPlaces];  // of the stage that was looked up
};

}  // namespace warpwright::ops::cached
