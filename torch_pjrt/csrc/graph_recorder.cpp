#include "graph_recorder.h"

#include "generator.h"
#include "layout_python.h"
#include "lowering_state.h"
#include "memory.h"
#include "modes.h"
#include "plan.h"
#include "recorder.h"
#include "state.h"
#include "storage.h"

#include <ATen/ATen.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/utils/pybind.h>

#include <pybind11/stl.h>

namespace torch_pjrt {
namespace {

ArgInfo tensor_info(bool written) {
  ArgInfo info;
  info.kind = ArgInfo::Kind::kTensor;
  info.written = written;
  return info;
}
const ArgInfo kRead = tensor_info(false);
const ArgInfo kWritten = tensor_info(true);

} // namespace

at::Tensor tensor_argument(const py::list& args, size_t i, Takes takes, bool written, c10::DeviceIndex device) {
  PyObject* arg = PyList_GET_ITEM(args.ptr(), static_cast<Py_ssize_t>(i));
  TORCH_CHECK(
      THPVariable_Check(arg), "argument ", i, " of a compiled graph: expected a tensor, got ", Py_TYPE(arg)->tp_name);
  at::Tensor tensor = THPVariable_Unpack(arg);
  if (takes == Takes::kHost) {
    TORCH_CHECK(
        tensor.is_cpu(),
        "argument ",
        i,
        " of a compiled graph: expected a CPU tensor, got one on ",
        tensor.device().str());
    return tensor;
  }
  TORCH_CHECK(
      tensor.device() == c10::Device(c10::kPrivateUse1, device),
      "argument ",
      i,
      " of a compiled graph: expected a tensor on ",
      c10::Device(c10::kPrivateUse1, device).str(),
      ", got one on ",
      tensor.device().str());
  if (tensor.is_conj() || tensor.is_neg()) {
    TORCH_CHECK(!written, "argument ", i, " of a compiled graph: cannot write to a lazily conjugated view");
    at::AutoDispatchBelowADInplaceOrView below;
    tensor = tensor.is_conj() ? tensor.resolve_conj() : tensor.resolve_neg();
  }
  return tensor;
}

Keys draw_keys(size_t count, c10::DeviceIndex device) {
  Keys keys;
  for (size_t i = 0; i < count; ++i) {
    auto key = draw_key(std::nullopt, device);
    keys.append(key.begin(), key.end());
  }
  return keys;
}

ValuePtr upload_value(const at::Tensor& tensor, c10::DeviceIndex device) {
  auto host = tensor.detach().resolve_conj().resolve_neg().contiguous();
  const Layout* layout = nullptr;
  {
    StateLock lock;
    layout = layout_of(*host.unsafeGetTensorImpl());
  }
  require_memory(device, layout);
  auto array = bridge().upload(host, static_cast<int>(device));
  auto value = c10::make_intrusive<Value>(layout, device);
  uint64_t source = source_here();
  StateLock lock;
  value->materialize(array.release().ptr(), source);
  return value;
}

GraphRecorder::GraphRecorder(
    c10::DeviceIndex device,
    const std::vector<Takes>& takes,
    const std::vector<bool>& is_written,
    size_t draws,
    const py::dict& recording)
    : device_(device), takes_(takes), is_written_(is_written), draws_(draws),
      role_(static_cast<Role>(recording["role"].cast<int>())), options_(recording["options"].cast<uint64_t>()),
      describe_(recording["describe"]) {
  for (bool w : is_written_)
    written_ += w;
}

// Whether a call made now is recorded; runs what is pending first if that is another step's.
bool GraphRecorder::joins_trace() const {
  if (settings().mode.load(std::memory_order_relaxed) != EagerMode::kFused)
    return false;
  bool begins = false;
  {
    StateLock lock;
    const auto& trace = current_trace(device_);
    if (role_ == Role::kUpdate && trace.backwards == 0)
      return false;
    begins = (role_ == Role::kForward && trace.backwards != 0) ||
             (!trace.graphs.empty() && trace.graphs.front()->options != options_);
  }
  if (begins)
    flush(device_);
  return !begins || role_ != Role::kUpdate;
}

std::optional<py::list> GraphRecorder::call(const py::list& args) {
  if (!joins_trace())
    return std::nullopt;
  std::vector<at::Tensor> tensors;
  std::vector<bool> written;
  std::vector<std::pair<at::Tensor, at::Tensor>> on_host; // what the graph writes to there, and its stand-in here
  for (size_t i = 0; i < takes_.size(); ++i) {
    if (takes_[i] == Takes::kNothing)
      continue;
    auto tensor = tensor_argument(args, i, takes_[i], is_written_[i], device_);
    if (takes_[i] == Takes::kHost) {
      auto value = upload_value(tensor, device_);
      const Layout* layout = value->layout;
      auto stand_in = make_tensor(std::move(value), layout, device_);
      if (is_written_[i])
        on_host.emplace_back(tensor, stand_in);
      tensor = std::move(stand_in);
    }
    tensors.push_back(std::move(tensor));
    written.push_back(is_written_[i]);
  }
  Call call;
  call.device = device_;
  for (size_t i = 0; i < tensors.size(); ++i)
    call.tensors.push_back({tensors[i].unsafeGetTensorImpl(), written[i] ? &kWritten : &kRead, -1});
  const Recipe& recipe = recipe_for(call);
  if (!recipe.entry)
    return std::nullopt;
  for (const auto& constant : constants_)
    call.tensors.push_back({constant.unsafeGetTensorImpl(), &kRead, -1});
  const Keys keys = draw_keys(draws_, device_);
  Values made;
  Values dropped; // released after the state lock
  Appended appended;
  for (bool done = false; !done;) {
    {
      StateLock lock;
      for (auto& t : call.tensors)
        t.layout = layout_of(*t.impl);
      auto& trace = current_trace(device_);
      done = append_call(trace, call, *recipe.entry, TraceNode::Kind::kGraph, keys, made, dropped);
      if (done) {
        trace.add_graph(recipe.entry);
        appended = appended_to(trace);
      }
    }
    if (!done)
      remove_obstacle();
  }
  py::list outputs = make_outputs(
      recipe.outputs, args, [&](const Output& o) { return make_tensor(made[written_ + o.index], o.layout, device_); });
  // The trace may run now. What the caller has nothing more to do with (a boxed call) must not look alive to it.
  made.clear();
  dropped.clear();
  call.tensors.clear();
  tensors.clear();
  PyList_SetSlice(args.ptr(), 0, PyList_GET_SIZE(args.ptr()), nullptr);
  appended.cut |= role_ == Role::kUpdate; // the step ends here, as it does with Optimizer.step
  after_append(appended);
  for (auto& [host, stand_in] : on_host) {
    at::AutoDispatchBelowADInplaceOrView below;
    host.copy_(stand_in);
  }
  return outputs;
}

const GraphRecorder::Recipe& GraphRecorder::recipe_for(Call& call) {
  Hash128 key;
  {
    StateLock lock;
    for (auto& t : call.tensors) {
      t.layout = layout_of(*t.impl);
      key.add(t.layout);
    }
  }
  key.add(lowering_state());
  auto it = recipes_.find(key);
  if (it == recipes_.end()) {
    auto recipe = describe(call);
    it = recipes_.emplace(key, std::move(recipe)).first;
  }
  return *it->second;
}

std::unique_ptr<GraphRecorder::Recipe> GraphRecorder::describe(const Call& call) {
  py::list layouts;
  for (const auto& t : call.tensors)
    layouts.append(python_layout(t.layout));
  auto recipe = std::make_unique<Recipe>();
  py::object said = describe_(layouts);
  if (said.is_none())
    return recipe;
  py::tuple parts = said;
  auto entry = std::make_shared<GraphEntry>();
  entry->call = py::object(parts[0]).release().ptr();
  entry->id = parts[1].cast<uint64_t>();
  entry->role = role_;
  entry->options = options_;
  for (const auto& layout : py::list(parts[2]))
    entry->outs.push_back(layout_from(layout));
  recipe->entry = std::move(entry);
  recipe->outputs = read_outputs(parts[3]);
  if (constants_.empty())
    constants_ = parts[4].cast<std::vector<at::Tensor>>();
  return recipe;
}

} // namespace torch_pjrt
