#include "comm/peer_copies.hpp"

#include <cudaTypedefs.h>
#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <string_view>

#include "comm/host.hpp"
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
  if (found != cudaDriverEntryPointSuccess) {
    throw Error(fmt::format("NVIDIA's driver has no {}", name), kDoing,
                "install a newer driver, or set WARPWRIGHT_EXCHANGE=nccl");
  }
  return reinterpret_cast<Function>(entry);
}

struct Driver {
  PFN_cuMemGetAddressRange_v3020 address_range =
      driver_function<PFN_cuMemGetAddressRange_v3020>("cuMemGetAddressRange", 3020);
  PFN_cuStreamBatchMemOp_v11070 operate_on_memory =
      driver_function<PFN_cuStreamBatchMemOp_v11070>("cuStreamBatchMemOp", 11070);
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

// "" if other processes cannot get at the allocation.
std::string handle_of(void* allocation) {
  cudaIpcMemHandle_t handle;
  if (cudaIpcGetMemHandle(&handle, allocation) != cudaSuccess) {
    cudaGetLastError();
    return "";
  }
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
  const std::string handle = handle_of(reinterpret_cast<void*>(base));
  if (handle.empty()) {
    throw Error("a GPU's memory is out of reach for other processes", kDoing,
                "leave the exchanges to NCCL with WARPWRIGHT_EXCHANGE=nccl");
  }
  handle.copy(place.handle, sizeof place.handle);
  return place;
}

// A rank's block of flags: a word that is 1, to be copied to others, and then for each exchange by rank
// whether the rank waits for data, and whether its data is here. The waiter clears the flag.
constexpr std::size_t kFlagBytes = std::size_t{2} << 20;

struct Flags {
  std::size_t ranks, exchange;

  static std::size_t most(std::size_t ranks) { return kFlagBytes / sizeof(std::uint32_t) / (2 * ranks) - 1; }
  std::byte* waits(std::byte* block, int rank) const { return word(block, static_cast<std::size_t>(rank)); }
  std::byte* is_here(std::byte* block, int rank) const {
    return word(block, ranks + static_cast<std::size_t>(rank));
  }

 private:
  std::byte* word(std::byte* block, std::size_t index) const {
    return block + sizeof(std::uint32_t) * (1 + exchange * 2 * ranks + index);
  }
};

class Copies final : public Comm::Exchange {
 public:
  using Copy = PeerCopies::Copy;
  struct Peer {
    std::vector<Copy> copies;
    bool sends = false;                  // to this rank
    std::byte *its_waits, *its_is_here;  // that this rank sets
    std::byte *waits, *is_here;          // that it sets
  };

  Copies(const std::byte* one, std::vector<Peer> peers) : one_(one), peers_(std::move(peers)) {}

  void run(const Stream& stream) const override {
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
  void set(std::byte* flag, const Stream& stream) const { copy({flag, one_, sizeof(std::uint32_t)}, stream); }
  static void wait(std::byte* flag, const Stream& stream) {
    CUstreamBatchMemOpParams wait_and_clear[2] = {};
    wait_and_clear[0].waitValue.operation = CU_STREAM_MEM_OP_WAIT_VALUE_32;
    wait_and_clear[0].waitValue.address = address_of(flag);
    wait_and_clear[0].waitValue.value = 1;
    wait_and_clear[0].waitValue.flags = CU_STREAM_WAIT_VALUE_EQ;
    wait_and_clear[1].writeValue.operation = CU_STREAM_MEM_OP_WRITE_VALUE_32;
    wait_and_clear[1].writeValue.address = address_of(flag);
    wait_and_clear[1].writeValue.value = 0;
    check(driver().operate_on_memory(stream.get(), 2, wait_and_clear, 0));
  }

  const std::byte* one_;
  std::vector<Peer> peers_;
};

// WARPWRIGHT_EXCHANGE=nccl leaves all exchanges to NCCL.
bool are_wanted() {
  const char* carrier = std::getenv("WARPWRIGHT_EXCHANGE");
  if (!carrier || std::string_view(carrier) == "copies") return true;
  if (std::string_view(carrier) == "nccl") return false;
  throw Error(fmt::format("WARPWRIGHT_EXCHANGE is {}", carrier), kDoing, "use copies or nccl");
}

bool all_say_yes(const Comm& texts, bool mine) {
  const std::vector<double> all = gathered(texts, {mine ? 1.0 : 0.0});
  return std::ranges::count(all, 1.0) == texts.size();
}

}  // namespace

PeerCopies::PeerCopies(const Comm& texts, Device device)
    : texts_(texts),
      device_(device),
      flags_(kFlagBytes, device, "flags of exchanges"),
      flags_of_ranks_(static_cast<std::size_t>(texts.size())) {
  const std::uint32_t one = 1;
  cuda::check(cudaMemcpy(flags_.data(), &one, sizeof one, cudaMemcpyHostToDevice), kDoing);
}

PeerCopies::~PeerCopies() {
  for (const auto& [place, address] : mapped_) cudaIpcCloseMemHandle(address);
}

std::unique_ptr<PeerCopies> PeerCopies::connect(const Comm& texts, Device device) {
  std::unique_ptr<PeerCopies> made(new PeerCopies(texts, device));
  const bool possible = made->map_flags();
  return all_say_yes(texts, possible && are_wanted()) ? std::move(made) : nullptr;
}

bool PeerCopies::map_flags() {
  // A handle means nothing on another machine, or means something else.
  const std::string machine = machine_id();
  const std::vector<std::string> machines = texts_.all_gather(machine);
  const std::vector<std::string> handles = texts_.all_gather(handle_of(flags_.data()));
  for (int r = 0; r < texts_.size(); ++r) {
    const auto index = static_cast<std::size_t>(r);
    if (machines[index] != machine || handles[index].empty()) return false;
    flags_of_ranks_[index] = r == texts_.rank() ? flags_.data() : mapped(r, handles[index]);
    if (!flags_of_ranks_[index]) return false;
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

// Matches the parts for a rank with the places that it has for them, which come in the same order.
std::vector<PeerCopies::Copy> PeerCopies::copies_to(int rank, const std::vector<Comm::Outgoing>& send,
                                                    const std::string& places) {
  std::vector<Copy> copies;
  auto part = send.begin();
  for (std::size_t at = 0; at < places.size(); at += sizeof(Place)) {
    Place place;
    std::memcpy(&place, places.data() + at, sizeof place);
    if (place.from != texts_.rank()) continue;
    part = std::find_if(part, send.end(),
                        [&](const Comm::Outgoing& out) { return out.to == rank && !out.bytes.empty(); });
    if (part == send.end() || part->bytes.size() != place.bytes) {
      throw Error("two ranks do not agree on what they exchange", kDoing, "start all ranks with one program");
    }
    std::byte* memory = mapped(rank, {place.handle, sizeof place.handle});
    if (!memory) {
      throw Error(fmt::format("the memory of rank {} is out of reach", rank), kDoing,
                  "leave the exchanges to NCCL with WARPWRIGHT_EXCHANGE=nccl");
    }
    copies.push_back({memory + place.offset, part->bytes.data(), place.bytes});
    ++part;
  }
  return copies;
}

std::unique_ptr<const Comm::Exchange> PeerCopies::prepare(const std::vector<Comm::Outgoing>& send,
                                                          const std::vector<Comm::Incoming>& receive) {
  const int ranks = texts_.size(), self = texts_.rank();
  const Flags flags{static_cast<std::size_t>(ranks), exchanges_++};
  if (exchanges_ > Flags::most(flags.ranks)) {
    throw Error("there are more exchanges than flags", kDoing,
                "leave the exchanges to NCCL with WARPWRIGHT_EXCHANGE=nccl");
  }
  std::string mine;
  std::vector<bool> sends(flags.ranks);  // to this rank
  for (const Comm::Incoming& part : receive) {
    if (part.bytes.empty()) continue;
    const Place place = place_of(part);
    mine.append(reinterpret_cast<const char*>(&place), sizeof place);
    sends[static_cast<std::size_t>(part.from)] = true;
  }
  const std::vector<std::string> places = texts_.all_gather(mine);
  std::vector<Copies::Peer> peers;
  for (int step = 1; step < ranks; ++step) {  // not all to the same rank first
    const int rank = (self + step) % ranks;
    const auto r = static_cast<std::size_t>(rank);
    std::byte *block = flags_.data(), *its = flags_of_ranks_[r];
    peers.push_back({.copies = copies_to(rank, send, places[r]),
                     .sends = sends[r],
                     .its_waits = flags.waits(its, self),
                     .its_is_here = flags.is_here(its, self),
                     .waits = flags.waits(block, rank),
                     .is_here = flags.is_here(block, rank)});
  }
  return std::make_unique<Copies>(flags_.data(), std::move(peers));
}

}  // namespace warpwright
