#include "ops/variants.hpp"

#include "ops/muon/muon.hpp"

namespace warpwright::ops {
namespace {

constexpr std::string_view kMuon[] = {"cuda.packed", "cpu.avx512", "cpu.avx2", "reference"};

}  // namespace

const Op<MuonMomentum>& muon_momentum_op() {
  return operation<MuonMomentum, kMuon>("muon.momentum");
}

const Op<MuonScale>& muon_scale_op() {
  return operation<MuonScale, kMuon>("muon.scale");
}

const Op<MuonUpdate>& muon_update_op() {
  return operation<MuonUpdate, kMuon>("muon.update");
}

std::vector<OpInfo> muon_ops(const DeviceInfo& device) {
  return {info_of(muon_momentum_op(), device), info_of(muon_scale_op(), device),
          info_of(muon_update_op(), device)};
}

}  // namespace warpwright::ops
