// The Python side's entry points, and the GIL.
#pragma once

#include <torch/csrc/python_headers.h>

#include <pybind11/pybind11.h>

#include <mutex>

namespace torch_pjrt {

namespace py = pybind11;

// Functions of torch_pjrt.eager.bridge, set once by its import. Each is called with the GIL held.
struct Bridge {
  py::object describe; // (op name) -> how to treat the op
  py::object infer; // (op, args, template) -> (call, written, fresh)
  py::object plan; // (base, view) -> (structure, starts)
  py::object fallback; // (op, args) -> results
  py::object compile; // (trace description) -> executable
  py::object prepare; // (program, inputs): before a program of a mesh of devices runs
  py::object run; // (program, inputs, floats, ints, keys) -> (arrays, findings or None)
  py::object hold_interrupts; // () -> whether Ctrl-C is now noted instead of raised
  py::object release_interrupts; // (what hold_interrupts returned) raises KeyboardInterrupt if it was heard
  py::object verdict; // (program, findings, wait) -> (exception, its results), None (all well) or False (not known yet)
  py::object source; // () -> the user's line
  py::object upload; // (CPU tensor, device index) -> array
  py::object download; // (array) -> CPU tensor
  py::object transfer; // (array, device index) -> array
  py::object wait; // (device index)
  py::object wait_for; // (mark): blocks until what was dispatched before the mark has finished
  py::object mark; // () -> int: how many programs were dispatched so far
  py::object finished; // (mark) -> bool
  py::object supported_dtypes; // () -> dtypes of tensors
  py::object host_sync; // (cause)
  py::object device_count; // () -> int
  py::object no_device; // () raises: why there is no device, and how to get one
  py::object device_memory; // (device index) -> (free, total)
  py::object attention; // (query, key, whether there is a mask) -> the kernel, an SDPBackend as an int
  py::object out_of_memory; // (device index, bytes, what for) raises
};

// The bridge, importing torch_pjrt.eager on first use. Needs the GIL.
Bridge& bridge();
void set_bridge(const py::dict& functions);

// Lets go of the GIL if this thread holds it, for waiting on another thread.
class WithoutGil {
 public:
  WithoutGil() {
    if (PyGILState_Check())
      state_ = PyEval_SaveThread();
  }
  ~WithoutGil() {
    if (state_ != nullptr)
      PyEval_RestoreThread(state_);
  }
  WithoutGil(const WithoutGil&) = delete;
  WithoutGil& operator=(const WithoutGil&) = delete;

 private:
  PyThreadState* state_ = nullptr;
};

} // namespace torch_pjrt
