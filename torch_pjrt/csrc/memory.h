// What is in use on a device: the arrays of live values, their bytes, and a limit on them.
#pragma once

#include "python.h"
#include "value.h"

#include <cstdint>
#include <vector>

namespace torch_pjrt {

// Bytes and numbers of the materialized arrays on one device.
struct MemoryFigures {
  int64_t current = 0;
  int64_t peak = 0;
  int64_t allocated = 0; // cumulative
  int64_t freed = 0; // cumulative
  int64_t arrays = 0;
  int64_t peak_arrays = 0;
  int64_t arrays_made = 0; // cumulative
  int64_t arrays_freed = 0; // cumulative
  int64_t ooms = 0;
};
MemoryFigures memory_figures(c10::DeviceIndex device);
void reset_peak_memory(c10::DeviceIndex device);
void reset_accumulated_memory(c10::DeviceIndex device);

// A value got its array, or gives it back.
void account_made(Value& value);
void account_freed(Value& value);
// A program takes this many bytes besides what is in use while it runs.
void note_peak(c10::DeviceIndex device, int64_t more);
void note_out_of_memory(c10::DeviceIndex device);
// Whether it is torch.OutOfMemoryError. Needs the GIL.
bool is_out_of_memory(PyObject* exception);

// At most this many bytes may be in use; negative: as many as there are.
void set_memory_limit(c10::DeviceIndex device, int64_t nbytes);
// Raises torch.OutOfMemoryError if one more array of this layout would pass the limit. Needs the GIL.
void require_memory(c10::DeviceIndex device, const Layout* layout);

// What a trace asks for: its results, less the inputs that die with it.
class MemoryRequest {
 public:
  template <class SourceOf>
  MemoryRequest(
      c10::DeviceIndex device,
      const std::vector<ValuePtr>& results,
      const std::vector<ValuePtr>& inputs,
      const std::vector<uint32_t>& dying,
      const SourceOf& source_of)
      : device_(device) {
    int64_t largest = -1;
    for (const auto& v : results) {
      auto n = static_cast<int64_t>(v->layout->array_nbytes());
      nbytes_ += n;
      if (n > largest) {
        largest = n;
        layout_ = v->layout;
        source_ = source_of(*v);
      }
    }
    for (uint32_t i : dying)
      nbytes_ -= static_cast<int64_t>(inputs[i]->layout->array_nbytes());
  }
  bool fits() const;
  // Raises torch.OutOfMemoryError unless it fits. Needs the GIL.
  void require() const;

 private:
  c10::DeviceIndex device_;
  int64_t nbytes_ = 0;
  const Layout* layout_ = nullptr; // of the largest result
  uint64_t source_ = 0;
};

// (bytes, dtype number, sizes, the user's line or None, a number that tells arrays apart) of each array in use.
// Needs the GIL.
py::list live_arrays(c10::DeviceIndex device);

} // namespace torch_pjrt
