#include "call.h"

#include "guard.h"
#include "layout_python.h"
#include "python.h"
#include "stack_python.h"
#include "state.h"

#include <ATen/ATen.h>
#include <c10/util/flat_hash_map.h>

#include <pybind11/stl.h>

namespace torch_pjrt {
namespace {

using torch::jit::Stack;

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

} // namespace

const OpEntry* find_entry(const Hash128& key) {
  auto it = entries().find(key);
  return it == entries().end() ? nullptr : it->second;
}

Call read_call(const OpInfo& info, const Stack& stack) {
  Call call;
  call.key.add(&info);
  call.key.add(static_cast<uint64_t>(c10::get_default_dtype_as_scalartype())); // decides what dividing integers gives
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

} // namespace torch_pjrt
