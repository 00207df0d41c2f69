// What a tensor or a value looks like: dtype, sizes and strides, interned so that equal layouts are equal pointers.
#pragma once

#include <c10/core/ScalarType.h>
#include <c10/core/ScalarTypeToTypeMeta.h>
#include <c10/core/TensorImpl.h>
#include <c10/util/ArrayRef.h>
#include <c10/util/SmallVector.h>

#include <cstdint>

namespace torch_pjrt {

struct Layout {
  c10::ScalarType dtype;
  c10::SmallVector<int64_t, 6> sizes;
  c10::SmallVector<int64_t, 6> strides;
  uint64_t hash;
  int64_t numel;
  // Every element of numel * itemsize bytes is covered exactly once.
  bool dense;

  size_t nbytes() const {
    return static_cast<size_t>(numel) * c10::elementSize(dtype);
  }
  // What the array of such a value takes: a complex32 is held as complex64 (lowering/dtypes.py).
  size_t array_nbytes() const {
    return dtype == c10::ScalarType::ComplexHalf ? 2 * nbytes() : nbytes();
  }
};

// The one Layout with this content. It lives for ever. Needs the state lock (state.h).
const Layout* intern(c10::ScalarType dtype, c10::IntArrayRef sizes, c10::IntArrayRef strides);

inline const Layout* layout_of(const c10::TensorImpl& t) {
  return intern(c10::typeMetaToScalarType(t.dtype()), t.sizes(), t.strides());
}

} // namespace torch_pjrt
