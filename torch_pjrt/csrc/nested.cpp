// Where dense tensors of the device become nested ones, of the strided layout: a nested tensor of the device is
// PyTorch's own NestedTensorImpl over a buffer on the device, its sizes and offsets are CPU tensors (eager/nested.py).
#include <ATen/NativeFunctions.h>
#include <torch/library.h>

namespace torch_pjrt {
namespace {

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("_nested_from_padded", at::native::nested_from_padded_generic);
  m.impl("_nested_tensor_from_mask", at::native::NestedTensor_nested_tensor_from_mask);
  m.impl("_nested_view_from_buffer", at::native::_nested_view_from_buffer);
}

} // namespace
} // namespace torch_pjrt
