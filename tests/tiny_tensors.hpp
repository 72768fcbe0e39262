// A safetensors file of pseudo-random fp32 tensors, for tests that make small models.
#pragma once

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace warpwright {

class TinyTensors {
 public:
  // Numbers within 0.3 of the center. Returns the place of the first one in data.
  std::size_t add(const std::string& name, const std::vector<int>& shape, float center = 0) {
    std::size_t count = 1;
    for (const int size : shape) count *= static_cast<std::size_t>(size);
    const std::size_t first = data.size();
    for (std::size_t i = 0; i < count; ++i) {
      state_ = state_ * 1664525u + 1013904223u;
      data.push_back(center + static_cast<float>(state_ >> 8) / static_cast<float>(1 << 24) * 0.6f - 0.3f);
    }
    header_[name] = {{"dtype", "F32"},
                     {"shape", shape},
                     {"data_offsets", {first * sizeof(float), data.size() * sizeof(float)}}};
    return first;
  }
  // A weight and the bias of a layer with this many outputs.
  void add_linear(const std::string& name, const std::vector<int>& shape, int outputs) {
    add(name + ".weight", shape);
    add(name + ".bias", {outputs});
  }
  void add_norm(const std::string& name, int size) {
    add(name + ".weight", {size}, 1);
    add(name + ".bias", {size});
  }
  void write(const std::filesystem::path& file) const {
    std::string text = header_.dump();
    text.resize((text.size() + 7) / 8 * 8, ' ');
    const std::uint64_t size = text.size();
    std::ofstream out(file, std::ios::binary);
    out.write(reinterpret_cast<const char*>(&size), sizeof size) << text;
    out.write(reinterpret_cast<const char*>(data.data()),
              static_cast<std::streamsize>(data.size() * sizeof(float)));
  }

  std::vector<float> data;

 private:
  nlohmann::ordered_json header_;
  std::uint32_t state_ = 1;
};

}  // namespace warpwright
