#include "compiled.h"

#include "findings.h"
#include "graph_recorder.h"
#include "guard.h"
#include "interrupts.h"
#include "layout_python.h"
#include "lowering_state.h"
#include "modes.h"
#include "plan.h"
#include "state.h"
#include "storage.h"

#include <ATen/ATen.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <c10/util/flat_hash_map.h>
#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/utils/pybind.h>

#include <pthread.h>

#include <pybind11/numpy.h>
#include <pybind11/stl.h>

#include <atomic>
#include <memory>
#include <vector>

namespace torch_pjrt {
namespace {

std::atomic<bool> forked{false};

// One program: the graph for given sizes and for arguments that lie in memory in a given way.
struct Variant {
  struct Seen {
    const Layout* own;
    const Layout* base;
    const ViewStructure* structure;
    bool operator==(const Seen& o) const {
      return own == o.own && base == o.base && structure == o.structure;
    }
  };
  std::vector<Seen> seen;
  std::vector<int64_t> sizes;
  uint64_t state = 0; // global state that lowerings read
  py::object run; // (arrays..., starts if any, keys if any) -> list of arrays; None: nothing to compute
  std::vector<uint32_t> written; // for each written argument: the result that it becomes
  std::vector<Output> outputs;
  py::object checks; // what the program checks of its data, its last result being the findings; None: nothing
};

// A tensor argument of the call being made.
struct Slot {
  at::Tensor tensor;
  uint32_t argument = 0;
  ValuePtr value;
  py::object array; // of a host tensor, or a copy that the program may overwrite
  const Layout* own = nullptr;
  const ViewStructure* structure = nullptr;

  Variant::Seen seen() const {
    return {own, value->layout, structure};
  }
  c10::SmallVector<int64_t, 4> starts;
};

class Graph {
 public:
  // takes: a Takes number for each argument; written: arguments whose content the graph replaces; draws: random keys;
  // recording: of GraphRecorder, or None if the graph always runs by itself.
  Graph(
      int device,
      const std::vector<int>& takes,
      std::vector<uint32_t> written,
      size_t draws,
      const py::dict& functions,
      const std::optional<py::dict>& recording)
      : device_(static_cast<c10::DeviceIndex>(device)), written_(std::move(written)), draws_(draws),
        compile_(functions["compile"]), copy_(functions["copy"]), dispatched_(functions["dispatched"]),
        explain_(functions["explain"]) {
    for (int t : takes)
      takes_.push_back(static_cast<Takes>(t));
    is_written_.resize(takes_.size());
    for (uint32_t w : written_)
      is_written_.at(w) = true;
    if (recording)
      recorder_ = std::make_unique<GraphRecorder>(device_, takes_, is_written_, draws_, *recording);
    static std::once_flag once;
    std::call_once(once, [] { pthread_atfork(nullptr, nullptr, [] { forked = true; }); });
  }

  py::list call(const py::list& args) {
    TORCH_CHECK(
        args.size() == takes_.size(),
        "a compiled graph takes ",
        takes_.size(),
        " arguments and was called with ",
        args.size());
    if (forked.exchange(false))
      bridge().wait(static_cast<int>(device_)); // raises in a forked child of a process that had used the device
    drain_released_arrays();
    look_at_findings(0);
    if (recorder_) {
      if (auto outputs = recorder_->call(args))
        return *outputs;
    }
    std::vector<Slot> slots;
    std::vector<int64_t> sizes;
    read(args, &slots, &sizes);
    locate(&slots);
    own_what_is_written(&slots);
    const Variant& variant = variant_for(slots, sizes);
    std::vector<ValuePtr> read_values;
    read_values.reserve(slots.size());
    for (const auto& s : slots)
      read_values.push_back(s.value);
    Interrupts interrupts;
    std::vector<py::object> results = run(variant, slots, &interrupts);
    py::object findings = py::none();
    if (!variant.checks.is_none()) {
      findings = std::move(results.back());
      results.pop_back();
    }
    std::vector<ValuePtr> values(results.size());
    bind_written(variant, slots, results, &values);
    py::list outputs = wrap(variant, args, results, &values);
    note(variant, read_values, values, std::move(findings));
    interrupts.release();
    // The caller has nothing more to do with the arguments (a boxed call): activations die here, not after it.
    PyList_SetSlice(args.ptr(), 0, PyList_GET_SIZE(args.ptr()), nullptr);
    if (settings().mode.load(std::memory_order_relaxed) == EagerMode::kStrict)
      synchronize_device(device_);
    return outputs;
  }

  size_t variants() const {
    return variants_.size();
  }

 private:
  void read(const py::list& args, std::vector<Slot>* slots, std::vector<int64_t>* sizes) {
    slots->reserve(takes_.size());
    for (uint32_t i = 0; i < takes_.size(); ++i) {
      if (takes_[i] == Takes::kInt) {
        sizes->push_back(py::handle(PyList_GET_ITEM(args.ptr(), i)).cast<int64_t>());
        continue;
      }
      if (takes_[i] == Takes::kNothing)
        continue;
      Slot slot;
      slot.argument = i;
      slot.tensor = tensor_argument(args, i, takes_[i], is_written_[i], device_);
      if (takes_[i] == Takes::kHost)
        upload(&slot);
      slots->push_back(std::move(slot));
    }
  }

  void upload(Slot* slot) {
    auto host = slot->tensor.detach().resolve_conj().resolve_neg().contiguous();
    slot->array = bridge().upload(host, static_cast<int>(device_));
    StateLock lock;
    // Of a device value, only the layout is needed: the array itself is not the device tensor's.
    slot->own = layout_of(*host.unsafeGetTensorImpl());
    slot->value = c10::make_intrusive<Value>(slot->own, device_);
  }

  // Finds the array under every tensor, running what is recorded if one of them is still to be made.
  void locate(std::vector<Slot>* slots) {
    for (;;) {
      const at::Tensor* unwritten = nullptr;
      ValuePtr failed;
      bool pending = false;
      const Layout* base = nullptr;
      const Layout* view = nullptr;
      int64_t offset = 0;
      {
        StateLock lock;
        for (auto& slot : *slots) {
          if (slot.array)
            continue;
          auto* impl = slot.tensor.unsafeGetTensorImpl();
          slot.value = cell_of(*impl).value;
          if (!slot.value) {
            unwritten = &slot.tensor;
            break;
          }
          if (slot.value->failure) {
            failed = slot.value;
            break;
          }
          if (slot.value->array == nullptr) {
            pending = true;
            break;
          }
          slot.own = layout_of(*impl);
          slot.structure = nullptr;
          slot.starts.clear();
          if (slot.value->layout == slot.own && impl->storage_offset() == 0)
            continue;
          const Plan* plan = nullptr;
          if (!find_plan(slot.value->layout, slot.own, impl->storage_offset(), &plan)) {
            base = slot.value->layout;
            view = slot.own;
            offset = impl->storage_offset();
            break;
          }
          slot.structure = plan->structure;
          slot.starts = plan->starts;
        }
      }
      if (failed)
        throw_failure(failed->failure);
      if (unwritten != nullptr) {
        at::AutoDispatchBelowADInplaceOrView below;
        unwritten->zero_(); // what the memory of torch.empty reads as, here and in eager
      } else if (pending) {
        flush(device_);
      } else if (base != nullptr) {
        work_out_plan(base, view, offset);
      } else {
        return;
      }
    }
  }

  // The program overwrites the memory of what the graph writes, so nobody else may hold it: a clone that still shares
  // the value, a recorded op that has yet to read it, JAX code with the array in hand.
  void own_what_is_written(std::vector<Slot>* slots) {
    if (written_.empty())
      return;
    bool flushed = false;
    for (auto& slot : *slots) {
      if (!is_written_[slot.argument] || slot.array || owned(slot))
        continue;
      if (!flushed) {
        flushed = true;
        size_t recorded = 0;
        {
          StateLock lock;
          recorded = current_trace(device_).nodes.size();
        }
        if (recorded != 0) {
          for (auto& s : *slots)
            if (!s.array)
              s.value.reset();
          flush(device_);
          locate(slots);
          if (owned(slot))
            continue;
        }
      }
      slot.array = copy_(py::reinterpret_borrow<py::object>(slot.value->array));
    }
  }

  // By its cell and by this call alone.
  static bool owned(const Slot& slot) {
    return !slot.value->exported && slot.value.use_count() == 2 && Py_REFCNT(slot.value->array) == 1;
  }

  bool matches(const Variant& v, const std::vector<Slot>& slots, const std::vector<int64_t>& sizes) const {
    for (size_t i = 0; i < slots.size(); ++i)
      if (!(v.seen[i] == slots[i].seen()))
        return false;
    return v.sizes == sizes && v.state == lowering_state();
  }

  const Variant& variant_for(const std::vector<Slot>& slots, const std::vector<int64_t>& sizes) {
    if (last_ != nullptr && matches(*last_, slots, sizes))
      return *last_;
    Hash128 key;
    for (const auto& s : slots) {
      key.add(s.own);
      key.add(s.value->layout);
      key.add(s.structure);
    }
    for (int64_t n : sizes)
      key.add(static_cast<uint64_t>(n));
    key.add(lowering_state());
    auto it = variants_.find(key);
    if (it == variants_.end())
      it = variants_.emplace(key, compile(slots, sizes)).first;
    last_ = it->second.get();
    return *last_;
  }

  std::unique_ptr<Variant> compile(const std::vector<Slot>& slots, const std::vector<int64_t>& sizes) {
    py::list inputs;
    auto variant = std::make_unique<Variant>();
    for (const auto& s : slots) {
      inputs.append(
          py::make_tuple(
              s.argument,
              python_layout(s.own),
              python_layout(s.value->layout),
              s.structure == nullptr ? py::none() : py::reinterpret_borrow<py::object>(s.structure->object),
              s.starts.size()));
      variant->seen.push_back(s.seen());
    }
    if (source_ == 0)
      source_ = source_here();
    variant->sizes = sizes;
    variant->state = lowering_state();
    py::tuple said = compile_(inputs, sizes);
    variant->run = said[0];
    variant->written = said[1].cast<std::vector<uint32_t>>();
    variant->outputs = read_outputs(said[2]);
    variant->checks = said[3];
    return variant;
  }

  // Lets what the program made fail if what it read turns out wrong, or what it found.
  void note(
      const Variant& variant,
      const std::vector<ValuePtr>& read,
      const std::vector<ValuePtr>& made,
      py::object findings) {
    std::vector<ValuePtr> held;
    for (const auto& value : made)
      if (value)
        held.push_back(value);
    uint64_t number = note_run(read, held, variant.checks, std::move(findings));
    StateLock lock;
    for (const auto& value : held)
      value->run = number;
  }

  std::vector<py::object> run(const Variant& variant, const std::vector<Slot>& slots, Interrupts* interrupts) {
    std::vector<py::object> results;
    if (variant.run.is_none())
      return results;
    std::vector<PyObject*> arguments;
    arguments.reserve(slots.size() + 2);
    std::vector<int64_t> starts;
    for (const auto& s : slots) {
      arguments.push_back(s.array ? s.array.ptr() : s.value->array);
      starts.insert(starts.end(), s.starts.begin(), s.starts.end());
    }
    py::object starts_array;
    if (!starts.empty()) {
      starts_array = py::array_t<int64_t>(static_cast<py::ssize_t>(starts.size()), starts.data());
      arguments.push_back(starts_array.ptr());
    }
    py::object keys_array;
    if (draws_ != 0) {
      const Keys keys = draw_keys(draws_, device_);
      keys_array = py::array_t<uint32_t>(static_cast<py::ssize_t>(keys.size()), keys.data());
      arguments.push_back(keys_array.ptr());
    }
    interrupts->hold(); // until what the program made is bound
    auto made = py::reinterpret_steal<py::object>(
        PyObject_Vectorcall(variant.run.ptr(), arguments.data(), arguments.size(), nullptr));
    if (!made) {
      py::error_already_set error;
      if (!error.matches(PyExc_Exception))
        throw error; // Ctrl-C
      explain_(error.value()); // raises an error that names the graph's ops and the user's lines
      throw error;
    }
    dispatched_(made);
    py::list list = made;
    for (const auto& r : list)
      results.push_back(py::reinterpret_borrow<py::object>(r));
    return results;
  }

  // The value over a result: one and the same wherever the result goes, as long as its layout is the same.
  ValuePtr value_over(
      uint32_t index, const Layout* layout, const std::vector<py::object>& results, std::vector<ValuePtr>* values) {
    auto& known = values->at(index);
    if (known && known->layout == layout)
      return known;
    auto fresh = c10::make_intrusive<Value>(layout, device_);
    {
      StateLock lock;
      fresh->materialize(py::object(results.at(index)).release().ptr(), source_);
    }
    if (!known)
      known = fresh;
    return fresh;
  }

  void bind_written(
      const Variant& variant,
      std::vector<Slot>& slots,
      std::vector<py::object>& results,
      std::vector<ValuePtr>* values) {
    size_t w = 0;
    for (auto& slot : slots) {
      if (!is_written_[slot.argument])
        continue;
      uint32_t index = variant.written.at(w++);
      if (takes_[slot.argument] == Takes::kHost) {
        bridge().host_sync("a compiled graph's write to a CPU tensor");
        auto host = bridge().download(results.at(index)).cast<at::Tensor>();
        at::AutoDispatchBelowADInplaceOrView below;
        slot.tensor.copy_(host);
        continue;
      }
      ValuePtr value = value_over(index, slot.value->layout, results, values);
      ValuePtr dropped;
      {
        StateLock lock;
        auto& cell = cell_of(*slot.tensor.unsafeGetTensorImpl());
        dropped = std::move(cell.value);
        cell.value = std::move(value);
      }
    }
    slots.clear();
  }

  py::list wrap(
      const Variant& variant,
      const py::list& args,
      const std::vector<py::object>& results,
      std::vector<ValuePtr>* values) {
    return make_outputs(variant.outputs, args, [&](const Output& o) {
      if (o.kind == Output::Kind::kResult)
        return make_tensor(value_over(o.index, o.layout, results, values), o.layout, device_);
      bridge().host_sync("a compiled graph's output on the CPU");
      auto host = bridge().download(results.at(o.index)).cast<at::Tensor>();
      auto own = at::empty_strided(o.layout->sizes, o.layout->strides, at::TensorOptions(o.layout->dtype));
      own.copy_(host);
      return own;
    });
  }

  c10::DeviceIndex device_;
  std::vector<Takes> takes_;
  std::vector<uint32_t> written_;
  std::vector<bool> is_written_;
  size_t draws_;
  uint64_t source_ = 0; // key of the user's line that called it first
  py::object compile_, copy_, dispatched_, explain_;
  ska::flat_hash_map<Hash128, std::unique_ptr<Variant>, HashOfHash> variants_;
  const Variant* last_ = nullptr;
  std::unique_ptr<GraphRecorder> recorder_;
};

} // namespace

void register_compiled(py::module_& m) {
  py::class_<Graph>(m, "Graph", py::dynamic_attr())
      .def(
          py::init<
              int,
              const std::vector<int>&,
              std::vector<uint32_t>,
              size_t,
              const py::dict&,
              const std::optional<py::dict>&>())
      .def("__call__", &Graph::call)
      .def_property_readonly("variants", &Graph::variants);
}

} // namespace torch_pjrt
