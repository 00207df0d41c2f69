// What the rest of PyTorch asks of an accelerator.
#include "generator.h"
#include "guard.h"
#include "pinned.h"
#include "storage.h"

#include <ATen/detail/PrivateUse1HooksInterface.h>

namespace torch_pjrt {
namespace {

struct Hooks final : at::PrivateUse1HooksInterface {
  bool isBuilt() const override {
    return true;
  }
  bool isAvailable() const override {
    return device_count() > 0;
  }
  bool hasPrimaryContext(c10::DeviceIndex /*device*/) const override {
    return true;
  }
  c10::DeviceIndex deviceCount() const override {
    return device_count();
  }
  void setCurrentDevice(c10::DeviceIndex device) const override {
    set_current_device(device);
  }
  c10::DeviceIndex getCurrentDevice() const override {
    return current_device();
  }
  c10::DeviceIndex exchangeDevice(c10::DeviceIndex device) const override {
    auto old = current_device();
    set_current_device(device);
    return old;
  }
  c10::DeviceIndex maybeExchangeDevice(c10::DeviceIndex device) const override {
    return exchangeDevice(device);
  }
  const at::Generator& getDefaultGenerator(c10::DeviceIndex device) const override {
    return default_generator(device);
  }
  at::Generator getNewGenerator(c10::DeviceIndex device) const override {
    return make_generator(device);
  }
  at::Allocator* getPinnedMemoryAllocator() const override {
    return pinned_allocator();
  }
  bool isPinnedPtr(const void* data) const override {
    return is_pinned(data);
  }
  at::Device getDeviceFromPtr(void* /*data*/) const override {
    TORCH_CHECK_NOT_IMPLEMENTED(false, "addresses of the ", device_name(), " device say nothing of its index");
  }
  void resizePrivateUse1Bytes(const c10::Storage& storage, size_t nbytes) const override {
    resize_storage(*storage.unsafeGetStorageImpl(), nbytes);
  }
};

} // namespace

void register_hooks() {
  static auto* hooks = new Hooks;
  at::RegisterPrivateUse1HooksInterface(hooks);
  register_pinned_allocator();
}

} // namespace torch_pjrt
