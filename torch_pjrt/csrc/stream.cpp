#include "stream.h"

#include "findings.h"
#include "guard.h"
#include "python.h"
#include "state.h"
#include "trace.h"

#include <ATen/core/Tensor.h>
#include <c10/util/Exception.h>
#include <torch/library.h>

#include <array>
#include <atomic>

namespace torch_pjrt {
namespace {

thread_local std::array<c10::StreamId, 128> current{}; // 0 is the default stream

c10::Stream stream_of(c10::DeviceIndex device, c10::StreamId id) {
  return c10::Stream(c10::Stream::UNSAFE, c10::Device(c10::kPrivateUse1, device), id);
}

// Sees to it that everything before the event has been dispatched.
void dispatch(Event& event) {
  if (event.trace == 0)
    return;
  flush(event.device); // if another thread is running the trace at this moment, this waits for it
  event.trace = 0;
  py::gil_scoped_acquire gil;
  event.mark = bridge().mark().cast<int64_t>();
}

} // namespace

c10::Stream default_stream(c10::DeviceIndex device) {
  return stream_of(device, 0);
}

c10::Stream current_stream(c10::DeviceIndex device) {
  return stream_of(device, current.at(static_cast<size_t>(device)));
}

c10::Stream new_stream(c10::DeviceIndex device) {
  static std::atomic<c10::StreamId> last{0};
  check_device(device);
  return stream_of(device, ++last);
}

c10::Stream exchange_stream(c10::Stream stream) {
  auto before = current_stream(stream.device_index());
  current[static_cast<size_t>(stream.device_index())] = stream.id();
  return before;
}

void record_event(Event& event, c10::DeviceIndex device, bool timed) {
  event = {device, 0, 0, timed, {}};
  if (timed) {
    synchronize_device(device);
    event.when = std::chrono::steady_clock::now();
  } else {
    StateLock lock;
    const auto& trace = current_trace(device);
    event.trace = trace.nodes.empty() ? 0 : trace.id;
  }
  py::gil_scoped_acquire gil;
  event.mark = bridge().mark().cast<int64_t>();
}

bool is_reached(Event& event) {
  if (event.timed)
    return true;
  dispatch(event);
  py::gil_scoped_acquire gil;
  return bridge().finished(event.mark).cast<bool>();
}

void wait_for(Event& event) {
  if (event.timed)
    return;
  dispatch(event);
  py::gil_scoped_acquire gil;
  bridge().wait_for(event.mark);
  raise_findings(0);
}

double milliseconds(const Event& start, const Event& end) {
  TORCH_CHECK_VALUE(start.timed && end.timed, "Both events must be created with argument 'enable_timing=True'.");
  std::chrono::duration<double, std::milli> ms = end.when - start.when;
  return ms.count();
}

namespace {

// A stream is program order here, so nothing has to be kept until another stream is done with it.
void record_stream(at::Tensor& /*self*/, c10::Stream /*stream*/) {}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("record_stream", record_stream);
}

} // namespace

} // namespace torch_pjrt
