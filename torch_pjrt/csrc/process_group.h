// The process group backend of the device: c10d's calls, handed to Python.
#pragma once

#include "python.h"

namespace torch_pjrt {

// Adds `make_process_group` to the module.
void register_process_group(py::module_& m);

} // namespace torch_pjrt
