// torch.autocast on the device: PyTorch's own op lists and policies, the ones CUDA has.
#include <ATen/autocast_mode.h>
#include <torch/library.h>

namespace torch_pjrt {
namespace {

using namespace at; // the op lists of autocast_mode.h are written for this namespace

Tensor binary_cross_entropy_banned(
    const Tensor& /*self*/, const Tensor& /*target*/, const std::optional<Tensor>& /*weight*/, int64_t /*reduction*/) {
  TORCH_CHECK(
      false,
      "torch.nn.functional.binary_cross_entropy and torch.nn.BCELoss are unsafe to autocast: use "
      "binary_cross_entropy_with_logits or BCEWithLogitsLoss, or leave autocast around the loss");
}

TORCH_LIBRARY_IMPL(_, AutocastPrivateUse1, m) {
  m.fallback(torch::CppFunction::makeFallthrough());
}

TORCH_LIBRARY_IMPL(aten, AutocastPrivateUse1, m) {
#define TORCH_PJRT_LOWER_PRECISION(...) KERNEL_PRIVATEUSEONE(__VA_ARGS__, lower_precision_fp)
#define TORCH_PJRT_FP32(...) KERNEL_PRIVATEUSEONE(__VA_ARGS__, fp32)
#define TORCH_PJRT_FP32_SET_OPT_DTYPE(...) KERNEL_PRIVATEUSEONE(__VA_ARGS__, fp32_set_opt_dtype)
#define TORCH_PJRT_PROMOTE(...) KERNEL_PRIVATEUSEONE(__VA_ARGS__, promote)
  AT_FORALL_LOWER_PRECISION_FP(TORCH_PJRT_LOWER_PRECISION)
  AT_FORALL_FP32(TORCH_PJRT_FP32)
  AT_FORALL_FP32_SET_OPT_DTYPE(TORCH_PJRT_FP32_SET_OPT_DTYPE)
  AT_FORALL_DIFFERENT_REDISPATCH_SIGNATURE(KERNEL_DIFFERENT_REDISPATCH_SIGNATURE_PRIVATEUSEONE)
  AT_FORALL_PROMOTE(TORCH_PJRT_PROMOTE)
  m.impl("binary_cross_entropy", TORCH_FN(binary_cross_entropy_banned));
}

} // namespace
} // namespace torch_pjrt
