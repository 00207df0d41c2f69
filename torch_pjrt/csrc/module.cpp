// The Python module torch_pjrt._C.
#include "aliasing.h"
#include "borrow.h"
#include "compiled.h"
#include "generator.h"
#include "guard.h"
#include "memory.h"
#include "modes.h"
#include "process_group.h"
#include "python.h"
#include "recorder.h"
#include "state.h"
#include "storage.h"

#include <torch/csrc/Generator.h>
#include <torch/csrc/utils/pybind.h>

namespace torch_pjrt {

void register_hooks();
PyObject* tensor_array(const at::Tensor& tensor, bool to_export);
// The array that is the tensor's whole storage; None if it is not made yet, or if the tensor is a view of it.
PyObject* held_array(const at::Tensor& tensor);
// Puts another array of the same content there.
void replace_array(const at::Tensor& tensor, const py::object& array);
// Puts another tensor's content there, if both are the whole of their storages and laid out alike.
bool replace_value(const at::Tensor& tensor, const at::Tensor& other);
at::Tensor tensor_of_array(const py::object& array, c10::ScalarType dtype, c10::DeviceIndex device, bool shared);
// Makes the array, of the tensor's sizes, all that the storage holds; false if the tensor is a part of it or is
// strided.
bool bind_array(const at::Tensor& tensor, const py::object& array);

namespace {

Bridge& bridge_slot() {
  static auto* b = new Bridge;
  return *b;
}

} // namespace

void set_bridge(const py::dict& f) {
  auto& b = bridge_slot();
  b.describe = f["describe"];
  b.infer = f["infer"];
  b.plan = f["plan"];
  b.fallback = f["fallback"];
  b.compile = f["compile"];
  b.prepare = f["prepare"];
  b.run = f["run"];
  b.verdict = f["verdict"];
  b.hold_interrupts = f["hold_interrupts"];
  b.release_interrupts = f["release_interrupts"];
  b.source = f["source"];
  b.upload = f["upload"];
  b.download = f["download"];
  b.transfer = f["transfer"];
  b.wait = f["wait"];
  b.wait_for = f["wait_for"];
  b.mark = f["mark"];
  b.finished = f["finished"];
  b.supported_dtypes = f["supported_dtypes"];
  b.host_sync = f["host_sync"];
  b.device_count = f["device_count"];
  b.no_device = f["no_device"];
  b.device_memory = f["device_memory"];
  b.attention = f["attention"];
  b.out_of_memory = f["out_of_memory"];
}

Bridge& bridge() {
  auto& b = bridge_slot();
  if (!b.describe)
    py::module_::import("torch_pjrt.eager.bridge");
  return b;
}

} // namespace torch_pjrt

namespace torch_pjrt {
namespace {

struct Deaf final : c10::WarningHandler {
  void process(const c10::Warning& /*warning*/) override {}
};

// What the function returns; warnings of PyTorch's C++ go nowhere. Python's filters come too late for those: they are
// kept until the outermost call from Python returns.
py::object without_warnings(const py::function& function) {
  Deaf deaf;
  c10::WarningUtils::WarningHandlerGuard guard(&deaf);
  return function();
}

} // namespace
} // namespace torch_pjrt

PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {
  using namespace torch_pjrt;
  register_hooks();
  register_recorders();
  m.def("set_bridge", &set_bridge);
  m.def("borrow_kernel", &borrow_kernel);
  m.def("device_count", &device_count, py::call_guard<py::gil_scoped_release>());
  m.def("without_warnings", &without_warnings);
  m.def("add_mesh", &add_mesh, py::call_guard<py::gil_scoped_release>());
  m.def("mesh_count", &mesh_count);
  m.def("current_device", &current_device);
  m.def("set_device", [](int index) {
    TORCH_CHECK(index >= 0 && index < 128, "invalid device index ", index);
    set_current_device(static_cast<c10::DeviceIndex>(index));
  });
  m.def("flush", [](int device) { flush(static_cast<c10::DeviceIndex>(device)); });
  m.def("flush_all", &flush_all);
  m.def("synchronize", [](int device) { synchronize_device(static_cast<c10::DeviceIndex>(device)); });
  m.def("pending_nodes", [](int device) {
    StateLock lock;
    return current_trace(static_cast<c10::DeviceIndex>(device)).nodes.size();
  });
  m.def("eager_mode", [] { return static_cast<int>(settings().mode.load()); });
  m.def("set_eager_mode", [](int mode) { settings().mode = static_cast<EagerMode>(mode); });
  m.def("set_attention_kernels", [](bool there) { settings().attention_kernels = there; });
  m.def("max_trace_nodes", [] { return settings().max_trace_nodes.load(); });
  m.def("set_max_trace_nodes", [](int64_t n) { settings().max_trace_nodes = n; });
  m.def("counters", [] {
    py::dict d;
    d["ops_recorded"] = counters().ops_recorded.load();
    d["traces_run"] = counters().traces_run.load();
    d["cache_hits"] = counters().cache_hits.load();
    return d;
  });
  m.def("reset_counters", [] {
    counters().ops_recorded = 0;
    counters().traces_run = 0;
    counters().cache_hits = 0;
  });
  m.def("default_generator", [](int device) {
    return py::reinterpret_steal<py::object>(
        THPGenerator_initDefaultGenerator(default_generator(static_cast<c10::DeviceIndex>(device))));
  });
  register_compiled(m);
  register_process_group(m);
  m.def("set_memory_limit", [](int device, int64_t nbytes) {
    set_memory_limit(static_cast<c10::DeviceIndex>(device), nbytes);
  });
  m.def("note_out_of_memory", [](int device) { note_out_of_memory(static_cast<c10::DeviceIndex>(device)); });
  m.def("note_peak", [](int device, int64_t more) { note_peak(static_cast<c10::DeviceIndex>(device), more); });
  m.def("live_arrays", [](int device) { return live_arrays(static_cast<c10::DeviceIndex>(device)); });
  m.def("check_overlap", [](const at::Tensor& written, const std::vector<at::Tensor>& read, uint8_t refusals) {
    std::vector<Named> named{{written.unsafeGetTensorImpl(), -1, true}};
    for (const auto& t : read)
      named.push_back({t.unsafeGetTensorImpl(), -1, false});
    check_overlap(named, refusals, Aliasing::kInPlace);
  });
  m.def("array", [](const at::Tensor& t) { return py::reinterpret_steal<py::object>(tensor_array(t, false)); });
  m.def("exported_array", [](const at::Tensor& t) { return py::reinterpret_steal<py::object>(tensor_array(t, true)); });
  m.def("held_array", [](const at::Tensor& t) { return py::reinterpret_steal<py::object>(held_array(t)); });
  m.def("replace_array", &replace_array);
  m.def("replace_value", &replace_value);
  m.def("bind_array", &bind_array);
  m.def("tensor_of_array", [](const py::object& array, at::ScalarType dtype, int device, bool shared) {
    return tensor_of_array(array, dtype, static_cast<c10::DeviceIndex>(device), shared);
  });
}
