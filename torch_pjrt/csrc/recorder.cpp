#include "recorder.h"

#include "aliasing.h"
#include "append.h"
#include "call.h"
#include "generator.h"
#include "guard.h"
#include "modes.h"
#include "plan.h"
#include "python.h"
#include "stack_python.h"
#include "state.h"
#include "storage.h"

#include <ATen/ATen.h>
#include <torch/csrc/Exceptions.h>

#include <pybind11/stl.h>

namespace torch_pjrt {

using torch::jit::Stack;

Appended appended_to(const Trace& trace) {
  size_t n = trace.nodes.size();
  uint64_t prefix = trace.nodes.back().prefix;
  bool cut = settings().mode.load(std::memory_order_relaxed) != EagerMode::kFused ||
             static_cast<int64_t>(n) >= settings().max_trace_nodes.load(std::memory_order_relaxed) ||
             (n >= kMinLoopNodes && trace.is_whole_loops());
  return {trace.device, prefix, knows_source(prefix), cut};
}

void after_append(const Appended& appended) {
  counters().ops_recorded.fetch_add(1, std::memory_order_relaxed);
  if (!appended.known)
    remember_source(appended.prefix);
  if (!appended.cut)
    return;
  if (settings().mode.load(std::memory_order_relaxed) == EagerMode::kStrict)
    synchronize_device(appended.device);
  else
    flush(appended.device);
}

ValuePtr record_resize(const ValuePtr& value, size_t nbytes) {
  // Bytes, where the storage ends in the middle of an element: a view of another dtype grew it.
  auto dtype = value->layout->dtype;
  if (nbytes % c10::elementSize(dtype) != 0)
    dtype = c10::ScalarType::Byte;
  auto size = c10::elementSize(dtype);
  if (value->failure)
    throw_failure(value->failure);
  ValuePtr made;
  Appended appended;
  while (!made) {
    const Layout* flat = nullptr; // the content in memory order, which is what a storage is
    {
      StateLock lock;
      auto& trace = current_trace(value->device);
      TraceNode n = trace.next();
      n.kind = TraceNode::Kind::kResize;
      flat = intern(dtype, {static_cast<int64_t>(value->layout->nbytes() / size)}, {1});
      const Plan* plan = nullptr;
      if (find_plan(value->layout, flat, 0, &plan)) {
        auto operand = trace.refer(value);
        operand.view = flat;
        set_plan(trace, &operand, *plan);
        trace.operands.push_back(operand);
        made = trace.promise(intern(dtype, {static_cast<int64_t>(nbytes / size)}, {1}));
        trace.outs.push_back(made);
        trace.append(n);
        appended = appended_to(trace);
      }
    }
    if (!made)
      work_out_plan(value->layout, flat, 0);
  }
  after_append(appended);
  return made;
}

// --- the kernel ------------------------------------------------------------------------------------------------

Recorder::Recorder(const c10::OperatorHandle& op) : info_(std::make_unique<OpInfo>()) {
  const auto& schema = op.schema();
  info_->name = schema.name() + (schema.overload_name().empty() ? "" : "." + schema.overload_name());
  for (const auto& a : schema.arguments()) {
    ArgInfo arg;
    auto type = a.type();
    if (auto optional = type->cast<c10::OptionalType>())
      type = optional->getElementType();
    bool list = false;
    if (auto element = type->cast<c10::ListType>()) {
      list = true;
      type = element->getElementType();
      if (auto optional = type->cast<c10::OptionalType>())
        type = optional->getElementType();
    }
    using Kind = ArgInfo::Kind;
    switch (type->kind()) {
      case c10::TypeKind::TensorType:
        arg.kind = list ? Kind::kTensorList : Kind::kTensor;
        break;
      case c10::TypeKind::NumberType:
        arg.kind = list ? Kind::kScalarList : Kind::kScalar;
        arg.run_time = true; // until the lowering names it static
        break;
      case c10::TypeKind::FloatType:
        arg.kind = list ? Kind::kStatic : Kind::kFloat;
        break;
      case c10::TypeKind::GeneratorType:
        arg.kind = Kind::kGenerator;
        break;
      default:
        arg.kind = Kind::kStatic;
    }
    arg.written = a.alias_info() != nullptr && a.alias_info()->isWrite();
    arg.out = arg.written && a.is_out();
    info_->writes |= arg.written;
    info_->args.push_back(arg);
  }
  for (const auto& r : schema.returns()) {
    int source = -1;
    if (r.alias_info() != nullptr && r.alias_info()->isWrite())
      for (size_t i = 0; i < schema.arguments().size(); ++i) {
        const auto* alias = schema.arguments()[i].alias_info();
        if (alias != nullptr && alias->beforeSets() == r.alias_info()->beforeSets())
          source = static_cast<int>(i);
      }
    info_->returns_arg.push_back(source);
    info_->returns_list.push_back(r.type()->kind() == c10::TypeKind::ListType);
  }
}

void Recorder::describe(const c10::OperatorHandle& op) {
  py::gil_scoped_acquire gil;
  bool composite = op.hasKernelForDispatchKey(c10::DispatchKey::CompositeExplicitAutograd) ||
                   op.hasKernelForDispatchKey(c10::DispatchKey::CompositeExplicitAutogradNonFunctional);
  py::dict said = bridge().describe(info_->name, composite);
  for (const char* flag : {"static", "run_time", "write_only"}) {
    for (const auto& index : py::list(said[flag])) {
      auto& arg = info_->args.at(index.cast<size_t>());
      if (flag[0] == 's')
        arg.run_time = false;
      else if (flag[0] == 'r')
        arg.run_time = true;
      else
        arg.write_only = true;
    }
  }
  info_->composite = composite;
  info_->refusals = said["refusals"].cast<uint8_t>();
  info_->random = said["random"].cast<bool>();
  info_->indexes = said["indexes"].cast<bool>();
  info_->function = py::object(said["function"]).release().ptr();
  if (!said["check_numbers"].is_none())
    info_->check_numbers = py::object(said["check_numbers"]).release().ptr();
  info_->treatment = static_cast<Treatment>(said["treatment"].cast<int>());
}

void Recorder::run_composite(const c10::OperatorHandle& op, Stack* stack) {
  op.callBoxedForDispatchKey(
      op.hasKernelForDispatchKey(c10::DispatchKey::CompositeExplicitAutograd)
          ? c10::DispatchKey::CompositeExplicitAutograd
          : c10::DispatchKey::CompositeExplicitAutogradNonFunctional,
      *stack);
}

namespace {

// How the memory of the tensors that a call writes relates to its other tensors; raises if the op refuses that.
Aliasing checked_aliasing(const OpInfo& info, const Call& call) {
  c10::SmallVector<Named, 8> named;
  for (const auto& t : call.tensors)
    named.push_back({t.impl, t.place, t.arg->written});
  Aliasing found;
  {
    StateLock lock;
    found = aliasing_of(named);
  }
  if (info.refusals != 0)
    check_overlap(named, info.refusals, found);
  return found;
}

size_t places_of_lists(const OpInfo& info, const Stack& stack) {
  size_t places = 0;
  for (const auto& a : torch::jit::last(stack, info.args.size()))
    if (a.isTensorList())
      places = std::max(places, a.toTensorList().size());
  return places;
}

// Gives `out=` tensors the size the call will write, as every ATen kernel does.
void resize_outs(const Call& call, const OpEntry& entry) {
  size_t w = 0;
  for (const auto& t : call.tensors) {
    if (!t.arg->written)
      continue;
    const Layout* l = entry.outs[w++];
    if (l->sizes == t.layout->sizes)
      continue;
    auto tensor = at::Tensor(c10::intrusive_ptr<c10::TensorImpl>::reclaim_copy(t.impl));
    tensor.resize_(l->sizes);
    if (l->dense)
      t.impl->set_sizes_and_strides(l->sizes, l->strides);
  }
}

} // namespace

at::Tensor resolve_bits(const at::Tensor& tensor) {
  at::Tensor t = tensor;
  if (t.is_conj())
    t = at::conj_physical(t.conj()); // conj() of a conjugated view is the plain tensor
  if (t.is_neg())
    t = at::neg(t._neg_view());
  return t;
}

namespace {

bool has_bits(const at::Tensor& t) {
  return t.defined() && (t.is_conj() || t.is_neg());
}

// A lazily conjugated or negated tensor that the call writes, and the plain copy that the call is given in its place.
struct Lazy {
  size_t arg;
  at::Tensor tensor;
  at::Tensor plain;
};

// Makes the arguments plain tensors. Few ops see lazy ones: those that PyTorch lets pass with the bits (neg_, addmm_).
c10::SmallVector<Lazy, 1> resolve_arguments(const OpInfo& info, Stack* stack) {
  c10::SmallVector<Lazy, 1> written;
  auto args = torch::jit::last(*stack, info.args.size());
  size_t first = stack->size() - info.args.size();
  for (size_t i = 0; i < info.args.size(); ++i) {
    if (!args[i].isTensor() || !has_bits(args[i].toTensor()))
      continue;
    auto plain = resolve_bits(args[i].toTensor());
    if (info.args[i].written)
      written.push_back({i, args[i].toTensor(), plain});
    (*stack)[first + i] = std::move(plain);
  }
  return written;
}

// Copies what the call wrote to where it belongs, and returns the tensors that the caller gave.
void write_back(const OpInfo& info, const c10::SmallVector<Lazy, 1>& written, Stack* stack) {
  size_t first = stack->size() - info.returns_arg.size();
  for (const auto& w : written) {
    if (w.tensor.sizes() != w.plain.sizes())
      w.tensor.resize_(w.plain.sizes());
    w.tensor.copy_(w.plain);
    for (size_t i = 0; i < info.returns_arg.size(); ++i)
      if (info.returns_arg[i] == static_cast<int>(w.arg))
        (*stack)[first + i] = w.tensor;
  }
}

} // namespace

void Recorder::operator()(const c10::OperatorHandle& op, c10::DispatchKeySet /*keys*/, Stack* stack) {
  auto treatment = info_->treatment.load(std::memory_order_acquire);
  if (treatment == Treatment::kUnknown) {
    describe(op);
    treatment = info_->treatment;
  }
  switch (treatment) {
    case Treatment::kRecord: {
      auto written = resolve_arguments(*info_, stack);
      record(op, stack);
      if (!written.empty())
        write_back(*info_, written, stack);
      return;
    }
    case Treatment::kComposite:
      run_composite(op, stack);
      return;
    default: {
      py::gil_scoped_acquire gil;
      py::list args = python_args(op.schema(), *stack);
      py::object result = treatment == Treatment::kPython ? py::reinterpret_borrow<py::object>(info_->function)(*args)
                                                          : bridge().fallback(info_->name, args);
      push_python_results(op.schema(), stack, result);
    }
  }
}

// One place of the lists after the other, as CPU kernels go (a fused optimizer given one tensor twice).
void Recorder::record_by_places(const c10::OperatorHandle& op, Stack* stack) {
  size_t places = places_of_lists(*info_, *stack);
  auto args = torch::jit::pop(*stack, info_->args.size());
  for (size_t place = 0; place < places; ++place) {
    Stack row;
    for (const auto& a : args) {
      if (!a.isTensorList()) {
        row.push_back(a);
        continue;
      }
      c10::List<at::Tensor> one;
      if (place < a.toTensorList().size())
        one.push_back(a.toTensorList().get(place));
      row.emplace_back(std::move(one));
    }
    record(op, &row);
  }
}

void Recorder::record(const c10::OperatorHandle& op, Stack* stack) {
  Call call = read_call(*info_, *stack);
  if (call.needs_python || call.device < 0) {
    py::gil_scoped_acquire gil;
    py::list args = python_args(op.schema(), *stack);
    auto result = call.needs_python ? py::reinterpret_borrow<py::object>(info_->function)(*args)
                                    : bridge().fallback(info_->name, args);
    push_python_results(op.schema(), stack, result);
    return;
  }
  if (info_->writes && checked_aliasing(*info_, call) == Aliasing::kSequential) {
    if (info_->composite) {
      run_composite(op, stack);
      return;
    }
    if (info_->returns_arg.empty() && places_of_lists(*info_, *stack) > 1) {
      record_by_places(op, stack);
      return;
    }
  }
  if (info_->check_numbers != nullptr) {
    py::gil_scoped_acquire gil;
    py::reinterpret_borrow<py::object>(info_->check_numbers)(*python_args(op.schema(), *stack));
  }
  Values made;
  Values dropped; // released after the state lock
  const Hash128 without_layouts = call.key;
  const OpEntry* entry = nullptr;
  Appended appended;
  Keys keys;
  if (info_->random) {
    auto key = draw_key(call.generator, call.device);
    keys.append(key.begin(), key.end());
  }
  for (;;) {
    enum class Missing { kNothing, kEntry, kPlan, kSize } lacks = Missing::kNothing;
    {
      StateLock lock;
      call.key = without_layouts;
      for (auto& t : call.tensors) {
        t.layout = layout_of(*t.impl);
        call.key.add(t.layout);
      }
      entry = find_entry(call.key);
      if (entry == nullptr) {
        lacks = Missing::kEntry;
      } else {
        auto& trace = current_trace(call.device);
        if (entry->resizes) {
          lacks = Missing::kSize;
        } else if (!append_call(trace, call, *entry, TraceNode::Kind::kOp, keys, made, dropped)) {
          lacks = Missing::kPlan;
        } else {
          appended = appended_to(trace);
        }
      }
    }
    if (lacks == Missing::kNothing)
      break;
    if (lacks == Missing::kEntry)
      infer(*info_, *stack, call);
    else if (lacks == Missing::kPlan)
      remove_obstacle();
    else {
      resize_outs(call, *entry);
      if (info_->refusals & kRefusesGrowth)
        checked_aliasing(*info_, call); // it may have grown into an input
    }
  }
  // Results: the written arguments themselves, then tensors over the fresh values.
  c10::SmallVector<c10::IValue, 4> results;
  size_t fresh = 0;
  size_t next = entry->outs.size();
  for (size_t i = entry->fresh.size(); i-- > 0;)
    next -= entry->fresh[i] < 0 ? 1 : static_cast<size_t>(entry->fresh[i]);
  auto tensor_at = [&](size_t i) {
    return entry->outs[i] == nullptr ? at::Tensor() : make_tensor(std::move(made[i]), entry->outs[i], call.device);
  };
  for (size_t i = 0; i < info_->returns_arg.size(); ++i) {
    if (info_->returns_arg[i] >= 0) {
      results.emplace_back(torch::jit::peek(*stack, static_cast<size_t>(info_->returns_arg[i]), info_->args.size()));
    } else if (entry->fresh[fresh] < 0) {
      results.emplace_back(tensor_at(next++));
      ++fresh;
    } else {
      c10::List<at::Tensor> list;
      for (int64_t k = 0; k < entry->fresh[fresh]; ++k)
        list.push_back(tensor_at(next++));
      results.emplace_back(std::move(list));
      ++fresh;
    }
  }
  made.clear();
  dropped.clear();
  // The results exist before the mode may run the trace, or they would look dead to it.
  after_append(appended);
  torch::jit::drop(*stack, info_->args.size());
  for (auto& r : results)
    stack->push_back(std::move(r));
}

} // namespace torch_pjrt
