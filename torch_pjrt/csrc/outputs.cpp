#include "outputs.h"

#include "layout_python.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/python_variable.h>

namespace torch_pjrt {
namespace {

// A tensor that shares `base`'s storage, without autograd knowing it as a view: PyTorch's own runtime says what is one.
at::Tensor view_of(const at::Tensor& base, const Layout* layout, int64_t offset) {
  auto view = at::detail::make_tensor<c10::TensorImpl>(
      c10::Storage(base.storage()),
      c10::DispatchKeySet(c10::DispatchKey::PrivateUse1),
      c10::scalarTypeToTypeMeta(layout->dtype));
  auto* impl = view.unsafeGetTensorImpl();
  impl->set_storage_offset(base.storage_offset() + offset);
  impl->set_sizes_and_strides(layout->sizes, layout->strides);
  return view;
}

} // namespace

std::vector<Output> read_outputs(const py::list& described) {
  std::vector<Output> outputs;
  for (const auto& given : described) {
    py::tuple t = py::reinterpret_borrow<py::tuple>(given);
    Output o;
    o.kind = static_cast<Output::Kind>(t[0].cast<int>());
    o.index = t[1].cast<uint32_t>();
    o.layout = layout_from(t[2]);
    o.offset = t[3].cast<int64_t>();
    o.constant = t[4];
    outputs.push_back(std::move(o));
  }
  return outputs;
}

py::list make_outputs(
    const std::vector<Output>& outputs, const py::list& args, const std::function<at::Tensor(const Output&)>& result) {
  py::list made(outputs.size());
  auto set = [&](size_t i, PyObject* object) { PyList_SET_ITEM(made.ptr(), static_cast<Py_ssize_t>(i), object); };
  auto argument = [&](const Output& o) { return PyList_GET_ITEM(args.ptr(), o.index); };
  auto output = [&](const Output& o) { return PyList_GET_ITEM(made.ptr(), o.index); };
  // What is a view of another output comes after it, and what is another output itself after both.
  for (size_t k = 0; k < 3 * outputs.size(); ++k) {
    size_t i = k % outputs.size();
    const auto& o = outputs[i];
    size_t turn = o.kind == Output::Kind::kViewOfOutput ? 1 : o.kind == Output::Kind::kOutput ? 2 : 0;
    if (turn != k / outputs.size())
      continue;
    switch (o.kind) {
      case Output::Kind::kResult:
      case Output::Kind::kHost:
        set(i, THPVariable_Wrap(result(o)));
        break;
      case Output::Kind::kArgument:
        set(i, Py_NewRef(argument(o)));
        break;
      case Output::Kind::kOutput:
        set(i, Py_NewRef(output(o)));
        break;
      case Output::Kind::kViewOfArgument:
        set(i, THPVariable_Wrap(view_of(THPVariable_Unpack(argument(o)), o.layout, o.offset)));
        break;
      case Output::Kind::kViewOfOutput:
        set(i, THPVariable_Wrap(view_of(THPVariable_Unpack(output(o)), o.layout, o.offset)));
        break;
      case Output::Kind::kConstant:
        set(i, Py_NewRef(o.constant.ptr()));
        break;
    }
  }
  return made;
}

} // namespace torch_pjrt
