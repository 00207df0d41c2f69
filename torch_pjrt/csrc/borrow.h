// Kernels of PyTorch that serve the device's sparse and nested tensors too.
#pragma once

#include <string>

namespace torch_pjrt {

// Registers for the dispatch key `to` the kernel that the op has for the key `from`.
void borrow_kernel(
    const std::string& name, const std::string& overload, const std::string& from, const std::string& to);

} // namespace torch_pjrt
