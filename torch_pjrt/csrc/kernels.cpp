// The kernels that are metadata only, or make storage: PyTorch's own strided views, empty, resize_, set_.
#include "guard.h"
#include "state.h"
#include "storage.h"

#include <ATen/EmptyTensor.h>
#include <ATen/Functions.h>
#include <ATen/NativeFunctions.h>
#include <ATen/native/Resize.h>
#include <torch/library.h>

#include <typeinfo>

namespace torch_pjrt {
namespace {

void check_options(std::optional<c10::Layout> layout, std::optional<bool> pin_memory, c10::DeviceIndex device) {
  TORCH_CHECK(
      !layout || *layout == c10::kStrided,
      "only strided tensors can be made by empty() on ",
      device_name(),
      ", got ",
      *layout);
  TORCH_CHECK(!pin_memory || !*pin_memory, "Only dense CPU tensors can be pinned");
  check_device(device);
}

at::Tensor empty_strided(
    c10::IntArrayRef size,
    c10::IntArrayRef stride,
    std::optional<c10::ScalarType> dtype,
    std::optional<c10::Layout> layout,
    std::optional<c10::Device> device,
    std::optional<bool> pin_memory) {
  at::detail::check_size_nonnegative(size);
  TORCH_CHECK(
      size.size() == stride.size(), "empty_strided: size has ", size.size(), " dimensions, stride has ", stride.size());
  auto type = dtype.value_or(c10::get_default_dtype_as_scalartype());
  auto index = index_of(device);
  check_options(layout, pin_memory, index);
  const Layout* l = nullptr;
  {
    StateLock lock;
    l = intern(type, size, stride);
  }
  return make_tensor(nullptr, l, index);
}

at::Tensor empty_memory_format(
    c10::IntArrayRef size,
    std::optional<c10::ScalarType> dtype,
    std::optional<c10::Layout> layout,
    std::optional<c10::Device> device,
    std::optional<bool> pin_memory,
    std::optional<c10::MemoryFormat> memory_format) {
  at::detail::check_size_nonnegative(size);
  auto format = memory_format.value_or(c10::MemoryFormat::Contiguous);
  c10::SmallVector<int64_t, 6> strides(size.size());
  if (format == c10::MemoryFormat::ChannelsLast) {
    TORCH_CHECK(size.size() == 4, "required rank 4 tensor to use channels_last format");
    auto s = c10::get_channels_last_strides_2d(size);
    std::copy(s.begin(), s.end(), strides.begin());
  } else if (format == c10::MemoryFormat::ChannelsLast3d) {
    TORCH_CHECK(size.size() == 5, "required rank 5 tensor to use channels_last_3d format");
    auto s = c10::get_channels_last_strides_3d(size);
    std::copy(s.begin(), s.end(), strides.begin());
  } else {
    int64_t step = 1;
    for (size_t i = size.size(); i-- > 0;) {
      strides[i] = step;
      step *= std::max<int64_t>(size[i], 1);
    }
  }
  return empty_strided(size, strides, dtype, layout, device, pin_memory);
}

const at::Tensor&
resize_(const at::Tensor& self, c10::IntArrayRef size, std::optional<c10::MemoryFormat> memory_format) {
  at::detail::check_size_nonnegative(size);
  auto* impl = self.unsafeGetTensorImpl();
  if (!impl->sizes().equals(size) || memory_format) {
    auto offset = static_cast<size_t>(impl->storage_offset());
    auto needed = at::detail::computeStorageNbytesContiguous(size, impl->itemsize(), offset);
    impl->set_sizes_contiguous(size);
    if (needed > impl->unsafe_storage().nbytes() && impl->numel() > 0)
      resize_storage(*impl->unsafe_storage().unsafeGetStorageImpl(), needed);
    if (memory_format && *memory_format != c10::MemoryFormat::Preserve)
      impl->empty_tensor_restride(*memory_format);
  }
  return self;
}

at::Tensor& set_storage_offset_(
    at::Tensor& self, at::Storage source, int64_t offset, c10::IntArrayRef size, c10::IntArrayRef stride) {
  at::native::checkSetStorage(self, source, offset, size, stride);
  auto* impl = self.unsafeGetTensorImpl();
  impl->set_storage_offset(offset);
  if (stride.data() != nullptr)
    impl->set_sizes_and_strides(size, stride);
  else
    impl->set_sizes_contiguous(size);
  auto needed =
      at::detail::computeStorageNbytes(impl->sizes(), impl->strides(), impl->itemsize(), static_cast<size_t>(offset));
  if (impl->numel() > 0 && needed > impl->unsafe_storage().nbytes())
    resize_storage(*impl->unsafe_storage().unsafeGetStorageImpl(), needed);
  return self;
}

at::Tensor& set_storage_(at::Tensor& self, at::Storage source) {
  auto n = static_cast<int64_t>(source.nbytes() / self.dtype().itemsize());
  return set_storage_offset_(self, std::move(source), 0, {n}, {});
}

at::Tensor& set_(at::Tensor& self) {
  auto storage =
      c10::Storage(c10::Storage::use_byte_size_t(), 0, allocator()->allocate(0), allocator(), /*resizable=*/true);
  return set_storage_offset_(self, std::move(storage), 0, {0}, {});
}

// A tensor that was never written to reads as zeros and reserves nothing; the ZeroTensor key lets autograd's formulas
// take their shortcuts, and refuses writes.
at::Tensor efficient_zeros(
    c10::IntArrayRef size,
    std::optional<c10::ScalarType> dtype,
    std::optional<c10::Layout> layout,
    std::optional<c10::Device> device,
    std::optional<bool> pin_memory) {
  auto plain = empty_memory_format(size, dtype, layout, device, pin_memory, std::nullopt);
  auto zeros = at::detail::make_tensor<c10::TensorImpl>(
      c10::Storage(plain.storage()),
      c10::DispatchKeySet({c10::DispatchKey::PrivateUse1, c10::DispatchKey::ZeroTensor}),
      plain.dtype());
  zeros.unsafeGetTensorImpl()->set_sizes_and_strides(plain.sizes(), plain.strides());
  return zeros;
}

// PyTorch's own answer counts CPU and CUDA as one kind of tensor, and no other backend. It decides whether `x.data = y`
// may move a tensor between devices and whether `Module.to` keeps its Parameter objects, which an optimizer made
// before knows.
bool can_take_over(const at::Tensor& self, const at::Tensor& from) {
  auto dense = [](const at::Tensor& t) {
    return t.layout() == c10::kStrided && (t.is_cpu() || t.device().type() == c10::kPrivateUse1) &&
           typeid(*t.unsafeGetTensorImpl()) == typeid(c10::TensorImpl);
  };
  return (dense(self) && dense(from)) || self.unsafeGetTensorImpl()->has_compatible_shallow_copy_type(from.key_set());
}

at::Tensor
as_strided(const at::Tensor& self, c10::IntArrayRef size, c10::IntArrayRef stride, std::optional<int64_t> offset) {
  return at::native::as_strided_tensorimpl(self, size, stride, offset);
}

// native_batch_norm writes to its running statistics without saying so in its schema; these overloads do say.
std::tuple<at::Tensor, at::Tensor, at::Tensor> native_batch_norm(
    const at::Tensor& input,
    const std::optional<at::Tensor>& weight,
    const std::optional<at::Tensor>& bias,
    const std::optional<at::Tensor>& running_mean,
    const std::optional<at::Tensor>& running_var,
    bool training,
    double momentum,
    double eps) {
  bool tracks = running_mean && running_mean->defined() && running_var && running_var->defined();
  if (!tracks)
    return at::_native_batch_norm_legit(input, weight, bias, training, momentum, eps);
  auto mean = *running_mean;
  auto var = *running_var;
  if (training)
    return at::_native_batch_norm_legit(input, weight, bias, mean, var, training, momentum, eps);
  return at::_native_batch_norm_legit_no_training(input, weight, bias, mean, var, momentum, eps);
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("native_batch_norm", native_batch_norm);
  m.impl("empty.memory_format", empty_memory_format);
  m.impl("empty_strided", empty_strided);
  m.impl("resize_", resize_);
  m.impl("set_", set_);
  m.impl("set_.source_Storage", set_storage_);
  m.impl("set_.source_Storage_storage_offset", set_storage_offset_);
  m.impl("set_.source_Tensor", at::native::set_tensor_);
  m.impl("_efficientzerotensor", efficient_zeros);
  m.impl("_has_compatible_shallow_copy_type", can_take_over);
  m.impl("is_set_to", at::native::is_set_to);
  m.impl("as_strided", as_strided);
  m.impl("view", static_cast<at::Tensor (*)(const at::Tensor&, c10::IntArrayRef)>(at::native::view));
  m.impl(
      "_reshape_alias",
      static_cast<at::Tensor (*)(const at::Tensor&, c10::IntArrayRef, c10::IntArrayRef)>(at::native::_reshape_alias));
  m.impl("_unsafe_view", at::native::_unsafe_view);
  m.impl("lift", at::native::lift);
  m.impl("unfold", at::native::unfold);
  m.impl("view_as_real", at::native::view_as_real);
  m.impl("view_as_complex", at::native::view_as_complex);
}

// Asked before any tensor subclass is: their __torch_dispatch__ does not expect this question.
TORCH_LIBRARY_IMPL(aten, AutogradPrivateUse1, m) {
  m.impl("_has_compatible_shallow_copy_type", can_take_over);
}

} // namespace
} // namespace torch_pjrt
