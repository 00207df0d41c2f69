// One compiled FX graph as PyTorch calls it: device tensors in, device tensors out, nothing recorded in between.
#pragma once

#include "python.h"

namespace torch_pjrt {

void register_compiled(py::module_& m);

} // namespace torch_pjrt
