#include "layout_python.h"

#include "state.h"

#include <pybind11/stl.h>

namespace torch_pjrt {

namespace py = pybind11;

py::tuple python_sizes(c10::IntArrayRef sizes) {
  return py::tuple(py::cast(sizes.vec()));
}

py::tuple python_layout(const Layout* layout) {
  return py::make_tuple(static_cast<int>(layout->dtype), python_sizes(layout->sizes), python_sizes(layout->strides));
}

const Layout* layout_from(const py::handle& described) {
  if (described.is_none())
    return nullptr;
  py::tuple t = py::reinterpret_borrow<py::tuple>(described);
  auto dtype = static_cast<c10::ScalarType>(t[0].cast<int>());
  auto sizes = t[1].cast<std::vector<int64_t>>();
  auto strides = t[2].cast<std::vector<int64_t>>();
  StateLock lock;
  return intern(dtype, sizes, strides);
}

} // namespace torch_pjrt
