// Layouts as they cross to Python and back: (dtype number, sizes, strides).
#pragma once

#include "layout.h"

#include <pybind11/pybind11.h>

namespace torch_pjrt {

pybind11::tuple python_sizes(c10::IntArrayRef sizes);
pybind11::tuple python_layout(const Layout* layout);

// The layout that such a tuple describes; null for None.
const Layout* layout_from(const pybind11::handle& described);

} // namespace torch_pjrt
