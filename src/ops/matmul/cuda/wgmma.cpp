// The products on Hopper's tensor cores as variants: what is refused, which tile is taken, and where a call
// goes whose addresses or strides the copy engine does not take.
#include <algorithm>
#include <any>
#include <array>
#include <limits>
#include <memory>
#include <mutex>

#include "ops/cuda/refuse.hpp"
#include "ops/matmul/cuda/parts.hpp"
#include "ops/matmul/cuda/wgmma.hpp"

namespace warpwright::ops::matmul::cuda {
namespace {

std::string refuse(const Request& r, Schedule schedule, const DeviceInfo& device) {
  std::string reason = refuse_without_gpu(r.dtype, device);
  if (!reason.empty()) return reason;
  if (device.gpu.major != 9) return "needs a Hopper GPU";
  if (!wgmma_is_built()) return "this build has no code for sm_90a";
  if (r.dtype == DType::f32) return "multiplies bf16 and fp16, not fp32";
  // Rows of every matrix are multiples of 16 bytes. The depth is a row's length but in dw, where it is their
  // number.
  const std::int64_t rows = r.direction == Direction::dw ? r.extent.rows : r.extent.depth;
  if (rows % 8 != 0 || r.extent.cols % 8 != 0) return "rows of the matrices are not multiples of 16 bytes";
  if (std::max({r.extent.rows, r.extent.cols, r.extent.depth}) > std::numeric_limits<int>::max()) {
    return "counts rows and columns in 32 bits";
  }
  if (select(r, schedule, device).tile < 0) {
    constexpr const char* kFinish[] = {"", " with a residual or a scale", " with fp32 results"};
    return fmt::format("no kernel of this schedule for {} {}{}", name_of(r.dtype), name_of(r.activation),
                       kFinish[static_cast<int>(r.finish)]);
  }
  return "";
}

// The selection, in the log where calls are.
Selection select_and_log(const Context& context, const Request& r, Schedule schedule) {
  const Selection s = select(r, schedule, context.device());
  if (context.options().verbose) {
    context.log(fmt::format("  {}, {:.1f} us predicted", describe(s), s.seconds * 1e6));
  }
  return s;
}

class FlagSet {
 public:
  FlagSet() {
    const std::lock_guard lock(mutex());
    while (index_ < kFlagSets && taken()[static_cast<std::size_t>(index_)]) ++index_;
    if (index_ == kFlagSets) {
      throw Error(fmt::format("more than {} contexts use Stream-K products at once", kFlagSets), "matmul",
                  "force another variant, as WARPWRIGHT_FORCE=matmul=cuda.persistent");
    }
    taken()[static_cast<std::size_t>(index_)] = true;
  }
  FlagSet(const FlagSet&) = delete;
  FlagSet& operator=(const FlagSet&) = delete;
  ~FlagSet() {
    const std::lock_guard lock(mutex());
    taken()[static_cast<std::size_t>(index_)] = false;
  }
  int index() const { return index_; }

 private:
  static std::mutex& mutex() {
    static std::mutex one;
    return one;
  }
  static std::array<bool, kFlagSets>& taken() {
    static std::array<bool, kFlagSets> sets{};
    return sets;
  }
  int index_ = 0;
};

// Of dout's columns, for each slab of its rows.
std::int64_t slabs_of(std::int64_t rows) {
  return (rows + 63) / 64;
}
std::size_t row_sums_bytes(const MatmulDwProblem& p) {
  return p.bias ? static_cast<std::size_t>(slabs_of(p.M) * p.N) * sizeof(float) : 0;
}

}  // namespace

int flag_set_of(const Context& context) {
  static constexpr char kOwner = 0;
  std::any& slot = context.kept(&kOwner);
  if (!slot.has_value()) slot = std::make_shared<FlagSet>();
  return (*std::any_cast<std::shared_ptr<FlagSet>>(&slot))->index();
}

void run(const Context& context, const MatmulForward& args, Schedule schedule, const Selection& selection) {
  wgmma_forward(context, args, schedule, selection);
}
void run(const Context& context, const MatmulDx& args, Schedule schedule, const Selection& selection) {
  wgmma_dx(context, args, schedule, selection);
}
void run(const Context& context, const MatmulDw& args, Schedule schedule, const Selection& selection) {
  wgmma_dw(context, args, schedule, selection);
  if (!args.dbias) return;
  const auto* sums = static_cast<const std::byte*>(context.scratch()) + selection.partial_bytes;
  total_sums(context, reinterpret_cast<const float*>(sums), slabs_of(args.x.shape[0]), args.dbias,
             args.store);
}
std::size_t workspace(const MatmulForwardProblem&, const Selection& selection) {
  return selection.partial_bytes;
}
std::size_t workspace(const MatmulDxProblem&, const Selection& selection) {
  return selection.partial_bytes;
}
std::size_t workspace(const MatmulDwProblem& p, const Selection& selection) {
  return selection.partial_bytes + row_sums_bytes(p);
}

template <Schedule schedule>
std::string Wgmma<schedule>::refuse_forward(const MatmulForwardProblem& p, const DeviceInfo& device) {
  if (p.preact && p.activation == Activation::none) return "keeps a pre-activation only beside an activation";
  if (p.batch_invariant && schedule != Schedule::persistent)
    return "rows' bits may depend on how many there are";
  return refuse(request_of(p), schedule, device);
}
template <Schedule schedule>
std::string Wgmma<schedule>::refuse_dx(const MatmulDxProblem& p, const DeviceInfo& device) {
  return refuse(request_of(p), schedule, device);
}
template <Schedule schedule>
std::string Wgmma<schedule>::refuse_dw(const MatmulDwProblem& p, const DeviceInfo& device) {
  return refuse(request_of(p), schedule, device);
}

template <Schedule schedule>
std::size_t Wgmma<schedule>::forward_workspace(const MatmulForwardProblem& p, const DeviceInfo& device) {
  return workspace(p, select(request_of(p), schedule, device));
}
template <Schedule schedule>
std::size_t Wgmma<schedule>::dx_workspace(const MatmulDxProblem& p, const DeviceInfo& device) {
  return workspace(p, select(request_of(p), schedule, device));
}
template <Schedule schedule>
std::size_t Wgmma<schedule>::dw_workspace(const MatmulDwProblem& p, const DeviceInfo& device) {
  return workspace(p, select(request_of(p), schedule, device));
}

template <Schedule schedule>
double Wgmma<schedule>::forward_cost(const MatmulForwardProblem& p, const DeviceInfo& device) {
  return select(request_of(p), schedule, device).seconds;
}
template <Schedule schedule>
double Wgmma<schedule>::dx_cost(const MatmulDxProblem& p, const DeviceInfo& device) {
  return select(request_of(p), schedule, device).seconds;
}
template <Schedule schedule>
double Wgmma<schedule>::dw_cost(const MatmulDwProblem& p, const DeviceInfo& device) {
  return select(request_of(p), schedule, device).seconds;
}

template <Schedule schedule>
void Wgmma<schedule>::forward(const Context& context, const MatmulForward& args) {
  if (args.out.elements() == 0) return;
  if (args.x.shape[1] == 0 || !wgmma_suits(args)) return tile128_forward(context, args);
  run(context, args, schedule,
      select_and_log(context, request_of(matmul_forward_op().problem(args)), schedule));
}

template <Schedule schedule>
void Wgmma<schedule>::dx(const Context& context, const MatmulDx& args) {
  if (args.dx.elements() == 0) return;
  if (args.dout.shape[1] == 0) return clear_rows(context, args.dx);
  if (!wgmma_suits(args)) return tile128_dx(context, args);
  run(context, args, schedule, select_and_log(context, request_of(matmul_dx_op().problem(args)), schedule));
}

template <Schedule schedule>
void Wgmma<schedule>::dw(const Context& context, const MatmulDw& args) {
  if (args.dout.shape[1] == 0) return;
  if (args.x.elements() == 0 || !wgmma_suits(args)) return tile128_dw(context, args);
  run(context, args, schedule, select_and_log(context, request_of(matmul_dw_op().problem(args)), schedule));
}

template struct Wgmma<Schedule::block>;
template struct Wgmma<Schedule::persistent>;
template struct Wgmma<Schedule::stream_k>;

}  // namespace warpwright::ops::matmul::cuda
