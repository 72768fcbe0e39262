#include "ops/matmul/measured.hpp"

#include <fmt/format.h>

#include <cmath>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "core/error.hpp"

namespace warpwright::ops::matmul {
namespace {

constexpr Activation kActivations[] = {Activation::none, Activation::gelu_tanh, Activation::gelu_erf};

[[noreturn]] void refuse(std::string_view what) {
  throw Error(fmt::format("no measured product: {}", what), "measured times",
              "write them anew with `warpwright bench products … --table FILE`");
}

template <class T, std::size_t count>
T named(const std::string& name, const T (&values)[count]) {
  for (const T value : values) {
    if (name_of(value) == name) return value;
  }
  refuse(fmt::format("there is no '{}'", name));
}

}  // namespace

std::string MeasuredProduct::line() const {
  nlohmann::ordered_json json = {{"direction", name_of(request.direction)},
                                 {"rows", request.extent.rows},
                                 {"cols", request.extent.cols},
                                 {"depth", request.extent.depth},
                                 {"activation", name_of(request.activation)},
                                 {"row_sums", request.row_sums},
                                 {"seconds", nlohmann::ordered_json::object()}};
  for (const auto& [kernel, time] : seconds) {
    // Four digits, because times are not more precise.
    const double unit = std::pow(10, std::floor(std::log10(time)) - 3);
    json["seconds"][kernel] = std::round(time / unit) * unit;
  }
  return json.dump();
}

MeasuredProduct MeasuredProduct::read(const std::string& line) {
  MeasuredProduct product;
  try {
    const auto json = nlohmann::json::parse(line);
    Request& r = product.request;
    r.direction = named(json.at("direction").get<std::string>(), roofline::kDirections);
    r.extent = {json.at("rows").get<std::int64_t>(), json.at("cols").get<std::int64_t>(),
                json.at("depth").get<std::int64_t>()};
    r.activation = named(json.at("activation").get<std::string>(), kActivations);
    r.row_sums = json.at("row_sums").get<bool>();
    r.extra = r.activation != Activation::none;
    r.adds = r.direction == Direction::dw;
    product.seconds = json.at("seconds").get<std::map<std::string, double>>();
  } catch (const nlohmann::json::exception& error) {
    refuse(error.what());
  }
  const Extent& e = product.request.extent;
  if (e.rows < 1 || e.cols < 1 || e.depth < 1) refuse("sizes begin at 1");
  for (const auto& [kernel, time] : product.seconds) {
    if (!(time > 0)) refuse(fmt::format("{} in {} seconds", kernel, time));
  }
  return product;
}

std::string kernel_name(Schedule schedule, const Selection& selection) {
  return fmt::format("cuda.{}[{}]", name_of(schedule), describe(selection));
}

std::string kernel_name(const LibraryKernel& kernel) {
  return fmt::format("cuda.cublaslt[{}]", describe(kernel));
}

LibraryKernel library_kernel_named(const std::string& name) {
  LibraryKernel k;
  const auto number = [&name](std::string_view after, const char* format, auto*... values) {
    const std::size_t at = name.find(after);
    if (at != std::string::npos) std::sscanf(name.c_str() + at + after.size(), format, values...);
  };
  number("[", "%dx%d", &k.rows, &k.cols);
  number("clusters ", "%dx%d", &k.cluster_down, &k.cluster_across);
  number("depth in ", "%d", &k.parts);
  number("option ", "%d", &k.option);
  if (name != kernel_name(k)) refuse(fmt::format("there is no kernel '{}'", name));
  return k;
}

}  // namespace warpwright::ops::matmul
