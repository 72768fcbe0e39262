#include "infer/cache_blocks.hpp"

#include <cstddef>
#include <utility>

namespace warpwright {

CacheBlocks::CacheBlocks(std::int64_t blocks, std::int64_t block_size)
    : block_size_(block_size), blocks_(static_cast<std::size_t>(blocks)) {
  for (std::size_t b = 0; b < blocks_.size(); ++b) {
    blocks_[b].offered = offered_.end();
    blocks_[b].unheld = unheld_.insert(unheld_.end(), static_cast<std::int32_t>(b));
  }
}

void CacheBlocks::hold(std::int32_t block) {
  Block& b = blocks_[static_cast<std::size_t>(block)];
  if (b.holders++ == 0) unheld_.erase(b.unheld);
}

std::int32_t CacheBlocks::take() {
  if (unheld_.empty()) return kNone;
  const std::int32_t block = unheld_.front();
  Block& b = blocks_[static_cast<std::size_t>(block)];
  if (b.offered != offered_.end()) offered_.erase(std::exchange(b.offered, offered_.end()));
  hold(block);
  return block;
}

std::vector<std::int32_t> CacheBlocks::share(std::span<const std::int32_t> tokens) {
  std::vector<std::int32_t> found;
  std::int32_t before = kNone;
  const auto size = static_cast<std::size_t>(block_size_);
  for (; tokens.size() >= size; tokens = tokens.subspan(size)) {
    const auto offer = offered_.find({before, {tokens.begin(), tokens.begin() + block_size_}});
    if (offer == offered_.end()) break;
    before = offer->second;
    hold(before);
    found.push_back(before);
  }
  return found;
}

bool CacheBlocks::offer(std::int32_t block, std::int32_t before, std::span<const std::int32_t> tokens) {
  if (before != kNone && blocks_[static_cast<std::size_t>(before)].offered == offered_.end()) return false;
  const auto [place, is_new] = offered_.try_emplace({before, {tokens.begin(), tokens.end()}}, block);
  if (is_new) blocks_[static_cast<std::size_t>(block)].offered = place;
  return is_new;
}

void CacheBlocks::withdraw_offers() {
  offered_.clear();
  for (Block& b : blocks_) b.offered = offered_.end();
}

void CacheBlocks::release(std::span<const std::int32_t> blocks) {
  for (std::size_t i = blocks.size(); i-- > 0;) {
    const std::int32_t block = blocks[i];
    Block& b = blocks_[static_cast<std::size_t>(block)];
    if (--b.holders > 0) continue;
    const bool is_offered = b.offered != offered_.end();
    b.unheld = unheld_.insert(is_offered ? unheld_.end() : unheld_.begin(), block);
  }
}

}  // namespace warpwright
