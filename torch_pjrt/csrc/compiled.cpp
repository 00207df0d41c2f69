#include "compiled.h"

#include "findings.h"
#include "generator.h"
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

// What the graph does with one of its arguments.
enum class Takes : uint8_t {
  kNothing, // unused, or only handed through
  kTensor, // a tensor of the device
  kHost, // a CPU tensor: uploaded for every call
  kInt, // a size: each value has a program of its own
};

// How one output of the graph is made.
struct Output {
  enum class Kind : uint8_t {
    kResult, // a fresh tensor over a result of the program
    kHost, // the same on the CPU
    kArgument, // the argument itself
    kOutput, // another output itself
    kViewOfArgument,
    kViewOfOutput,
    kConstant, // None, or a size
  };
  Kind kind = Kind::kConstant;
  uint32_t index = 0;
  const Layout* layout = nullptr;
  int64_t offset = 0;
  py::object constant;
};

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

// A tensor that shares `base`'s storage, without autograd knowing it as a view: PyTorch's own runtime says what is one.
at::Tensor view_of(const at::Tensor& base, const Layout* layout, int64_t offset) {
  auto view = at::detail::make_tensor<c10::TensorImpl>(
      c10::Storage(base.storage()),
      c10::DispatchKeySet(c10::DispatchKey::PrivateUse1),
      c10::scalarTypeToTypeMeta(layout->dtype));
  auto* impl = view.unsafeGetTensorImpl();
  impl->set_storage_offset(base.storage_offset() + offset);
  impl->set_sizes_and_strides(layout->sizes, layout->strides);
  return view;
}

class Graph {
 public:
  // takes: a Takes number for each argument; written: arguments whose content the graph replaces; draws: random keys.
  Graph(
      int device, const std::vector<int>& takes, std::vector<uint32_t> written, size_t draws, const py::dict& functions)
      : device_(static_cast<c10::DeviceIndex>(device)), written_(std::move(written)), draws_(draws),
        compile_(functions["compile"]), copy_(functions["copy"]), dispatched_(functions["dispatched"]),
        explain_(functions["explain"]) {
    for (int t : takes)
      takes_.push_back(static_cast<Takes>(t));
    is_written_.resize(takes_.size());
    for (uint32_t w : written_)
      is_written_.at(w) = true;
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
      PyObject* arg = PyList_GET_ITEM(args.ptr(), i);
      if (takes_[i] == Takes::kInt) {
        sizes->push_back(py::handle(arg).cast<int64_t>());
        continue;
      }
      if (takes_[i] == Takes::kNothing)
        continue;
      TORCH_CHECK(
          THPVariable_Check(arg),
          "argument ",
          i,
          " of a compiled graph: expected a tensor, got ",
          Py_TYPE(arg)->tp_name);
      Slot slot;
      slot.argument = i;
      slot.tensor = THPVariable_Unpack(arg);
      if (takes_[i] == Takes::kHost) {
        TORCH_CHECK(
            slot.tensor.is_cpu(),
            "argument ",
            i,
            " of a compiled graph: expected a CPU tensor, got one on ",
            slot.tensor.device().str());
        upload(&slot);
      } else {
        TORCH_CHECK(
            slot.tensor.device() == c10::Device(c10::kPrivateUse1, device_),
            "argument ",
            i,
            " of a compiled graph: expected a tensor on ",
            c10::Device(c10::kPrivateUse1, device_).str(),
            ", got one on ",
            slot.tensor.device().str());
        if (slot.tensor.is_conj() || slot.tensor.is_neg()) {
          TORCH_CHECK(
              !is_written_[i], "argument ", i, " of a compiled graph: cannot write to a lazily conjugated view");
          at::AutoDispatchBelowADInplaceOrView below;
          slot.tensor = slot.tensor.is_conj() ? slot.tensor.resolve_conj() : slot.tensor.resolve_neg();
        }
      }
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
    for (const auto& given : py::list(said[2])) {
      py::tuple t = py::reinterpret_borrow<py::tuple>(given);
      Output o;
      o.kind = static_cast<Output::Kind>(t[0].cast<int>());
      o.index = t[1].cast<uint32_t>();
      o.layout = layout_from(t[2]);
      o.offset = t[3].cast<int64_t>();
      o.constant = t[4];
      variant->outputs.push_back(std::move(o));
    }
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
      std::vector<uint32_t> keys;
      for (size_t i = 0; i < draws_; ++i) {
        auto key = draw_key(std::nullopt, device_);
        keys.insert(keys.end(), key.begin(), key.end());
      }
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
    py::list outputs(variant.outputs.size());
    auto set = [&](size_t i, PyObject* object) { PyList_SET_ITEM(outputs.ptr(), static_cast<Py_ssize_t>(i), object); };
    // What is a view of another output comes after it, and what is another output itself after both.
    for (size_t k = 0; k < 3 * variant.outputs.size(); ++k) {
      size_t i = k % variant.outputs.size();
      const auto& o = variant.outputs[i];
      size_t turn = o.kind == Output::Kind::kViewOfOutput ? 1 : o.kind == Output::Kind::kOutput ? 2 : 0;
      if (turn != k / variant.outputs.size())
        continue;
      switch (o.kind) {
        case Output::Kind::kResult:
          set(i, THPVariable_Wrap(make_tensor(value_over(o.index, o.layout, results, values), o.layout, device_)));
          break;
        case Output::Kind::kHost: {
          bridge().host_sync("a compiled graph's output on the CPU");
          auto host = bridge().download(results.at(o.index)).cast<at::Tensor>();
          auto own = at::empty_strided(o.layout->sizes, o.layout->strides, at::TensorOptions(o.layout->dtype));
          own.copy_(host);
          set(i, THPVariable_Wrap(own));
          break;
        }
        case Output::Kind::kArgument:
          set(i, Py_NewRef(PyList_GET_ITEM(args.ptr(), o.index)));
          break;
        case Output::Kind::kOutput:
          set(i, Py_NewRef(PyList_GET_ITEM(outputs.ptr(), o.index)));
          break;
        case Output::Kind::kViewOfArgument:
          set(i,
              THPVariable_Wrap(view_of(THPVariable_Unpack(PyList_GET_ITEM(args.ptr(), o.index)), o.layout, o.offset)));
          break;
        case Output::Kind::kViewOfOutput:
          set(i,
              THPVariable_Wrap(
                  view_of(THPVariable_Unpack(PyList_GET_ITEM(outputs.ptr(), o.index)), o.layout, o.offset)));
          break;
        case Output::Kind::kConstant:
          set(i, Py_NewRef(o.constant.ptr()));
          break;
      }
    }
    return outputs;
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
};

} // namespace

void register_compiled(py::module_& m) {
  py::class_<Graph>(m, "Graph", py::dynamic_attr())
      .def(py::init<int, const std::vector<int>&, std::vector<uint32_t>, size_t, const py::dict&>())
      .def("__call__", &Graph::call)
      .def_property_readonly("variants", &Graph::variants);
}

} // namespace torch_pjrt
