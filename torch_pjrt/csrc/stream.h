// Streams and events. Whatever the stream, a device runs in program order: streams have identities, so that programs
// that use several find their own again, and waiting for one another costs nothing.
#pragma once

#include <c10/core/Stream.h>

#include <chrono>
#include <cstdint>

namespace torch_pjrt {

c10::Stream default_stream(c10::DeviceIndex device);
// This thread's stream on the device.
c10::Stream current_stream(c10::DeviceIndex device);
c10::Stream new_stream(c10::DeviceIndex device);
// Makes `stream` this thread's stream on its device; returns the one before.
c10::Stream exchange_stream(c10::Stream stream);

// A moment in program order. It is reached once everything recorded before it has run.
struct Event {
  c10::DeviceIndex device = 0;
  // The trace that was being recorded at that moment, while it may still be: 0 if it had no nodes.
  uint64_t trace = 0;
  // Programs dispatched until then, unless `trace` says that not all are yet.
  int64_t mark = 0;
  bool timed = false;
  std::chrono::steady_clock::time_point when; // of a timed event
};

// A timed event runs what is recorded and waits for it: PJRT has no clock on the device. Another one cuts no trace.
void record_event(Event& event, c10::DeviceIndex device, bool timed);
// Whether everything before the event has run. Starts it if it is only recorded, or a loop that asks would never end.
bool is_reached(Event& event);
void wait_for(Event& event);
double milliseconds(const Event& start, const Event& end);

} // namespace torch_pjrt
