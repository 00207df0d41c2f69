#include "guard.h"

#include "findings.h"
#include "python.h"
#include "state.h"
#include "trace.h"

#include <c10/core/DeviceType.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>

#include <chrono>
#include <mutex>

namespace torch_pjrt {
namespace {

thread_local c10::DeviceIndex current = 0;

// An event is a moment in program order. The device runs in program order, so an event is reached once everything
// recorded before it has run.
struct Event {
  c10::DeviceIndex device;
  std::chrono::steady_clock::time_point when;
};

c10::Stream only_stream(c10::DeviceIndex device) {
  return c10::Stream(c10::Stream::DEFAULT, c10::Device(c10::kPrivateUse1, device));
}

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
    return only_stream(d.index() < 0 ? current : d.index());
  }
  c10::Stream getDefaultStream(c10::Device d) const override {
    return getStream(d);
  }
  c10::Stream getStreamFromGlobalPool(c10::Device d, bool /*high_priority*/) const override {
    return getStream(d);
  }
  c10::Stream getNewStream(c10::Device d, int /*priority*/) const override {
    return getStream(d);
  }
  c10::Stream exchangeStream(c10::Stream s) const override {
    return getStream(s.device());
  }
  c10::DeviceIndex deviceCount() const noexcept override {
    return device_count();
  }
  bool queryStream(const c10::Stream& s) const override {
    StateLock lock;
    return current_trace(s.device_index()).nodes.empty();
  }
  void synchronizeStream(const c10::Stream& s) const override {
    synchronize_device(s.device_index());
  }
  void synchronizeDevice(const c10::DeviceIndex d) const override {
    synchronize_device(d);
  }
  void record(void** event, const c10::Stream& stream, const c10::DeviceIndex device, const c10::EventFlag /*flag*/)
      const override {
    synchronize_device(stream.device_index());
    if (*event == nullptr)
      *event = new Event;
    *static_cast<Event*>(*event) = {device, std::chrono::steady_clock::now()};
  }
  void block(void* /*event*/, const c10::Stream& /*stream*/) const override {}
  bool queryEvent(void* /*event*/) const override {
    return true;
  }
  void synchronizeEvent(void* /*event*/) const override {}
  void destroyEvent(void* event, const c10::DeviceIndex /*device*/) const noexcept override {
    delete static_cast<Event*>(event);
  }
  double elapsedTime(void* start, void* end, const c10::DeviceIndex /*device*/) const override {
    TORCH_CHECK(start != nullptr && end != nullptr, "Both events must be recorded before calculating elapsed time.");
    std::chrono::duration<double, std::milli> ms = static_cast<Event*>(end)->when - static_cast<Event*>(start)->when;
    return ms.count();
  }
};

C10_REGISTER_GUARD_IMPL(PrivateUse1, Guard)

} // namespace

c10::DeviceIndex current_device() {
  return current;
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

void check_device(c10::DeviceIndex device) {
  if (device_count() == 0) {
    py::gil_scoped_acquire gil;
    bridge().no_device();
  }
  TORCH_CHECK(
      device >= 0 && device < device_count(),
      device_name(),
      ":",
      static_cast<int>(device),
      " does not exist: this process has ",
      static_cast<int>(device_count()),
      " device(s)");
}

std::pair<size_t, size_t> device_memory(c10::DeviceIndex device) {
  py::gil_scoped_acquire gil;
  return bridge().device_memory(static_cast<int>(device)).cast<std::pair<size_t, size_t>>();
}

std::string device_name() {
  return c10::get_privateuse1_backend();
}

void synchronize_device(c10::DeviceIndex device) {
  flush(device);
  py::gil_scoped_acquire gil;
  bridge().wait(static_cast<int>(device));
  raise_findings(kEveryRun);
}

} // namespace torch_pjrt
