#include "ops/testing/repeated.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "runtime/philox.hpp"

namespace warpwright::ops::testing {
namespace {

constexpr std::size_t kRegionGuard = kAlignment;
constexpr std::byte kRegionPoison{0xff};

bool contains(const std::vector<std::string_view>& names, std::string_view name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

Tensor host_bytes(const void* data, std::size_t count) {
  return {const_cast<void*>(data), DType::u8, {static_cast<std::int64_t>(count)}};
}

}  // namespace

RepeatedCopy::RepeatedCopy(Fixture& fixture, const std::vector<TensorUse>& uses, const Repetition& how)
    : fixture_(fixture), regions_(fixture.storages().size()) {
  for (const TensorUse& use : uses) {
    Region& region = regions_[storage_of(use.tensor)];
    const Kind kind = contains(how.once, use.argument)      ? Kind::once
                      : contains(how.columns, use.argument) ? Kind::columns
                      : contains(how.bounds, use.argument)  ? Kind::bounds
                                                            : Kind::rows;
    if (region.kind != Kind::unused && region.kind != kind) {
      throw Error("shares its memory with a tensor that is repeated in another way",
                  std::string(use.argument), "");
    }
    region.kind = kind;
    if (use.argument == how.beyond && times_ == 1) times_ = how.elements / use.tensor.elements() + 1;
    if (kind == Kind::rows) {
      elements_.insert({use.tensor.elements(), fixture.storages()[storage_of(use.tensor)].tensor.elements()});
    }
  }
}

std::size_t RepeatedCopy::storage_of(const Tensor& tensor) const {
  const auto* address = static_cast<const std::byte*>(tensor.data);
  const auto& storages = fixture_.storages();
  const auto found = std::find_if(storages.begin(), storages.end(), [&](const auto& storage) {
    return address >= storage.bytes.data() && address < storage.bytes.data() + storage.bytes.size();
  });
  if (found == storages.end()) throw Error("was not made by the fixture", "a repeated tensor", "");
  return static_cast<std::size_t>(found - storages.begin());
}

std::size_t RepeatedCopy::bytes_of(std::size_t storage) const {
  const Tensor& tensor = fixture_.storages()[storage].tensor;
  const auto times = static_cast<std::size_t>(times_), size = size_of(tensor.dtype);
  switch (regions_[storage].kind) {
    case Kind::unused:
      return 0;
    case Kind::once:
      return tensor.bytes();
    case Kind::bounds:
      return tensor.bytes() * times - (times - 1) * size;
    case Kind::rows:
    case Kind::columns:
      return tensor.bytes() * times;
  }
  return 0;
}

std::size_t RepeatedCopy::chunks_of(std::size_t storage) const {
  return regions_[storage].kind == Kind::columns
             ? static_cast<std::size_t>(fixture_.storages()[storage].tensor.shape[0])
             : 1;
}

std::size_t RepeatedCopy::bytes() const {
  std::size_t sum = 0;
  for (std::size_t s = 0; s < regions_.size(); ++s) sum += bytes_of(s) + 2 * kRegionGuard;
  return sum;
}

std::vector<std::int64_t> RepeatedCopy::sample() const {
  constexpr std::uint64_t kSeeded = 8;
  std::set<std::int64_t> sample{0, times_ - 1};
  for (const std::int64_t elements : elements_) {
    for (const int bits : {31, 32}) {
      const std::int64_t at = (std::int64_t{1} << bits) / elements;
      if (at < times_) sample.insert(at);
    }
  }
  const PhiloxStream stream(31, 0);
  for (std::uint64_t i = 0; i < kSeeded; ++i) {
    sample.insert(static_cast<std::int64_t>(stream.uniform(i) * static_cast<double>(times_)));
  }
  return {sample.begin(), sample.end()};
}

Tensor RepeatedCopy::device_bytes(std::size_t storage, std::size_t first, std::size_t count) const {
  return {regions_[storage].buffer.data() + kRegionGuard + first,
          DType::u8,
          {static_cast<std::int64_t>(count)},
          device_};
}

void RepeatedCopy::lay_out(Device device, const Stream& stream) {
  device_ = device;
  const std::vector<std::byte> poison(kRegionGuard, kRegionPoison);
  for (std::size_t s = 0; s < regions_.size(); ++s) {
    if (regions_[s].kind == Kind::unused) continue;
    const Tensor& tensor = fixture_.storages()[s].tensor;
    const std::size_t whole = bytes_of(s);
    regions_[s].buffer = Buffer(whole + 2 * kRegionGuard, device, "repeated test arguments");
    for (std::byte* guard : {regions_[s].buffer.data(), regions_[s].buffer.data() + kRegionGuard + whole}) {
      copy({guard, DType::u8, {kRegionGuard}, device}, host_bytes(poison.data(), kRegionGuard), stream);
    }
    std::vector<std::int32_t> bounds;
    if (regions_[s].kind == Kind::bounds) {
      const auto* first = tensor.as<std::int32_t>();
      const auto sequences = tensor.shape[0] - 1;
      bounds.push_back(0);
      for (std::int64_t i = 0; i < times_ * sequences; ++i) {
        const auto passed = static_cast<std::int32_t>(i / sequences * first[sequences]);
        bounds.push_back(passed + first[i % sequences + 1]);
      }
      copy(device_bytes(s, 0, whole), host_bytes(bounds.data(), whole), stream);
    } else if (regions_[s].kind == Kind::once) {
      copy(device_bytes(s, 0, whole), host_bytes(tensor.data, whole), stream);
    } else {
      const std::size_t chunk = tensor.bytes() / chunks_of(s), stride = whole / chunks_of(s);
      for (std::size_t c = 0; c < chunks_of(s); ++c) {
        const std::size_t begin = c * stride;
        copy(device_bytes(s, begin, chunk),
             host_bytes(static_cast<std::byte*>(tensor.data) + c * chunk, chunk), stream);
        for (std::size_t done = chunk; done < stride;) {
          const std::size_t more = std::min(done, stride - done);
          copy(device_bytes(s, begin + done, more), device_bytes(s, begin, more), stream);
          done += more;
        }
      }
    }
    stream.synchronize();  // the host's bytes have been read by now
  }
}

void RepeatedCopy::move(std::string_view argument, Tensor& tensor) const {
  const std::size_t s = storage_of(tensor);
  const Kind kind = regions_[s].kind;
  const Tensor& whole = fixture_.storages()[s].tensor;
  if (kind == Kind::rows) {
    if (tensor.shape[0] * tensor.strides[0] != whole.elements()) {
      throw Error("does not cover all rows of its memory", std::string(argument), "");
    }
    tensor.shape[0] *= times_;
  } else if (kind == Kind::columns) {
    tensor = Tensor(tensor.data, tensor.dtype, {tensor.shape[0], tensor.shape[1] * times_});
  } else if (kind == Kind::bounds) {
    tensor = Tensor(tensor.data, tensor.dtype, {(tensor.shape[0] - 1) * times_ + 1});
  }
  if (!regions_[s].buffer.data()) return;
  const auto offset = static_cast<std::byte*>(tensor.data) - static_cast<std::byte*>(whole.data);
  tensor.data = regions_[s].buffer.data() + kRegionGuard + offset;
  tensor.device = device_;
}

void RepeatedCopy::expect_guards(const Stream& stream) const {
  for (std::size_t s = 0; s < regions_.size(); ++s) {
    if (regions_[s].kind == Kind::unused) continue;
    for (std::byte* guard :
         {regions_[s].buffer.data(), regions_[s].buffer.data() + kRegionGuard + bytes_of(s)}) {
      std::vector<std::byte> host(kRegionGuard);
      copy(host_bytes(host.data(), kRegionGuard), {guard, DType::u8, {kRegionGuard}, device_}, stream);
      stream.synchronize();
      EXPECT_TRUE(std::all_of(host.begin(), host.end(), [](std::byte b) { return b == kRegionPoison; }))
          << "bytes around a tensor changed";
    }
  }
}

void RepeatedCopy::fetch(std::int64_t repetition, const Stream& stream) {
  for (std::size_t s = 0; s < regions_.size(); ++s) {
    const Kind kind = regions_[s].kind;
    if (kind == Kind::unused || kind == Kind::bounds) continue;
    const Tensor& tensor = fixture_.storages()[s].tensor;
    const std::size_t chunk = tensor.bytes() / chunks_of(s), stride = bytes_of(s) / chunks_of(s);
    const std::size_t passed = kind == Kind::once ? 0 : static_cast<std::size_t>(repetition) * chunk;
    for (std::size_t c = 0; c < chunks_of(s); ++c) {
      copy(host_bytes(static_cast<std::byte*>(tensor.data) + c * chunk, chunk),
           device_bytes(s, c * stride + passed, chunk), stream);
    }
  }
  stream.synchronize();
}

void RepeatedCopy::expect_bits(const std::vector<std::vector<std::byte>>& storages) const {
  for (std::size_t s = 0; s < regions_.size(); ++s) {
    if (regions_[s].kind == Kind::rows || regions_[s].kind == Kind::columns) {
      EXPECT_TRUE(fixture_.storages()[s].bytes == storages[s]) << "tensor " << s;
    }
  }
}

std::vector<std::vector<double>> all_elements(const std::vector<TensorUse>& uses) {
  std::vector<std::vector<double>> all;
  for (const TensorUse& use : uses) {
    all.push_back(is_floating(use.tensor.dtype) ? elements_of(use.tensor) : std::vector<double>{});
  }
  return all;
}

void expect_repeated(RepeatedCopy& copy, Fixture& fixture, const std::vector<TensorUse>& uses,
                     const std::vector<std::vector<double>>& before,
                     const std::vector<std::vector<double>>& after,
                     const std::vector<std::vector<std::byte>>& small_run, const ReductionLength& reduction,
                     const Repetition& how, const Stream& stream) {
  copy.expect_guards(stream);
  const auto times = static_cast<double>(copy.times());
  for (const std::int64_t repetition : copy.sample()) {
    SCOPED_TRACE(fmt::format("repetition {} of {}", repetition, copy.times()));
    copy.fetch(repetition, stream);
    if (how.same_bits) copy.expect_bits(small_run);
    if (!how.same_bits || repetition == 0) expect_only_written(fixture, uses);
    for (std::size_t i = 0; i < uses.size(); ++i) {
      const auto& [argument, tensor, access] = uses[i];
      const bool once = copy.is_once(tensor);
      if (access == Access::read || access == Access::scratch || after[i].empty() ||
          (once ? repetition > 0 : how.same_bits))
        continue;
      std::vector<double> wanted = after[i];
      for (std::size_t e = 0; once && e < wanted.size(); ++e) {
        wanted[e] = how.sum(access == Access::update ? before[i][e] : 0, wanted[e], times);
      }
      const Deviation error = compare(elements_of(tensor), wanted, tensor.dtype);
      const double bound =
          once && how.exact_sums ? 0 : tolerance(tensor.dtype, reduction(argument) * (once ? times : 1));
      EXPECT_EQ(error.not_finite, 0) << argument;
      EXPECT_LE(error.relative, bound) << argument;
      EXPECT_LE(error.worst, 16 * bound) << argument << ", " << error.worst_ulp << " ulp";
    }
  }
}

}  // namespace warpwright::ops::testing
