#include "comm/peer_copies.hpp"

#include <cudaTypedefs.h>
#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "core/error.hpp"
#include "runtime/cuda/check.hpp"

namespace warpwright {
namespace {

constexpr const char* kDoing = "exchange between GPUs";

// A function of the driver, which the program is not linked with.
template <class Function>
Function driver_function(const char* name, unsigned version) {
  void* entry = nullptr;
  cudaDriverEntryPointQueryResult found{};
  cuda::check(cudaGetDriverEntryPointByVersion(name, &entry, version, cudaEnableDefault, &found), name);
  return reinterpret_cast<Function>(entry);
}

struct Driver {
  PFN_cuMemGetAddressRange_v3020 address_range =
      driver_function<PFN_cuMemGetAddressRange_v3020>("cuMemGetAddressRange", 3020);
  PFN_cuStreamWaitValue32_v11070 wait =
      driver_function<PFN_cuStreamWaitValue32_v11070>("cuStreamWaitValue32", 11070);
  PFN_cuStreamWriteValue32_v11070 write =
      driver_function<PFN_cuStreamWriteValue32_v11070>("cuStreamWriteValue32", 11070);
};
const Driver& driver() {
  static const Driver once;
  return once;
}

void check(CUresult result) {
  cuda::check(static_cast<cudaError_t>(result), kDoing);
}

CUdeviceptr address_of(const std::byte* memory) {
  return reinterpret_cast<CUdeviceptr>(memory);
}

std::string handle_of(void* allocation) {
  cudaIpcMemHandle_t handle;
  cuda::check(cudaIpcGetMemHandle(&handle, allocation), kDoing);
  return {handle.reserved, sizeof handle.reserved};
}

// A part that a rank receives, as the other ranks must know it.
struct Place {
  int from = 0;
  char handle[sizeof(cudaIpcMemHandle_t)] = {};
  std::size_t offset = 0, bytes = 0;
};

Place place_of(const Comm::Incoming& part) {
  CUdeviceptr base = 0;
  std::size_t size = 0;
  const CUdeviceptr address = address_of(part.bytes.data());
  check(driver().address_range(&base, &size, address));
  Place place{.from = part.from, .handle = {}, .offset = address - base, .bytes = part.bytes.size()};
  handle_of(reinterpret_cast<void*>(base)).copy(place.handle, sizeof place.handle);
  return place;
}

// The words in a rank's block of flags. An exchange counts its runs, and a flag is the number of the run for
// which it is set. For each exchange: the run's number here, to be copied to others; and by rank, whether the
// rank waits for data, and whether its data is here.
constexpr std::size_t kFlagBytes = std::size_t{2} << 20;

struct Flags {
  std::size_t ranks, exchange;

  static std::size_t most(std::size_t ranks) {
    return kFlagBytes / (sizeof(std::uint32_t) * (1 + 2 * ranks));
  }
  std::byte* run(std::byte* block) const { return word(block, 0); }
  std::byte* waits(std::byte* block, int rank) const {
    return word(block, 1 + static_cast<std::size_t>(rank));
  }
  std::byte* is_here(std::byte* block, int rank) const {
    return word(block, 1 + ranks + static_cast<std::size_t>(rank));
  }

 private:
  std::byte* word(std::byte* block, std::size_t index) const {
    return block + sizeof(std::uint32_t) * (exchange * (1 + 2 * ranks) + index);
  }
};

class Copies final : public Comm::Exchange {
 public:
  struct Copy {
    std::byte* to;
    const std::byte* from;
    std::size_t bytes;
  };
  struct Peer {
    std::vector<Copy> copies;
    bool sends = false;                  // to this rank
    std::byte *its_waits, *its_is_here;  // that this rank sets
    std::byte *waits, *is_here;          // that it sets
  };

  Copies(std::byte* run, std::vector<Peer> peers) : run_(run), peers_(std::move(peers)) {}

  void run(const Stream& stream) const override {
    ++runs_;
    check(driver().write(stream.get(), address_of(run_), runs_, CU_STREAM_WRITE_VALUE_DEFAULT));
    for (const Peer& peer : peers_) {
      if (peer.sends) set(peer.its_waits, stream);
    }
    for (const Peer& peer : peers_) {
      if (peer.copies.empty()) continue;
      wait(peer.waits, stream);
      for (const Copy& c : peer.copies) copy(c, stream);
      set(peer.its_is_here, stream);
    }
    for (const Peer& peer : peers_) {
      if (peer.sends) wait(peer.is_here, stream);
    }
  }

 private:
  static void copy(const Copy& c, const Stream& stream) {
    cuda::check(cudaMemcpyAsync(c.to, c.from, c.bytes, cudaMemcpyDeviceToDevice, stream.get()), kDoing);
  }
  void set(std::byte* flag, const Stream& stream) const { copy({flag, run_, sizeof runs_}, stream); }
  void wait(std::byte* flag, const Stream& stream) const {
    check(driver().wait(stream.get(), address_of(flag), runs_, CU_STREAM_WAIT_VALUE_GEQ));
  }

  std::byte* run_;
  std::vector<Peer> peers_;
  mutable std::uint32_t runs_ = 0;
};

bool all_say_yes(const Comm& texts, bool mine) {
  const std::vector<double> all = gathered(texts, {mine ? 1.0 : 0.0});
  return std::ranges::count(all, 1.0) == texts.size();
}

}  // namespace

PeerCopies::PeerCopies(const Comm& texts, Device device)
    : texts_(texts),
      device_(device),
      flags_(kFlagBytes, device, "flags of exchanges"),
      flags_of_ranks_(static_cast<std::size_t>(texts.size())) {}

PeerCopies::~PeerCopies() {
  for (const auto& [place, address] : mapped_) cudaIpcCloseMemHandle(address);
}

std::unique_ptr<PeerCopies> PeerCopies::connect(const Comm& texts, Device device) {
  std::unique_ptr<PeerCopies> made(new PeerCopies(texts, device));
  return all_say_yes(texts, made->map_flags()) ? std::move(made) : nullptr;
}

bool PeerCopies::map_flags() {
  const std::vector<std::string> handles = texts_.all_gather(handle_of(flags_.data()));
  for (int r = 0; r < texts_.size(); ++r) {
    std::byte*& flags = flags_of_ranks_[static_cast<std::size_t>(r)];
    flags = r == texts_.rank() ? flags_.data() : mapped(r, handles[static_cast<std::size_t>(r)]);
    if (!flags) return false;
  }
  return true;
}

std::byte* PeerCopies::mapped(int rank, const std::string& handle) {
  std::byte*& address = mapped_[{rank, handle}];
  if (address) return address;
  cudaIpcMemHandle_t opened;
  handle.copy(opened.reserved, sizeof opened.reserved);
  void* memory = nullptr;
  if (cudaIpcOpenMemHandle(&memory, opened, cudaIpcMemLazyEnablePeerAccess) != cudaSuccess) {
    cudaGetLastError();
    mapped_.erase({rank, handle});
    return nullptr;
  }
  return address = static_cast<std::byte*>(memory);
}

std::unique_ptr<const Comm::Exchange> PeerCopies::prepare(const std::vector<Comm::Outgoing>& send,
                                                          const std::vector<Comm::Incoming>& receive) {
  const int ranks = texts_.size(), self = texts_.rank();
  const Flags flags{static_cast<std::size_t>(ranks), exchanges_++};
  if (exchanges_ > Flags::most(flags.ranks)) {
    throw Error("there are more exchanges than flags", kDoing, "use fewer layers or ranks");
  }
  std::string mine;
  for (const Comm::Incoming& part : receive) {
    if (part.bytes.empty()) continue;
    const Place place = place_of(part);
    mine.append(reinterpret_cast<const char*>(&place), sizeof place);
  }
  const std::vector<std::string> all = texts_.all_gather(mine);
  std::vector<Copies::Peer> peers;
  for (int step = 1; step < ranks; ++step) {
    const int r = (self + step) % ranks;
    std::byte *block = flags_.data(), *its = flags_of_ranks_[static_cast<std::size_t>(r)];
    Copies::Peer& peer = peers.emplace_back(Copies::Peer{.copies = {},
                                                         .sends = false,
                                                         .its_waits = flags.waits(its, self),
                                                         .its_is_here = flags.is_here(its, self),
                                                         .waits = flags.waits(block, r),
                                                         .is_here = flags.is_here(block, r)});
    for (const Comm::Incoming& part : receive) peer.sends |= part.from == r && !part.bytes.empty();
    const std::string& text = all[static_cast<std::size_t>(r)];
    auto part = send.begin();
    for (std::size_t at = 0; at < text.size(); at += sizeof(Place)) {
      Place place;
      std::memcpy(&place, text.data() + at, sizeof place);
      if (place.from != self) continue;
      part = std::find_if(part, send.end(),
                          [&](const Comm::Outgoing& out) { return out.to == r && !out.bytes.empty(); });
      if (part == send.end() || part->bytes.size() != place.bytes) {
        throw Error("two ranks do not agree on what they exchange", kDoing, "report this as a defect");
      }
      std::byte* memory = mapped(r, {place.handle, sizeof place.handle});
      if (!memory) {
        throw Error(fmt::format("the memory of rank {} is out of reach", r), kDoing,
                    "see whether the GPUs are in order with nvidia-smi");
      }
      peer.copies.push_back({memory + place.offset, part->bytes.data(), place.bytes});
      ++part;
    }
  }
  return std::make_unique<Copies>(flags.run(flags_.data()), std::move(peers));
}

void PeerCopies::abandon() {
  const Stream own(device_);
  cudaMemsetAsync(flags_.data(), 0x7f, flags_.bytes(), own.get());
  own.synchronize();
}

}  // namespace warpwright
