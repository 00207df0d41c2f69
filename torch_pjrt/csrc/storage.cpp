#include "storage.h"

#include "memory.h"
#include "python.h"
#include "recorder.h"
#include "state.h"

#include <ATen/EmptyTensor.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/StorageImpl.h>

#include <atomic>

#include "guard.h"

namespace torch_pjrt {
namespace {

// Addresses from the upper, non-canonical half of the lower 63 bits: no page can ever be mapped there. They are
// never used twice, so two live storages never seem to overlap and a stale address never matches a new one.
void* fresh_address(size_t nbytes) {
  static std::atomic<uint64_t> next{uint64_t{1} << 62};
  if (nbytes == 0)
    return nullptr;
  constexpr uint64_t kAlign = 256;
  return reinterpret_cast<void*>(next.fetch_add((nbytes + kAlign - 1) / kAlign * kAlign));
}

c10::DataPtr fresh_cell(size_t nbytes, ValuePtr value, c10::DeviceIndex device) {
  auto* cell = new Cell{std::move(value), device};
  return {fresh_address(nbytes), cell, &delete_cell, c10::Device(c10::kPrivateUse1, device)};
}

struct Allocator final : c10::DeviceAllocator {
  c10::DataPtr allocate(size_t nbytes) override {
    return fresh_cell(nbytes, nullptr, current_device());
  }
  c10::DeleterFnPtr raw_deleter() const override {
    return nullptr; // the pointer is not the context, so there is no raw interface
  }
  void copy_data(void* /*dest*/, const void* /*src*/, std::size_t /*count*/) const override {
    TORCH_CHECK_NOT_IMPLEMENTED(
        false, "raw memory of the ", device_name(), " device cannot be copied: use Tensor.copy_");
  }
  bool initialized() override {
    return true;
  }
  // PJRT owns the memory and nothing is cached here, but arrays that died without the GIL may wait to be given back.
  void emptyCache(c10::MempoolId_t /*pool*/) override {
    py::gil_scoped_acquire gil;
    drain_released_arrays();
  }
  void recordStream(const c10::DataPtr& /*ptr*/, c10::Stream /*stream*/) override {} // one stream in program order
  c10::CachingDeviceAllocator::DeviceStats getDeviceStats(c10::DeviceIndex device) override {
    auto f = memory_figures(device);
    c10::CachingDeviceAllocator::DeviceStats stats;
    auto set = [](c10::CachingAllocator::Stat& s, int64_t current, int64_t peak, int64_t allocated, int64_t freed) {
      s.current = current;
      s.peak = peak;
      s.allocated = allocated;
      s.freed = freed;
    };
    for (auto* s : {&stats.allocated_bytes, &stats.reserved_bytes, &stats.active_bytes, &stats.requested_bytes})
      set((*s)[0], f.current, f.peak, f.allocated, f.freed);
    for (auto* s : {&stats.allocation, &stats.active})
      set((*s)[0], f.arrays, f.peak_arrays, f.arrays_made, f.arrays_freed);
    stats.num_ooms = f.ooms;
    return stats;
  }
  void resetAccumulatedStats(c10::DeviceIndex device) override {
    reset_accumulated_memory(device);
  }
  void resetPeakStats(c10::DeviceIndex device) override {
    reset_peak_memory(device);
  }
  std::pair<size_t, size_t> getMemoryInfo(c10::DeviceIndex device) override {
    return device_memory(device);
  }
};

} // namespace

void delete_cell(void* context) {
  delete static_cast<Cell*>(context);
}

void throw_foreign_storage() {
  TORCH_CHECK(
      false,
      "this tensor's storage was not made by the ",
      device_name(),
      " device (from_blob, a slice of a storage, raw bytes of another process?): make it with torch.empty(..., "
      "device=\"",
      device_name(),
      "\") and copy_ into it");
}

c10::DeviceAllocator* allocator() {
  static auto* a = new Allocator;
  return a;
}

at::Tensor make_tensor(ValuePtr value, const Layout* layout, c10::DeviceIndex device) {
  size_t nbytes = layout->nbytes();
  if (!layout->dense)
    nbytes = at::detail::computeStorageNbytes(layout->sizes, layout->strides, c10::elementSize(layout->dtype));
  auto storage = c10::make_intrusive<c10::StorageImpl>(
      c10::StorageImpl::use_byte_size_t(),
      nbytes,
      fresh_cell(nbytes, std::move(value), device),
      allocator(),
      /*resizable=*/true);
  auto tensor = at::detail::make_tensor<c10::TensorImpl>(
      std::move(storage), c10::DispatchKeySet(c10::DispatchKey::PrivateUse1), c10::scalarTypeToTypeMeta(layout->dtype));
  tensor.unsafeGetTensorImpl()->set_sizes_and_strides(layout->sizes, layout->strides);
  return tensor;
}

void resize_storage(c10::StorageImpl& storage, size_t nbytes) {
  TORCH_CHECK(storage.resizable(), "Trying to resize storage that is not resizable");
  if (nbytes == storage.nbytes())
    return;
  auto* cell = static_cast<Cell*>(storage.data_ptr().get_context());
  auto device = cell->device;
  ValuePtr kept = cell->value ? record_resize(cell->value, nbytes) : nullptr;
  // A new address, as any allocator would give; the old DataPtr (and its cell) goes when `old` does.
  auto old = storage.set_data_ptr(fresh_cell(nbytes, std::move(kept), device));
  storage.set_nbytes(nbytes);
}

REGISTER_ALLOCATOR(c10::kPrivateUse1, allocator())

} // namespace torch_pjrt
