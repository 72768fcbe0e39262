#include "comm/nccl.hpp"

#include <cuda_runtime.h>
#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <deque>
#include <exception>
#include <mutex>
#include <set>
#include <string>

#include "comm/nccl_library.hpp"
#include "comm/peer_copies.hpp"
#include "core/error.hpp"
#include "runtime/cuda/check.hpp"

namespace warpwright {
namespace {

using Clock = std::chrono::steady_clock;

constexpr const char* kDoing = "exchange between GPUs";
constexpr std::chrono::seconds kEndOfNccl(30);

// An identifier that no other GPU has.
std::string identity_of(Device device) {
  cudaDeviceProp properties;
  cuda::check(cudaGetDeviceProperties(&properties, device.index), "asking for the GPU's identity");
  return {properties.uuid.bytes, sizeof properties.uuid.bytes};
}

void require_own_gpus(const Comm& texts, Device device) {
  const std::vector<std::string> all = texts.all_gather(identity_of(device));
  const std::set<std::string> gpus(all.begin(), all.end());
  if (gpus.size() == all.size()) return;
  throw Error(
      fmt::format("{} ranks share {} GPUs", all.size(), gpus.size()), "start of the ranks",
      "start one rank for each GPU; a launcher that shows each rank one GPU must show different ones");
}

// Rank 0 makes it, and the others get it as a text.
ncclUniqueId shared_id(const Comm& texts) {
  ncclUniqueId id{};
  if (texts.rank() == 0) nccl::check(nccl::library().unique_id(&id), "start of NCCL");
  const std::string text = texts.all_gather({id.internal, sizeof id.internal}).front();
  std::memcpy(id.internal, text.data(), sizeof id.internal);
  return id;
}

class Nccl final : public Comm {
 public:
  Nccl(const Comm& texts, Device device) : Comm(&texts), texts_(texts), device_(device) {
    nccl::library();  // an Error here comes before any rank waits for another
    require_own_gpus(texts, device);
    const CurrentDevice current(device);
    const ncclUniqueId id = shared_id(texts);
    const auto operation = watched("start of NCCL");
    nccl::check(nccl::library().init(&comm_, size(), id, rank()), "start of NCCL");
    copies_ = PeerCopies::connect(texts, device);
    watchdog()->set_probe([this] { return problem(); });  // last: if this constructor throws, nobody ends it
  }
  ~Nccl() override {
    const Watchdog::Operation end(watchdog(), "end of NCCL", kEndOfNccl, kSeeThatRank);  // it may hang
    watchdog()->set_probe({});
    if (comm_ && std::uncaught_exceptions() == 0) nccl::library().destroy(comm_);
    for (const UnderWay& exchange : under_way_) cudaEventDestroy(exchange.end);
  }

  void all_to_all(const std::vector<Outgoing>& send, const std::vector<Incoming>& receive,
                  const Stream& stream) const override {
    const auto operation = watched("exchange of tensors");
    const nccl::Library& library = nccl::library();
    nccl::check(library.group_start(), kDoing);
    for (const Outgoing& part : send) {
      if (part.bytes.empty()) continue;
      nccl::check(library.send(part.bytes.data(), part.bytes.size(), ncclUint8, part.to, comm_, stream.get()),
                  kDoing);
    }
    for (const Incoming& part : receive) {
      if (part.bytes.empty()) continue;
      nccl::check(
          library.receive(part.bytes.data(), part.bytes.size(), ncclUint8, part.from, comm_, stream.get()),
          kDoing);
    }
    nccl::check(library.group_end(), kDoing);
    watch(stream);
  }
  // Copy engines cannot add, so NCCL does this even if they carry the other exchanges.
  void reduce(const std::vector<Summed>& places, const Stream& stream) const override {
    const auto operation = watched("sum of tensors");
    const nccl::Library& library = nccl::library();
    nccl::check(library.group_start(), kDoing);
    for (const Summed& place : places) {
      if (place.values.empty()) continue;
      float* values = place.values.data();
      nccl::check(library.reduce(values, place.owner == rank() ? values : nullptr, place.values.size(),
                                 ncclFloat, ncclSum, place.owner, comm_, stream.get()),
                  kDoing);
    }
    nccl::check(library.group_end(), kDoing);
    watch(stream);
  }
  std::unique_ptr<const Exchange> prepare(std::vector<Outgoing> send,
                                          std::vector<Incoming> receive) const override {
    if (!copies_) return Comm::prepare(std::move(send), std::move(receive));
    return copies_->prepare(send, receive);
  }
  std::vector<std::string> all_gather_piece(std::string_view mine) const override {
    return texts_.all_gather(mine);
  }
  std::vector<std::string> gather_piece(std::string_view mine) const override { return texts_.gather(mine); }
  std::optional<Ending> fail(Ending ending) const override { return texts_.fail(ending); }
  // A graph is watched when it is launched.
  void watch(const Stream& stream) const override {
    cudaStreamCaptureStatus status{};
    cuda::check(cudaStreamIsCapturing(stream.get(), &status), "asking a stream");
    if (status != cudaStreamCaptureStatusNone) return;
    UnderWay exchange{nullptr, Clock::now()};
    cuda::check(cudaEventCreateWithFlags(&exchange.end, cudaEventDisableTiming), "making an event");
    cuda::check(cudaEventRecord(exchange.end, stream.get()), "recording an event");
    const std::lock_guard lock(mutex_);
    under_way_.push_back(exchange);
  }

 private:
  struct UnderWay {
    cudaEvent_t end;
    Clock::time_point begun;  // by the host
  };

  // True if no exchange is under way. A failed one has ended: the next call of its rank says why.
  bool is_idle() const {
    const std::lock_guard lock(mutex_);
    while (!under_way_.empty() && cudaEventQuery(under_way_.front().end) != cudaErrorNotReady) {
      cudaEventDestroy(under_way_.front().end);
      under_way_.pop_front();
    }
    return under_way_.empty();
  }

  // Called by the watchdog's thread: why the exchange cannot go on, or "".
  std::string problem() {
    cudaSetDevice(device_.index);  // otherwise this thread would begin to use the first GPU
    ncclResult_t state = ncclSuccess;
    nccl::library().asynchronous_error(comm_, &state);
    if (state != ncclSuccess && state != ncclInProgress) {
      return fmt::format("NCCL: {}: {}", nccl::library().error_string(state),
                         nccl::library().last_error(comm_));
    }
    if (is_idle()) return "";
    const std::chrono::seconds limit = watchdog()->limit();
    const std::lock_guard lock(mutex_);
    if (limit.count() == 0 || Clock::now() - under_way_.front().begun < limit) return "";
    return fmt::format("an exchange between GPUs has not ended within {} s", limit.count());
  }

  const Comm& texts_;
  const Device device_;
  std::unique_ptr<PeerCopies> copies_;  // null: out of reach
  ncclComm_t comm_ = nullptr;
  mutable std::mutex mutex_;  // of the next
  mutable std::deque<UnderWay> under_way_;
};

}  // namespace

std::unique_ptr<const Comm> connect_gpus(const Comm& texts, Device device) {
  return std::make_unique<Nccl>(texts, device);
}

}  // namespace warpwright
