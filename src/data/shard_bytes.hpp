// Makes the bytes of token shards for the tests.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace warpwright {

// A shard with the given header fields and ids, valid or not.
template <class Id>
std::string shard_bytes(std::int32_t magic, std::int32_t version, std::int32_t count,
                        const std::vector<Id>& ids) {
  std::vector<std::int32_t> header(256);
  header[0] = magic;
  header[1] = version;
  header[2] = count;
  std::string bytes(reinterpret_cast<const char*>(header.data()), 1024);
  return bytes.append(reinterpret_cast<const char*>(ids.data()), ids.size() * sizeof(Id));
}

}  // namespace warpwright
