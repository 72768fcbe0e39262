// Tokens for small runs.
#pragma once

#include <cstdint>
#include <filesystem>
#include <utility>
#include <vector>

#include "data/shard.hpp"

namespace warpwright {

// Makes shards of a vocabulary of 64 tokens without data.json or a tokenizer, as llm.c does.
inline void make_shards(const std::filesystem::path& folder, std::int64_t train, std::int64_t val) {
  std::filesystem::create_directories(folder);
  for (const auto& [split, tokens] : {std::pair{"train", train}, std::pair{"val", val}}) {
    std::vector<std::int32_t> ids(static_cast<std::size_t>(tokens));
    for (std::size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<std::int32_t>(i * i % 61);
    ShardWriter writer(folder, split, 64, 10'000'000);
    writer.append(ids);
    writer.finish();
  }
}

}  // namespace warpwright
