// Which kernel scaled_dot_product_attention is made of, where it is not ours as a whole.
//
// On plain tensors it is one op of ours, or PyTorch's formula, whose ops a trace fuses; where there are kernels that
// keep no scores (a TPU), an op with a gradient of its own. A DTensor needs an op that DTensor knows how to spread over
// a mesh: heads (tensor parallel) and sequences (context parallel, a ring). Which one: `eager/bridge.py`, attention.
#include "modes.h"
#include "python.h"

#include <ATen/Context.h>
#include <ATen/native/transformers/attention.h>
#include <ATen/native/transformers/sdp_utils_cpp.h>
#include <torch/csrc/utils/pybind.h>
#include <torch/library.h>

namespace torch_pjrt {
namespace {

int64_t choose(
    const at::Tensor& query,
    const at::Tensor& key,
    const at::Tensor& value,
    const std::optional<at::Tensor>& mask,
    double dropout,
    bool is_causal,
    std::optional<double> scale,
    bool enable_gqa) {
  bool usual = query.dim() == 4 && key.dim() == 4 && value.dim() == 4 && dropout == 0 &&
               at::isFloatingType(query.scalar_type()) && at::globalContext().userEnabledMemEfficientSDP();
  bool plain = !query.key_set().has(c10::DispatchKey::Python);
  if (!usual || (plain && !settings().attention_kernels))
    return static_cast<int64_t>(sdp::SDPBackend::math);
  py::gil_scoped_acquire gil;
  return py::cast<int64_t>(py::object(bridge().attention(query, key, mask.has_value())));
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("_fused_sdp_choice", choose);
}

} // namespace
} // namespace torch_pjrt

namespace at::native {
REGISTER_PRIVATEUSE1_DISPATCH(_fused_sdp_choice_stub, &torch_pjrt::choose)
} // namespace at::native
