#include "recorder.h"

#include "aliasing.h"
#include "generator.h"
#include "guard.h"
#include "modes.h"
#include "python.h"
#include "stack_python.h"
#include "state.h"
#include "storage.h"

#include <ATen/ATen.h>
#include <c10/util/flat_hash_map.h>
#include <torch/csrc/Exceptions.h>

#include <pybind11/stl.h>

namespace torch_pjrt {
namespace {

using torch::jit::Stack;

using Values = c10::SmallVector<ValuePtr, 4>;

struct TensorRef {
  c10::TensorImpl* impl;
  const ArgInfo* arg;
  int32_t place; // in its list, or -1
  const Layout* layout = nullptr;
};

// Everything one call brings, read off the stack before any lock is taken.
struct Call {
  Hash128 key;
  c10::SmallVector<TensorRef, 8> tensors; // of this device, in schema order, lists flattened
  c10::SmallVector<double, 4> floats;
  c10::SmallVector<int64_t, 2> ints;
  c10::DeviceIndex device = -1;
  std::optional<at::Generator> generator;
  bool needs_python = false; // a bool mask, or an index tensor on the CPU
};

[[noreturn]] void throw_other_device(const OpInfo& info, const at::Tensor& t, c10::DeviceIndex device) {
  TORCH_CHECK(
      false,
      "Expected all tensors to be on the same device, but found at least two devices, ",
      device_name(),
      ":",
      static_cast<int>(std::max<c10::DeviceIndex>(device, 0)),
      " and ",
      t.device().str(),
      "! (when recording ",
      info.name,
      ")");
}

void hash_static(Hash128& key, const c10::IValue& v) {
  if (v.isNone()) {
    key.add(uint64_t{1});
  } else if (v.isInt()) {
    key.add(uint64_t{2});
    key.add(static_cast<uint64_t>(v.toInt()));
  } else if (v.isBool()) {
    key.add(v.toBool() ? uint64_t{3} : uint64_t{4});
  } else if (v.isDouble()) {
    key.add(uint64_t{5});
    double d = v.toDouble();
    uint64_t bits = 0;
    std::memcpy(&bits, &d, sizeof bits);
    key.add(bits);
  } else if (v.isIntList()) {
    key.add(uint64_t{6});
    auto list = v.toIntList();
    key.add(static_cast<uint64_t>(list.size()));
    for (int64_t x : list)
      key.add(static_cast<uint64_t>(x));
  } else if (v.isString()) {
    key.add(uint64_t{7});
    key.add(std::string_view(v.toStringRef()));
  } else if (v.isComplexDouble()) {
    key.add(uint64_t{8});
    hash_static(key, c10::IValue(v.toComplexDouble().real()));
    hash_static(key, c10::IValue(v.toComplexDouble().imag()));
  } else if (v.isDoubleList()) {
    key.add(uint64_t{9});
    for (double x : v.toDoubleVector())
      hash_static(key, c10::IValue(x));
  } else if (v.isList()) {
    key.add(uint64_t{10});
    auto list = v.toListRef();
    key.add(static_cast<uint64_t>(list.size()));
    for (const auto& x : list)
      hash_static(key, x);
  } else if (v.isDevice()) {
    key.add(uint64_t{11});
    key.add(std::string_view(v.toDevice().str()));
  } else if (v.isGenerator()) {
    key.add(uint64_t{12});
  } else {
    TORCH_CHECK_NOT_IMPLEMENTED(false, "an argument of type ", v.tagKind(), " cannot be recorded");
  }
}

// A number in a call: floats that may change from step to step travel at run time.
void add_number(Call& call, const ArgInfo& arg, const c10::IValue& v) {
  if (v.isDouble() && arg.run_time) {
    call.key.add(uint64_t{20});
    call.floats.push_back(v.toDouble());
  } else {
    hash_static(call.key, v);
  }
}

void add_tensor(const OpInfo& info, Call& call, const ArgInfo& arg, const at::Tensor& t, int32_t place = -1) {
  if (!t.defined()) {
    call.key.add(uint64_t{1});
    return;
  }
  if (t.device().type() == c10::kPrivateUse1 && t.layout() == c10::kStrided) {
    if (call.device < 0)
      call.device = t.device().index();
    else if (call.device != t.device().index())
      throw_other_device(info, t, call.device);
    if (info.indexes && arg.kind == ArgInfo::Kind::kTensorList &&
        (t.scalar_type() == at::kBool || t.scalar_type() == at::kByte))
      call.needs_python = true;
    call.key.add(uint64_t{21});
    call.tensors.push_back({t.unsafeGetTensorImpl(), &arg, place});
    return;
  }
  bool wrapped = t.unsafeGetTensorImpl()->is_wrapped_number();
  if (info.indexes && arg.kind == ArgInfo::Kind::kTensorList && t.is_cpu()) {
    call.needs_python = true;
    return;
  }
  if (!t.is_cpu() || t.dim() != 0 || arg.written)
    throw_other_device(info, t, call.device);
  // A number, or a 0-d CPU tensor: the value travels with the call.
  auto dtype = t.scalar_type();
  if (c10::isFloatingType(dtype)) {
    call.key.add(wrapped ? uint64_t{22} : uint64_t{23});
    call.key.add(static_cast<uint64_t>(dtype));
    call.floats.push_back(t.item<double>());
  } else if (c10::isComplexType(dtype) || wrapped) {
    call.key.add(uint64_t{24});
    call.key.add(static_cast<uint64_t>(dtype) << 1 | static_cast<uint64_t>(wrapped));
    auto number = t.item();
    hash_static(call.key, c10::IValue(number));
  } else {
    call.key.add(uint64_t{25});
    call.key.add(static_cast<uint64_t>(dtype));
    call.ints.push_back(t.item<int64_t>());
  }
}

Call read_call(const OpInfo& info, const Stack& stack) {
  Call call;
  call.key.add(&info);
  auto args = torch::jit::last(stack, info.args.size());
  for (size_t i = 0; i < info.args.size(); ++i) {
    const auto& arg = info.args[i];
    const c10::IValue& v = args[i];
    if (v.isTensor()) {
      add_tensor(info, call, arg, v.toTensor());
      continue;
    }
    switch (arg.kind) {
      case ArgInfo::Kind::kTensorList:
        if (v.isNone()) {
          call.key.add(uint64_t{1});
          break;
        }
        if (v.isTensorList()) {
          auto list = v.toTensorList();
          call.key.add(static_cast<uint64_t>(list.size()));
          int32_t place = 0;
          for (const auto& t : list)
            add_tensor(info, call, arg, static_cast<const c10::IValue&>(t.get()).toTensor(), place++);
          break;
        }
        {
          auto list = v.toListRef();
          call.key.add(static_cast<uint64_t>(list.size()));
          int32_t place = 0;
          for (const auto& t : list) {
            if (t.isNone())
              call.key.add(uint64_t{1});
            else
              add_tensor(info, call, arg, t.toTensor(), place);
            ++place;
          }
        }
        break;
      case ArgInfo::Kind::kScalar:
      case ArgInfo::Kind::kFloat:
        add_number(call, arg, v);
        break;
      case ArgInfo::Kind::kScalarList: {
        if (v.isNone()) {
          call.key.add(uint64_t{1});
          break;
        }
        call.key.add(uint64_t{26});
        if (v.isDoubleList()) {
          auto list = v.toDoubleList();
          call.key.add(static_cast<uint64_t>(list.size()));
          for (double x : list)
            add_number(call, arg, c10::IValue(x));
        } else {
          auto list = v.toListRef();
          call.key.add(static_cast<uint64_t>(list.size()));
          for (const auto& x : list)
            add_number(call, arg, x);
        }
        break;
      }
      case ArgInfo::Kind::kGenerator:
        if (!v.isNone())
          call.generator = v.toGenerator();
        break;
      default:
        hash_static(call.key, v);
    }
  }
  return call;
}

// The lowering's view of the arguments: run-time values replaced by markers (kind, dtype, wrapped).
py::object template_of_number(const ArgInfo& arg, const c10::IValue& v) {
  if (v.isDouble() && arg.run_time)
    return py::make_tuple("$float", py::none());
  return to_python(v);
}

py::object template_of_tensor(const at::Tensor& t) {
  if (!t.defined())
    return py::none();
  if (t.device().type() == c10::kPrivateUse1)
    return py::make_tuple("$tensor");
  bool wrapped = t.unsafeGetTensorImpl()->is_wrapped_number();
  auto dtype = t.scalar_type();
  if (c10::isFloatingType(dtype))
    return py::make_tuple("$float", wrapped ? py::none() : to_python(c10::IValue(static_cast<int64_t>(dtype))));
  if (c10::isComplexType(dtype) || wrapped)
    return to_python(c10::IValue(t.item()));
  return py::make_tuple("$int", to_python(c10::IValue(static_cast<int64_t>(dtype))));
}

// A wrapped number goes back to being a number: the meta call wraps it again with its weak rank.
py::object argument_of_tensor(const at::Tensor& t) {
  if (t.defined() && t.is_cpu() && t.unsafeGetTensorImpl()->is_wrapped_number())
    return to_python(c10::IValue(t.item()));
  return to_python(c10::IValue(t));
}

std::pair<py::list, py::list> arguments_and_template(const OpInfo& info, const Stack& stack) {
  py::list arguments;
  py::list tmpl;
  auto args = torch::jit::last(stack, info.args.size());
  for (size_t i = 0; i < info.args.size(); ++i) {
    const auto& arg = info.args[i];
    const c10::IValue& v = args[i];
    if (v.isTensor()) {
      arguments.append(argument_of_tensor(v.toTensor()));
      tmpl.append(template_of_tensor(v.toTensor()));
    } else if (arg.kind == ArgInfo::Kind::kTensorList && !v.isNone()) {
      py::list a;
      py::list m;
      for (const auto& t : v.toListRef()) {
        a.append(t.isNone() ? py::none() : argument_of_tensor(t.toTensor()));
        m.append(t.isNone() ? py::none() : template_of_tensor(t.toTensor()));
      }
      arguments.append(a);
      tmpl.append(m);
    } else if (arg.kind == ArgInfo::Kind::kScalarList && !v.isNone()) {
      py::list m;
      for (const auto& x : v.toListRef())
        m.append(template_of_number(arg, x));
      arguments.append(to_python(v));
      tmpl.append(m);
    } else if (arg.kind == ArgInfo::Kind::kGenerator) {
      arguments.append(py::none());
      tmpl.append(py::none());
    } else {
      arguments.append(to_python(v));
      tmpl.append(template_of_number(arg, v));
    }
  }
  return {arguments, tmpl};
}

ska::flat_hash_map<Hash128, OpEntry*, HashOfHash>& entries() {
  static auto* e = new ska::flat_hash_map<Hash128, OpEntry*, HashOfHash>;
  return *e;
}

// (dtype number, sizes, strides) of one output, as Python gives it.
const Layout* layout_from(const py::handle& spec) {
  if (spec.is_none())
    return nullptr;
  py::tuple t = py::reinterpret_borrow<py::tuple>(spec);
  auto sizes = t[1].cast<std::vector<int64_t>>();
  auto strides = t[2].cast<std::vector<int64_t>>();
  auto dtype = static_cast<c10::ScalarType>(t[0].cast<int>());
  StateLock lock;
  return intern(dtype, sizes, strides);
}

// Asks Python what the call returns. Raises what CPU PyTorch would raise for these shapes and dtypes.
void infer(const OpInfo& info, const Stack& stack, const Call& call) {
  py::gil_scoped_acquire gil;
  auto [arguments, tmpl] = arguments_and_template(info, stack);
  py::tuple result = bridge().infer(info.name, arguments, tmpl);
  auto entry = std::make_unique<OpEntry>();
  entry->call = py::object(result[0]).release().ptr();
  size_t w = 0;
  py::list written = result[1];
  for (const auto& t : call.tensors) {
    if (!t.arg->written)
      continue;
    const Layout* l = layout_from(written[w++]);
    entry->outs.push_back(l);
    if (l->sizes != t.layout->sizes)
      entry->resizes = true;
  }
  for (const auto& r : py::list(result[2])) {
    if (py::isinstance<py::list>(r)) {
      auto many = py::reinterpret_borrow<py::list>(r);
      entry->fresh.push_back(static_cast<int64_t>(many.size()));
      for (const auto& s : many)
        entry->outs.push_back(layout_from(s));
    } else {
      entry->fresh.push_back(-1);
      entry->outs.push_back(layout_from(r));
    }
  }
  StateLock lock;
  entry->id = entries().size() + 1;
  entries().emplace(call.key, entry.release());
}

// --- plans -----------------------------------------------------------------------------------------------------

struct PlanKey {
  const Layout* base;
  const Layout* view;
  int64_t offset;
  bool operator==(const PlanKey& o) const {
    return base == o.base && view == o.view && offset == o.offset;
  }
};
struct PlanKeyHash {
  size_t operator()(const PlanKey& k) const {
    Hash128 h;
    h.add(k.base);
    h.add(k.view);
    h.add(static_cast<uint64_t>(k.offset));
    return h.a;
  }
};
// Bounded, since every offset of a sliding view has a plan of its own; structures are few and live for ever.
constexpr size_t kMaxPlans = 1 << 18;
ska::flat_hash_map<PlanKey, Plan, PlanKeyHash>& plans() {
  static auto* p = new ska::flat_hash_map<PlanKey, Plan, PlanKeyHash>;
  return *p;
}

// Equal structures (by Python's ==) become one ViewStructure. Called with the GIL.
const ViewStructure* intern_structure(const py::object& structure) {
  static auto* known = new py::dict;
  if (known->contains(structure))
    return reinterpret_cast<const ViewStructure*>((*known)[structure].cast<uintptr_t>());
  auto* s = new ViewStructure{py::object(structure).release().ptr(), static_cast<uint32_t>(known->size() + 1)};
  (*known)[py::handle(s->object)] = reinterpret_cast<uintptr_t>(s);
  return s;
}

py::object python_layout(const Layout* l, int64_t offset) {
  return py::make_tuple(
      static_cast<int>(l->dtype),
      py::tuple(py::cast(std::vector<int64_t>(l->sizes.begin(), l->sizes.end()))),
      py::tuple(py::cast(std::vector<int64_t>(l->strides.begin(), l->strides.end()))),
      offset);
}

// What kept a tensor from being referred to: a plan to work out, or a value whose flush failed.
struct Obstacle {
  const Layout* base = nullptr;
  const Layout* view = nullptr;
  int64_t offset = 0;
  ValuePtr failed;
};
thread_local Obstacle obstacle;

// The value under the tensor, as its storage has it; for an unwritten storage the layout it would have.
const Layout* base_layout(const c10::TensorImpl& t, const Layout* layout, const Value* value) {
  if (value != nullptr)
    return value->layout;
  if (covers_storage(t, layout))
    return layout;
  auto size = static_cast<int64_t>(c10::elementSize(layout->dtype));
  int64_t n = static_cast<int64_t>(t.unsafe_storage().nbytes()) / size;
  return intern(layout->dtype, {n}, {1});
}

void set_plan(Trace& trace, Operand* o, const Plan& plan) {
  if (plan.structure == nullptr)
    return;
  o->structure = plan.structure;
  o->start_count = static_cast<uint16_t>(plan.starts.size());
  // Where a view of a materialized value starts is data: sliding a window over it compiles nothing.
  o->run_time_starts = o->kind == Operand::Kind::kInput && o->start_count > 0;
  auto& pool = o->run_time_starts ? trace.ints : trace.starts;
  o->first_start = static_cast<uint32_t>(pool.size());
  pool.insert(pool.end(), plan.starts.begin(), plan.starts.end());
}

bool set_view(Trace& trace, Operand* o, const c10::TensorImpl& t, const Layout* layout) {
  o->view = layout;
  int64_t offset = t.storage_offset();
  if (o->base == layout && offset == 0)
    return true;
  const Plan* plan = nullptr;
  if (!find_plan(o->base, layout, offset, &plan)) {
    obstacle = {o->base, layout, offset, nullptr};
    return false;
  }
  set_plan(trace, o, *plan);
  return true;
}

} // namespace

bool find_plan(const Layout* base, const Layout* view, int64_t offset, const Plan** plan) {
  auto it = plans().find({base, view, offset});
  if (it == plans().end())
    return false;
  *plan = &it->second;
  return true;
}

void work_out_plan(const Layout* base, const Layout* view, int64_t offset) {
  py::gil_scoped_acquire gil;
  py::tuple found = bridge().plan(python_layout(base, 0), python_layout(view, offset));
  Plan plan;
  if (!found[0].is_none()) {
    plan.structure = intern_structure(found[0]);
    for (int64_t s : found[1].cast<std::vector<int64_t>>())
      plan.starts.push_back(s);
  }
  StateLock lock;
  if (plans().size() >= kMaxPlans)
    plans().clear();
  plans().emplace(PlanKey{base, view, offset}, std::move(plan));
}

bool refer_to_tensor(Trace& trace, const c10::TensorImpl& t, const Layout* layout, Operand* operand) {
  const auto& cell = cell_of(t);
  if (cell.value && cell.value->failure) {
    obstacle = {nullptr, nullptr, 0, cell.value};
    return false;
  }
  if (cell.value) {
    *operand = trace.refer(cell.value);
  } else {
    *operand = Operand{};
    operand->base = base_layout(t, layout, nullptr);
  }
  return set_view(trace, operand, t, layout);
}

void remove_obstacle() {
  if (ValuePtr failed = std::move(obstacle.failed))
    throw_failure(*failed);
  work_out_plan(obstacle.base, obstacle.view, obstacle.offset);
}

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
  auto device = appended.device;
  flush(device);
  if (settings().mode.load(std::memory_order_relaxed) == EagerMode::kStrict) {
    py::gil_scoped_acquire gil;
    bridge().wait(static_cast<int>(device));
  }
}

ValuePtr record_resize(const ValuePtr& value, size_t nbytes) {
  auto size = c10::elementSize(value->layout->dtype);
  TORCH_CHECK(
      nbytes % size == 0,
      "a storage of ",
      value->layout->dtype,
      " cannot be resized to ",
      nbytes,
      " bytes: not a multiple of the element size ",
      size);
  if (value->failure)
    throw_failure(*value);
  ValuePtr made;
  Appended appended;
  while (!made) {
    const Layout* flat = nullptr; // the content in memory order, which is what a storage is
    {
      StateLock lock;
      auto& trace = current_trace(value->device);
      TraceNode n{};
      n.kind = TraceNode::Kind::kResize;
      n.first_operand = static_cast<uint32_t>(trace.operands.size());
      n.first_out = static_cast<uint32_t>(trace.outs.size());
      n.first_int = static_cast<uint32_t>(trace.ints.size());
      flat = intern(value->layout->dtype, {value->layout->numel}, {1});
      const Plan* plan = nullptr;
      if (find_plan(value->layout, flat, 0, &plan)) {
        auto operand = trace.refer(value);
        operand.view = flat;
        set_plan(trace, &operand, *plan);
        trace.operands.push_back(operand);
        made = trace.promise(intern(value->layout->dtype, {static_cast<int64_t>(nbytes / size)}, {1}));
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
  info_->treatment = static_cast<Treatment>(said["treatment"].cast<int>());
}

void Recorder::operator()(const c10::OperatorHandle& op, c10::DispatchKeySet /*keys*/, Stack* stack) {
  auto treatment = info_->treatment.load(std::memory_order_acquire);
  if (treatment == Treatment::kUnknown) {
    describe(op);
    treatment = info_->treatment;
  }
  switch (treatment) {
    case Treatment::kRecord:
      record(op, stack);
      return;
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

// Appends the node and rebinds what the call writes; false if a plan is missing (nothing is changed then but the
// pools, which `rewind` restores).
bool append_call(
    Trace& trace,
    const Call& call,
    const OpEntry& entry,
    const std::optional<std::array<uint32_t, 4>>& key,
    Values& made,
    Values& dropped) {
  TraceNode n{};
  n.kind = TraceNode::Kind::kOp;
  n.entry = &entry;
  n.first_operand = static_cast<uint32_t>(trace.operands.size());
  n.first_out = static_cast<uint32_t>(trace.outs.size());
  n.first_float = static_cast<uint32_t>(trace.floats.size());
  n.first_int = static_cast<uint32_t>(trace.ints.size());
  n.first_key = static_cast<uint32_t>(trace.keys.size());
  trace.ints.insert(trace.ints.end(), call.ints.begin(), call.ints.end());
  size_t starts = trace.starts.size();
  auto rewind = [&] {
    trace.operands.resize(n.first_operand);
    trace.ints.resize(n.first_int);
    trace.starts.resize(starts);
    return false;
  };
  for (const auto& t : call.tensors) {
    Operand o;
    if (t.arg->write_only) {
      o.kind = Operand::Kind::kWriteOnly;
      o.base = o.view = t.layout;
    } else if (!refer_to_tensor(trace, *t.impl, t.layout, &o)) {
      return rewind();
    }
    trace.operands.push_back(o);
  }
  // Partial writes need a plan of the base; find them all before anything is changed.
  c10::SmallVector<Operand, 2> bases;
  for (const auto& t : call.tensors) {
    if (!t.arg->written || covers_storage(*t.impl, t.layout))
      continue;
    Operand o;
    if (!refer_to_tensor(trace, *t.impl, t.layout, &o))
      return rewind();
    bases.push_back(o);
  }
  trace.floats.insert(trace.floats.end(), call.floats.begin(), call.floats.end());
  if (key)
    trace.keys.insert(trace.keys.end(), key->begin(), key->end());
  for (size_t i = 0; i < entry.outs.size(); ++i)
    trace.outs.push_back(entry.outs[i] == nullptr ? ValuePtr() : trace.promise(entry.outs[i]));
  made.assign(trace.outs.begin() + n.first_out, trace.outs.end());
  size_t w = 0;
  for (const auto& t : call.tensors) {
    if (!t.arg->written)
      continue;
    auto& value = made[w++];
    if (covers_storage(*t.impl, t.layout))
      value->layout = t.layout;
  }
  trace.append(n);
  w = 0;
  size_t b = 0;
  for (const auto& t : call.tensors) {
    if (!t.arg->written)
      continue;
    ValuePtr value = made[w++];
    auto& cell = cell_of(*t.impl);
    if (!covers_storage(*t.impl, t.layout)) {
      Operand base = bases[b++];
      // An earlier write of this same call may have rebound the cell.
      if (cell.value) {
        Operand now = trace.refer(cell.value);
        base.kind = now.kind;
        base.index = now.index;
        base.out = now.out;
      }
      TraceNode u{};
      u.kind = TraceNode::Kind::kUpdate;
      u.structure = base.structure;
      u.first_operand = static_cast<uint32_t>(trace.operands.size());
      u.first_out = static_cast<uint32_t>(trace.outs.size());
      u.first_float = static_cast<uint32_t>(trace.floats.size());
      u.first_int = static_cast<uint32_t>(trace.ints.size());
      u.first_key = static_cast<uint32_t>(trace.keys.size());
      Operand content = trace.refer(value);
      content.view = content.base;
      trace.operands.push_back(base);
      trace.operands.push_back(content);
      value = trace.promise(base.base);
      trace.outs.push_back(value);
      trace.append(u);
    }
    dropped.push_back(std::move(cell.value));
    cell.value = std::move(value);
  }
  return true;
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

void resolve_arguments(const OpInfo& info, Stack* stack) {
  auto args = torch::jit::last(*stack, info.args.size());
  size_t first = stack->size() - info.args.size();
  for (size_t i = 0; i < info.args.size(); ++i) {
    if (!args[i].isTensor() || !has_bits(args[i].toTensor()))
      continue;
    TORCH_CHECK(
        !info.args[i].written,
        info.name,
        ": writing to a lazily conjugated or negated view is not supported; call resolve_conj() / resolve_neg() first");
    (*stack)[first + i] = resolve_bits(args[i].toTensor());
  }
}

} // namespace

void Recorder::record(const c10::OperatorHandle& op, Stack* stack) {
  resolve_arguments(*info_, stack);
  Call call = read_call(*info_, *stack);
  if (call.needs_python || call.device < 0) {
    py::gil_scoped_acquire gil;
    py::list args = python_args(op.schema(), *stack);
    auto result = call.needs_python ? py::reinterpret_borrow<py::object>(info_->function)(*args)
                                    : bridge().fallback(info_->name, args);
    push_python_results(op.schema(), stack, result);
    return;
  }
  if (info_->writes && checked_aliasing(*info_, call) == Aliasing::kSequential && info_->composite) {
    run_composite(op, stack);
    return;
  }
  Values made;
  Values dropped; // released after the state lock
  const Hash128 without_layouts = call.key;
  const OpEntry* entry = nullptr;
  Appended appended;
  std::optional<std::array<uint32_t, 4>> key;
  if (info_->random)
    key = draw_key(call.generator, call.device);
  for (;;) {
    enum class Missing { kNothing, kEntry, kPlan, kSize } lacks = Missing::kNothing;
    {
      StateLock lock;
      call.key = without_layouts;
      for (auto& t : call.tensors) {
        t.layout = layout_of(*t.impl);
        call.key.add(t.layout);
      }
      auto it = entries().find(call.key);
      if (it == entries().end()) {
        lacks = Missing::kEntry;
      } else {
        entry = it->second;
        auto& trace = current_trace(call.device);
        if (entry->resizes) {
          lacks = Missing::kSize;
        } else if (!append_call(trace, call, *entry, key, made, dropped)) {
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
    else
      resize_outs(call, *entry);
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

namespace {

// View ops, also those that turn a tensor into a view in place (unsqueeze_), are metadata: never recorded.
bool is_view(const c10::OperatorHandle& op) {
  if (op.hasTag(at::Tag::inplace_view))
    return true;
  for (const auto& r : op.schema().returns())
    if (r.alias_info() != nullptr && !r.alias_info()->isWrite())
      return true;
  return false;
}

// Factories choose a device themselves, so PyTorch's own composites (empty, then an in-place op) serve them.
bool chooses_device(const c10::FunctionSchema& schema) {
  for (const auto& a : schema.arguments())
    if (a.name() == "device")
      return true;
  return false;
}

bool has_tensor_argument(const c10::FunctionSchema& schema) {
  for (const auto& a : schema.arguments()) {
    auto type = a.type();
    if (type->isSubtypeOf(*c10::TensorType::get()) || type->isSubtypeOf(*c10::OptionalType::ofTensor()) ||
        type->isSubtypeOf(*c10::ListType::ofTensors()) || type->isSubtypeOf(*c10::ListType::ofOptionalTensors()))
      return true;
  }
  return false;
}

} // namespace

void register_recorders() {
  auto& dispatcher = c10::Dispatcher::singleton();
  static auto* handles = new std::vector<c10::RegistrationHandleRAII>;
  for (const auto& name : dispatcher.getAllOpNames()) {
    if (name.name.rfind("aten::", 0) != 0 && name.name != "torch_pjrt::copy_")
      continue;
    auto op = dispatcher.findSchema(name);
    // clone is PyTorch's composite of empty_like and copy_, which shares the value where it can.
    if (name.name == "aten::clone" || !op || op->hasKernelForDispatchKey(c10::DispatchKey::PrivateUse1) ||
        op->hasKernelForDispatchKey(c10::DispatchKey::CompositeImplicitAutograd) || is_view(*op) ||
        chooses_device(op->schema()) || !has_tensor_argument(op->schema()))
      continue;
    handles->push_back(dispatcher.registerImpl(
        name,
        c10::DispatchKey::PrivateUse1,
        c10::KernelFunction::makeFromBoxedFunctor(std::make_unique<Recorder>(*op)),
        std::nullopt,
        nullptr,
        "torch_pjrt recorder"));
  }
}

} // namespace torch_pjrt
