// Hashes keys that files and texts choose. The hash depends on a number that differs in each process, so
// nobody can write a file whose keys collide. No result depends on it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace warpwright::text {

std::uint64_t hash_key();  // this process's number

struct KeyedHash {
  std::size_t operator()(std::string_view key) const noexcept;
};

}  // namespace warpwright::text
