#include "ops/variants.hpp"

#include "ops/classifier/classifier.hpp"

namespace warpwright::ops {
namespace {

constexpr std::string_view kVariants[] = {
    "cuda.shared_row", "cuda.streamed_row", "cuda.plain_row", "cuda.ladder_row_twice",
    "cpu.avx512",      "cpu.avx2",          "reference",
};

}  // namespace

const Op<Classifier>& classifier_op() {
  return operation<Classifier, kVariants>("classifier");
}

std::vector<OpInfo> classifier_ops(const DeviceInfo& device) {
  return {info_of(classifier_op(), device)};
}

}  // namespace warpwright::ops
