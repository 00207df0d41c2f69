// How exactly float32 products are computed: global state of PyTorch that lowerings read, so a part of every key.
#pragma once

#include <ATen/Context.h>

#include <cstdint>

namespace torch_pjrt {

// The same number wherever lowering/matmul.py's precision() says the same: "ieee" and "none said" are one.
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

} // namespace torch_pjrt
