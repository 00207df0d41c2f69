// Ctrl-C while a program is dispatched and its results are bound (runtime/interrupts.py says why it must wait).
#pragma once

#include "python.h"

namespace torch_pjrt {

// With the GIL, as all that uses it.
class Interrupts {
 public:
  Interrupts() = default;
  Interrupts(const Interrupts&) = delete;
  Interrupts& operator=(const Interrupts&) = delete;

  // From now on Ctrl-C is noted instead of raised.
  void hold() {
    held_ = bridge().hold_interrupts();
  }
  // Ends `hold`. Raises KeyboardInterrupt if Ctrl-C was heard in between.
  void release() {
    if (held_)
      bridge().release_interrupts(std::exchange(held_, py::object()));
  }
  // Where another error is on its way, Ctrl-C is heard once Python runs again.
  ~Interrupts() {
    py::error_scope on_its_way;
    try {
      release();
    } catch (py::error_already_set&) {
      PyErr_SetInterrupt();
    }
  }

 private:
  py::object held_; // what hold_interrupts returned
};

} // namespace torch_pjrt
