// Global state of PyTorch that lowerings read while a program is made: a part of every program's key.
#pragma once

#include <ATen/Context.h>
#include <c10/core/DefaultDtype.h>

#include <cstdint>

namespace torch_pjrt {

// How exactly float32 products are computed. The same number wherever lowering/matmul.py's precision() says the same:
// "ieee" and "none said" are one.
inline uint64_t float32_precision() {
  switch (at::globalContext().float32Precision(at::Float32Backend::MKLDNN, at::Float32Op::MATMUL)) {
    case at::Float32Precision::TF32:
      return 1;
    case at::Float32Precision::BF16:
      return 2;
    default:
      return 0;
  }
}

// All of it in one number: that precision, and the default dtype. eager/content.py has the same for the disk.
inline uint64_t lowering_state() {
  return float32_precision() | static_cast<uint64_t>(c10::get_default_dtype_as_scalartype()) << 2;
}

} // namespace torch_pjrt
