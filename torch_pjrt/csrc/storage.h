// Tensors over cells. A storage's data pointer is an address that is never mapped (unique, so that libraries can
// tell storages apart, and a fault if anything dereferences it); its context is the Cell.
#pragma once

#include "value.h"

#include <ATen/core/Tensor.h>
#include <c10/core/CachingDeviceAllocator.h>

namespace torch_pjrt {

c10::DeviceAllocator* allocator();

void delete_cell(void* context);
[[noreturn]] void throw_foreign_storage();

// The cell behind a tensor of this device.
inline Cell& cell_of(const c10::TensorImpl& t) {
  const auto& ptr = t.unsafe_storage().data_ptr();
  if (ptr.get_deleter() != &delete_cell)
    throw_foreign_storage();
  return *static_cast<Cell*>(ptr.get_context());
}

// A fresh tensor, storage and cell bound to `value` (null: unwritten).
at::Tensor make_tensor(ValuePtr value, const Layout* layout, c10::DeviceIndex device);

// Whether the tensor is all of its storage, in some dense order.
inline bool covers_storage(const c10::TensorImpl& t, const Layout* layout) {
  return layout->dense && t.storage_offset() == 0 && layout->nbytes() == t.unsafe_storage().nbytes();
}

// Grows or shrinks a storage to `nbytes`, keeping the content that fits, as resize_ and UntypedStorage.resize_ do.
void resize_storage(c10::StorageImpl& storage, size_t nbytes);

} // namespace torch_pjrt
