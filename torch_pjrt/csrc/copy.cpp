// Copies: within a device they are recorded or, where possible, only rebind; to and from the host they transfer.
#include "findings.h"
#include "guard.h"
#include "memory.h"
#include "modes.h"
#include "python.h"
#include "recorder.h"
#include "stack_python.h"
#include "state.h"
#include "storage.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/python_variable.h>
#include <torch/library.h>

namespace torch_pjrt {
namespace {

// The same memory without the lazy bits.
at::Tensor plain_view(const at::Tensor& tensor) {
  auto t = tensor.is_conj() ? tensor.conj() : tensor;
  return t.is_neg() ? t._neg_view() : t;
}

// The recorded copy_: casts, broadcasts and writes through views. `src` is what the memory of `self` is to hold.
void record_copy(at::Tensor& self, const at::Tensor& src) {
  static auto op = c10::Dispatcher::singleton().findSchemaOrThrow("torch_pjrt::copy_", "");
  torch::jit::Stack stack{plain_view(self), src, false};
  op.callBoxed(stack);
}

ValuePtr value_of(const at::Tensor& t) {
  StateLock lock;
  return cell_of(*t.unsafeGetTensorImpl()).value;
}

// Binds all of `self`'s storage to a value that looks exactly like `self`.
void rebind(const at::Tensor& self, ValuePtr value) {
  ValuePtr dropped;
  {
    StateLock lock;
    auto& cell = cell_of(*self.unsafeGetTensorImpl());
    dropped = std::move(cell.value);
    cell.value = std::move(value);
  }
}

const Layout* interned(const at::Tensor& t) {
  StateLock lock;
  return layout_of(*t.unsafeGetTensorImpl());
}

// Whether copying src over self is the same as sharing its immutable value. A tensor that already has a value of its
// own keeps one: the first write to a shared value is no donation, so a loop would need another program for that step.
bool can_share(const at::Tensor& self, const at::Tensor& src) {
  StateLock lock;
  auto* to = self.unsafeGetTensorImpl();
  auto* from = src.unsafeGetTensorImpl();
  const Layout* l = layout_of(*to);
  const auto& value = cell_of(*from).value;
  return value && !cell_of(*to).value && value->layout == l && layout_of(*from) == l && covers_storage(*to, l) &&
         covers_storage(*from, l);
}

ValuePtr ready_value(const Layout* layout, c10::DeviceIndex device, const py::object& array) {
  auto v = c10::make_intrusive<Value>(layout, device);
  uint64_t source = source_here();
  StateLock lock;
  v->materialize(py::object(array).release().ptr(), source);
  return v;
}

const Layout* contiguous_layout(const at::Tensor& like) {
  auto plain = like.sizes();
  c10::SmallVector<int64_t, 6> strides(plain.size());
  int64_t step = 1;
  for (size_t i = plain.size(); i-- > 0;) {
    strides[i] = step;
    step *= std::max<int64_t>(plain[i], 1);
  }
  StateLock lock;
  return intern(like.scalar_type(), plain, strides);
}

// A batch begins a step (modes.h).
void cut_before_batch(c10::DeviceIndex device, size_t nbytes) {
  if (nbytes < kMinBatchBytes || settings().mode.load() != EagerMode::kFused)
    return;
  {
    StateLock lock;
    if (!current_trace(device).is_whole_step())
      return;
  }
  flush(device);
}

void copy_from_host(at::Tensor& self, const at::Tensor& src) {
  auto device = self.device().index();
  // The cast happens on the side with fewer bytes to send.
  bool cast_first = self.element_size() <= src.element_size() || src.is_complex() != self.is_complex();
  auto host = (cast_first ? src.to(self.scalar_type()) : src).resolve_conj().resolve_neg();
  host = host.expand(self.sizes()).contiguous();
  const Layout* layout = contiguous_layout(host);
  cut_before_batch(device, layout->nbytes());
  ValuePtr value;
  {
    py::gil_scoped_acquire gil;
    require_memory(device, layout);
    value = ready_value(layout, device, bridge().upload(host, static_cast<int>(device)));
  }
  if (layout == interned(self) && covers_storage(*self.unsafeGetTensorImpl(), layout)) {
    rebind(self, std::move(value));
    return;
  }
  auto uploaded = make_tensor(std::move(value), layout, device);
  record_copy(self, uploaded);
}

// The content of a device tensor as an array of exactly its shape, flushing what is pending.
ValuePtr materialized(const at::Tensor& t, const char* cause) {
  auto* impl = t.unsafeGetTensorImpl();
  auto value = value_of(t);
  const Layout* layout = interned(t);
  bool whole = value && (value->layout == layout || value->layout->sizes == layout->sizes) &&
               covers_storage(*impl, layout) && value->layout->dtype == layout->dtype &&
               value->layout->strides == layout->strides;
  if (!whole) {
    auto dense = make_tensor(nullptr, contiguous_layout(t), t.device().index());
    record_copy(dense, t);
    value = value_of(dense);
  }
  py::gil_scoped_acquire gil;
  array_of(value, cause);
  // Nobody follows the array to where it goes, another device or another library: it must be known to be right.
  if (cause == nullptr)
    raise_findings(value->run);
  return value;
}

void copy_to_host(at::Tensor& self, const at::Tensor& src, const char* cause) {
  auto source = resolve_bits(src);
  at::Tensor host;
  if (source.numel() > 0) {
    auto value = materialized(source, cause);
    py::gil_scoped_acquire gil;
    host = bridge().download(py::reinterpret_borrow<py::object>(value->array)).cast<at::Tensor>();
    py::gil_scoped_release release;
    self.copy_(host);
  } else {
    self.copy_(at::empty(source.sizes(), self.options()));
  }
}

void copy_across(at::Tensor& self, const at::Tensor& src) {
  auto device = self.device().index();
  auto value = materialized(src, nullptr);
  ValuePtr moved;
  {
    py::gil_scoped_acquire gil;
    require_memory(device, value->layout);
    moved = ready_value(
        value->layout,
        device,
        bridge().transfer(py::reinterpret_borrow<py::object>(value->array), static_cast<int>(device)));
  }
  auto there = make_tensor(moved, moved->layout, device);
  at::Tensor view = there.as_strided(src.sizes(), moved->layout->strides, 0);
  if (can_share(self, view))
    rebind(self, std::move(moved));
  else
    record_copy(self, view);
}

at::Tensor& copy_(at::Tensor& self, const at::Tensor& src, bool /*non_blocking*/) {
  TORCH_CHECK(self.defined() && src.defined(), "copy_: undefined tensor");
  if (self.is_same(src))
    return self;
  TORCH_CHECK(
      src.layout() == c10::kStrided && self.layout() == c10::kStrided,
      "copy_ between strided and ",
      src.layout(),
      " tensors needs .to_dense() first");
  bool to_device = self.device().type() == c10::kPrivateUse1;
  bool from_device = src.device().type() == c10::kPrivateUse1;
  TORCH_CHECK(
      (to_device || self.is_cpu()) && (from_device || src.is_cpu()),
      "cannot copy between ",
      src.device().str(),
      " and ",
      self.device().str(),
      ": go through .cpu()");
  if (!to_device) {
    if (self.sizes() == src.sizes()) {
      copy_to_host(self, src, "copy to the host");
    } else {
      auto host = at::empty(src.sizes(), src.options().device(at::kCPU));
      copy_to_host(host, src, "copy to the host");
      self.copy_(host);
    }
    return self;
  }
  // self may be a lazily conjugated or negated view: write what it will read back.
  auto source = src;
  if (self.is_conj() && source.is_complex())
    source = source.conj();
  if (self.is_neg())
    source = source.to(self.scalar_type()).neg(); // cast first: a bool has no negative, an unsigned number another one
  if (from_device)
    source = resolve_bits(source);
  if (!from_device) {
    copy_from_host(self, source);
  } else if (self.device() != source.device()) {
    copy_across(self, source);
  } else if (settings().mode.load() != EagerMode::kStrict && can_share(self, source)) {
    auto value = value_of(source);
    rebind(self, std::move(value));
  } else {
    record_copy(self, source);
  }
  return self;
}

at::Scalar local_scalar_dense(const at::Tensor& self) {
  TORCH_CHECK(self.numel() == 1, "a Tensor with ", self.numel(), " elements cannot be converted to Scalar");
  auto host = at::empty({}, self.options().device(at::kCPU));
  auto flat = self.dim() == 0 ? self : self.view(c10::IntArrayRef{});
  copy_to_host(host, flat, "item");
  return host.item();
}

TORCH_LIBRARY(torch_pjrt, m) {
  m.def("copy_(Tensor(a!) self, Tensor src, bool non_blocking=False) -> Tensor(a!)");
  // The same values over several devices, each dimension split along axes of a grid of them: numbers joined by commas.
  m.def("placed(Tensor self, int index, int[] grid, str[] axes) -> Tensor", {at::Tag::pt2_compliant_tag});
}

TORCH_LIBRARY_IMPL(torch_pjrt, Meta, m) {
  m.impl(
      "placed",
      [](const at::Tensor& self,
         int64_t /*index*/,
         at::IntArrayRef /*grid*/,
         const std::vector<std::string>& /*axes*/) { return at::empty_like(self); });
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("copy_", copy_);
  m.impl("_local_scalar_dense", local_scalar_dense);
}

} // namespace

PyObject* tensor_array(const at::Tensor& tensor, bool to_export) {
  TORCH_CHECK(
      tensor.device().type() == c10::kPrivateUse1,
      "expected a ",
      device_name(),
      " tensor, got one on ",
      tensor.device().str());
  auto value = materialized(tensor, nullptr);
  py::gil_scoped_acquire gil;
  if (to_export) {
    // Whoever gets the memory may write to it: no clone that shares the value, and no recorded op, may see that.
    constexpr size_t kStorageAndWe = 2;
    if (value.use_count() > kStorageAndWe) {
      value = ready_value(value->layout, value->device, py::handle(value->array).attr("copy")());
      rebind(tensor, value);
    }
    StateLock lock;
    value->exported = true;
  }
  return Py_NewRef(value->array);
}

PyObject* held_array(const at::Tensor& tensor) {
  py::gil_scoped_acquire gil;
  StateLock lock;
  auto* t = tensor.unsafeGetTensorImpl();
  const Layout* l = layout_of(*t);
  const auto& value = cell_of(*t).value;
  bool whole = value && value->array != nullptr && value->layout == l && covers_storage(*t, l);
  return Py_NewRef(whole ? value->array : Py_None);
}

void replace_array(const at::Tensor& tensor, const py::object& array) {
  auto value = value_of(tensor);
  auto moved = ready_value(value->layout, value->device, array);
  {
    StateLock lock;
    moved->run = value->run; // what was checked of it is not known yet, perhaps
    moved->source = value->source;
  }
  rebind(tensor, std::move(moved));
}

bool replace_value(const at::Tensor& tensor, const at::Tensor& other) {
  ValuePtr value;
  {
    StateLock lock;
    auto* to = tensor.unsafeGetTensorImpl();
    auto* from = other.unsafeGetTensorImpl();
    const Layout* l = layout_of(*to);
    if (layout_of(*from) != l || !covers_storage(*to, l) || !covers_storage(*from, l))
      return false;
    value = cell_of(*from).value;
  }
  rebind(tensor, std::move(value));
  return true;
}

at::Tensor tensor_of_array(const py::object& array, c10::ScalarType dtype, c10::DeviceIndex device, bool shared) {
  auto sizes = array.attr("shape").cast<std::vector<int64_t>>();
  auto like = at::empty(sizes, at::TensorOptions().dtype(dtype).device(c10::kMeta));
  const Layout* layout = contiguous_layout(like);
  auto value = ready_value(layout, device, array);
  if (shared) {
    StateLock lock;
    value->exported = true; // the array's other owners go on reading it
  }
  return make_tensor(std::move(value), layout, device);
}

bool bind_array(const at::Tensor& tensor, const py::object& array) {
  const Layout* layout = contiguous_layout(tensor);
  if (layout != interned(tensor) || !covers_storage(*tensor.unsafeGetTensorImpl(), layout))
    return false;
  rebind(tensor, ready_value(layout, tensor.device().index(), array));
  if (!tensor.is_inference())
    tensor.unsafeGetTensorImpl()->bump_version();
  return true;
}

} // namespace torch_pjrt
