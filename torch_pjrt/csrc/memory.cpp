#include "memory.h"

#include "layout_python.h"
#include "trace.h"

#include <pybind11/stl.h>

#include <algorithm>
#include <array>
#include <mutex>

namespace torch_pjrt {
namespace {

struct Device {
  MemoryFigures figures;
  int64_t limit = -1;
  Value* first = nullptr; // of the list of values that have an array
};

std::array<Device, 128>& devices() {
  static auto* d = new std::array<Device, 128>{};
  return *d;
}
std::mutex& mutex() {
  static auto* m = new std::mutex;
  return *m;
}
Device& device_at(c10::DeviceIndex device) {
  return devices().at(static_cast<size_t>(device));
}

bool fits_limit(c10::DeviceIndex device, int64_t more) {
  std::lock_guard<std::mutex> guard(mutex());
  const auto& d = device_at(device);
  return d.limit < 0 || more <= 0 || d.figures.current + more <= d.limit;
}

py::tuple describe(const Layout* layout, uint64_t source, uint64_t identity) {
  return py::make_tuple(
      layout->array_nbytes(),
      static_cast<int>(layout->dtype),
      python_sizes(layout->sizes),
      source_line(source),
      identity);
}

} // namespace

MemoryFigures memory_figures(c10::DeviceIndex device) {
  std::lock_guard<std::mutex> guard(mutex());
  return device_at(device).figures;
}

void reset_peak_memory(c10::DeviceIndex device) {
  std::lock_guard<std::mutex> guard(mutex());
  auto& f = device_at(device).figures;
  f.peak = f.current;
  f.peak_arrays = f.arrays;
}

void reset_accumulated_memory(c10::DeviceIndex device) {
  std::lock_guard<std::mutex> guard(mutex());
  auto& f = device_at(device).figures;
  f.allocated = f.freed = f.arrays_made = f.arrays_freed = f.ooms = 0;
}

void account_made(Value& value) {
  auto n = static_cast<int64_t>(value.layout->array_nbytes());
  std::lock_guard<std::mutex> guard(mutex());
  auto& d = device_at(value.device);
  auto& f = d.figures;
  f.current += n;
  f.allocated += n;
  f.arrays += 1;
  f.arrays_made += 1;
  f.peak = std::max(f.peak, f.current);
  f.peak_arrays = std::max(f.peak_arrays, f.arrays);
  value.next = d.first;
  if (d.first != nullptr)
    d.first->previous = &value;
  d.first = &value;
}

void account_freed(Value& value) {
  auto n = static_cast<int64_t>(value.layout->array_nbytes());
  std::lock_guard<std::mutex> guard(mutex());
  auto& d = device_at(value.device);
  d.figures.current -= n;
  d.figures.freed += n;
  d.figures.arrays -= 1;
  d.figures.arrays_freed += 1;
  (value.previous != nullptr ? value.previous->next : d.first) = value.next;
  if (value.next != nullptr)
    value.next->previous = value.previous;
}

void note_peak(c10::DeviceIndex device, int64_t more) {
  std::lock_guard<std::mutex> guard(mutex());
  auto& f = device_at(device).figures;
  f.peak = std::max(f.peak, f.current + more);
}

void note_out_of_memory(c10::DeviceIndex device) {
  std::lock_guard<std::mutex> guard(mutex());
  device_at(device).figures.ooms += 1;
}

bool is_out_of_memory(PyObject* exception) {
  return PyErr_GivenExceptionMatches(exception, py::module_::import("torch").attr("OutOfMemoryError").ptr()) != 0;
}

void set_memory_limit(c10::DeviceIndex device, int64_t nbytes) {
  std::lock_guard<std::mutex> guard(mutex());
  device_at(device).limit = nbytes;
}

void require_memory(c10::DeviceIndex device, const Layout* layout) {
  auto n = static_cast<int64_t>(layout->array_nbytes());
  if (!fits_limit(device, n))
    bridge().out_of_memory(static_cast<int>(device), n, describe(layout, source_here(), 0));
}

bool MemoryRequest::fits() const {
  return fits_limit(device_, nbytes_);
}

void MemoryRequest::require() const {
  if (!fits())
    bridge().out_of_memory(static_cast<int>(device_), nbytes_, describe(layout_, source_, 0));
}

py::list live_arrays(c10::DeviceIndex device) {
  struct Found {
    const Layout* layout;
    uint64_t source;
    uint64_t identity;
  };
  std::vector<Found> found;
  {
    std::lock_guard<std::mutex> guard(mutex());
    for (const Value* v = device_at(device).first; v != nullptr; v = v->next)
      found.push_back({v->layout, v->source, reinterpret_cast<uint64_t>(v)});
  }
  py::list arrays;
  for (const auto& f : found)
    arrays.append(describe(f.layout, f.source, f.identity));
  return arrays;
}

} // namespace torch_pjrt
