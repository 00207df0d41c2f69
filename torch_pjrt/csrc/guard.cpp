#include "guard.h"

#include "findings.h"
#include "python.h"
#include "stream.h"
#include "trace.h"

#include <c10/core/DeviceType.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>

#include <torch/csrc/utils/pybind.h>

#include <atomic>

namespace torch_pjrt {
namespace {

thread_local c10::DeviceIndex current = 0;

// Devices that are several of this process's as one have the numbers behind those of the single ones. Each that may
// come costs a thread of autograd's, which asks for their number once.
constexpr int kMostMeshes = 8;
std::atomic<int> meshes{0};

struct Guard final : c10::impl::DeviceGuardImplInterface {
  c10::DeviceType type() const override {
    return c10::kPrivateUse1;
  }
  c10::Device exchangeDevice(c10::Device d) const override {
    auto old = current;
    setDevice(d);
    return {c10::kPrivateUse1, old};
  }
  c10::Device getDevice() const override {
    return {c10::kPrivateUse1, current};
  }
  void setDevice(c10::Device d) const override {
    TORCH_CHECK(d.type() == c10::kPrivateUse1, "expected a ", device_name(), " device, got ", d.str());
    if (d.index() >= 0)
      set_current_device(d.index());
  }
  void uncheckedSetDevice(c10::Device d) const noexcept override {
    if (d.index() >= 0)
      current = d.index();
  }
  c10::Stream getStream(c10::Device d) const override {
    return current_stream(index_of(d));
  }
  c10::Stream getDefaultStream(c10::Device d) const override {
    return default_stream(index_of(d));
  }
  c10::Stream getStreamFromGlobalPool(c10::Device d, bool /*high_priority*/) const override {
    return new_stream(index_of(d));
  }
  c10::Stream getNewStream(c10::Device d, int /*priority*/) const override {
    return new_stream(index_of(d));
  }
  c10::Stream exchangeStream(c10::Stream s) const override {
    return exchange_stream(s);
  }
  void* getStreamNativeHandle(const c10::Stream s) const override {
    TORCH_CHECK_NOT_IMPLEMENTED(
        false, device_name(), " stream ", s.id(), " has no native handle: PJRT keeps the chip's queues to itself");
  }
  c10::DeviceIndex deviceCount() const noexcept override {
    auto single = device_count();
    return single > 1 ? static_cast<c10::DeviceIndex>(single + kMostMeshes) : single;
  }
  c10::DeviceCapability getDeviceCapability(c10::Device /*d*/) const override {
    py::gil_scoped_acquire gil;
    c10::DeviceCapability capability;
    uint64_t bits = 0;
    for (auto dtype : bridge().supported_dtypes().cast<std::vector<c10::ScalarType>>())
      bits |= uint64_t{1} << static_cast<int>(dtype);
    capability.capability_data.capability_bits = bits;
    return capability;
  }
  bool queryStream(const c10::Stream& s) const override {
    Event now;
    record_event(now, s.device_index(), /*timed=*/false);
    return is_reached(now);
  }
  void synchronizeStream(const c10::Stream& s) const override {
    synchronize_device(s.device_index());
  }
  void synchronizeDevice(const c10::DeviceIndex d) const override {
    synchronize_device(d);
  }
  void record(void** event, const c10::Stream& stream, const c10::DeviceIndex /*device*/, const c10::EventFlag flag)
      const override {
    if (*event == nullptr)
      *event = new Event;
    // PyTorch's torch.Event asks for the backend's own kind of event where it wants the time.
    record_event(*static_cast<Event*>(*event), stream.device_index(), flag == c10::EventFlag::BACKEND_DEFAULT);
  }
  void block(void* /*event*/, const c10::Stream& /*stream*/) const override {} // program order is later than the event
  bool queryEvent(void* event) const override {
    return event == nullptr || is_reached(*static_cast<Event*>(event));
  }
  void synchronizeEvent(void* event) const override {
    if (event != nullptr)
      wait_for(*static_cast<Event*>(event));
  }
  void destroyEvent(void* event, const c10::DeviceIndex /*device*/) const noexcept override {
    delete static_cast<Event*>(event);
  }
  double elapsedTime(void* start, void* end, const c10::DeviceIndex /*device*/) const override {
    TORCH_CHECK(start != nullptr && end != nullptr, "Both events must be recorded before calculating elapsed time.");
    return milliseconds(*static_cast<Event*>(start), *static_cast<Event*>(end));
  }
  void recordDataPtrOnStream(const c10::DataPtr& /*data*/, const c10::Stream& /*stream*/) const override {}
};

C10_REGISTER_GUARD_IMPL(PrivateUse1, Guard)

} // namespace

c10::DeviceIndex current_device() {
  return current;
}

c10::DeviceIndex index_of(std::optional<c10::Device> device) {
  return device && device->index() >= 0 ? device->index() : current;
}

void set_current_device(c10::DeviceIndex device) {
  if (device == current)
    return;
  check_device(device);
  current = device;
}

c10::DeviceIndex device_count() {
  static std::atomic<int> count{-1};
  int known = count.load();
  if (known >= 0)
    return static_cast<c10::DeviceIndex>(known);
  py::gil_scoped_acquire gil;
  int n = bridge().device_count().cast<int>();
  count = n;
  return static_cast<c10::DeviceIndex>(n);
}

c10::DeviceIndex add_mesh() {
  TORCH_CHECK(
      device_count() > 1 && meshes < kMostMeshes,
      "a process has up to ",
      kMostMeshes,
      " different meshes of its own devices, of which it must have two or more; this is number ",
      meshes + 1,
      ", and it has ",
      static_cast<int>(device_count()),
      " device(s)");
  return static_cast<c10::DeviceIndex>(device_count() + meshes++);
}

int mesh_count() {
  return meshes;
}

void check_device(c10::DeviceIndex device) {
  if (device_count() == 0) {
    py::gil_scoped_acquire gil;
    bridge().no_device();
  }
  TORCH_CHECK(
      device >= 0 && device < device_count() + meshes,
      device_name(),
      ":",
      static_cast<int>(device),
      " does not exist: this process has ",
      static_cast<int>(device_count()),
      " device(s) and ",
      meshes.load(),
      " mesh(es) of them");
}

std::pair<size_t, size_t> device_memory(c10::DeviceIndex device) {
  py::gil_scoped_acquire gil;
  drain_released_arrays();
  return bridge().device_memory(static_cast<int>(device)).cast<std::pair<size_t, size_t>>();
}

std::string device_name() {
  return c10::get_privateuse1_backend();
}

void synchronize_device(c10::DeviceIndex device) {
  flush(device);
  py::gil_scoped_acquire gil;
  drain_released_arrays();
  bridge().wait(static_cast<int>(device));
  raise_findings(kEveryRun);
}

} // namespace torch_pjrt
