// Where dense tensors of the device become nested ones, of the strided layout: a nested tensor of the device is
// PyTorch's own NestedTensorImpl over a buffer on the device, its sizes and offsets are CPU tensors (eager/nested.py).
#include <ATen/NativeFunctions.h>
#include <torch/library.h>

namespace torch_pjrt {
namespace {

// PyTorch's kernels read them where they are.
void check_on_host(const at::Tensor& sizes, const char* op, const char* argument) {
  TORCH_CHECK(sizes.is_cpu(), op, ": ", argument, " must be a CPU tensor, got one on ", sizes.device());
}

at::Tensor from_padded(const at::Tensor& padded, const at::Tensor& sizes, bool fuse_transform_0213) {
  check_on_host(sizes, "_nested_from_padded", "cpu_nested_shape_example");
  return at::native::nested_from_padded_generic(padded, sizes, fuse_transform_0213);
}

at::Tensor view_from_buffer(
    const at::Tensor& buffer, const at::Tensor& sizes, const at::Tensor& strides, const at::Tensor& offsets) {
  check_on_host(sizes, "_nested_view_from_buffer", "nested_size");
  check_on_host(strides, "_nested_view_from_buffer", "nested_strides");
  check_on_host(offsets, "_nested_view_from_buffer", "offsets");
  return at::native::_nested_view_from_buffer(buffer, sizes, strides, offsets);
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("_nested_from_padded", from_padded);
  m.impl("_nested_view_from_buffer", view_from_buffer);
}

} // namespace
} // namespace torch_pjrt
