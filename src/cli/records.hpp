// Measurements that this project's benches have written.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace warpwright::cli {

struct Record {
  std::string op, variant;  // "matmul.forward", "cuda.cublaslt"
  std::string problem;      // "M=65536 N=2304 K=768 bf16", or a step's "gpt2:124M bf16 B=64 T=1024"
  std::string dtype;
  double seconds = 0, flops = 0, bytes = 0;  // of one call; the least bytes
  std::int64_t M = 0, N = 0, K = 0;          // of a product; 0 elsewhere
};

// Reads the output of `warpwright bench ops --json`, `bench step --json` or bench/peers/gemm.py --json, or a
// machine's record in bench/results. Leaves out rows of zero time or zero bytes. Throws Error for other
// files.
std::vector<Record> read_records(const std::filesystem::path& path);

}  // namespace warpwright::cli
