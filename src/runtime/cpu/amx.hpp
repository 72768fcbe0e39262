// AMX's tile registers: eight tiles of 16 rows × 64 bytes. Only for files that are compiled with AMX.
#pragma once

#include <immintrin.h>

#include <cstdint>

namespace warpwright {
namespace {

// Palette 1 (Intel SDM volume 1, chapter 18).
struct alignas(64) TileConfig {
  std::uint8_t palette, start_row, reserved[14];
  std::uint16_t row_bytes[16];
  std::uint8_t rows[16];
};
constexpr TileConfig kWholeTiles{
    1, 0, {}, {64, 64, 64, 64, 64, 64, 64, 64}, {16, 16, 16, 16, 16, 16, 16, 16}};

// While it lives, this thread's eight tiles have their full size.
class TileSession {
 public:
  // The compilers' intrinsic declares that it reads only the operand's first bytes, so the compiler may drop
  // the stores to the rest. This statement reads the whole configuration.
  TileSession() { asm volatile("ldtilecfg %0" : : "m"(kWholeTiles)); }
  TileSession(const TileSession&) = delete;
  TileSession& operator=(const TileSession&) = delete;
  ~TileSession() { _tile_release(); }
};

}  // namespace
}  // namespace warpwright
