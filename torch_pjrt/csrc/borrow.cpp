// Kernels of PyTorch that serve the device's sparse and nested tensors as they are.
#include "borrow.h"

#include <ATen/NestedTensorImpl.h>
#include <ATen/core/boxing/KernelFunction.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/clone.h>

#include <algorithm>
#include <memory>
#include <vector>

namespace torch_pjrt {
namespace {

// Whether the tensors in a nested one are contiguous, but not side by side: it lies over a batch with padding
// (eager/padded_nested.py). PyTorch's kernels want them packed.
bool has_gaps(const at::Tensor& t) {
  if (!t.defined() || !t.unsafeGetTensorImpl()->key_set().has(c10::DispatchKey::NestedTensor)) {
    return false;
  }
  auto* nested = static_cast<at::native::NestedTensorImpl*>(t.unsafeGetTensorImpl());
  const auto& sizes = nested->get_nested_sizes();
  if (at::native::nested_tensor_impl_is_contiguous(nested) || sizes.dim() != 2 || sizes.size(1) != 2) {
    return false;
  }
  const auto size = sizes.accessor<int64_t, 2>(), stride = nested->get_nested_strides().accessor<int64_t, 2>();
  for (int64_t i = 0; i < sizes.size(0); ++i) {
    if (stride[i][0] != size[i][1] || stride[i][1] != 1) {
      return false;
    }
  }
  return true;
}

at::Tensor packed(const at::Tensor& t) {
  return at::clone(t, at::MemoryFormat::Contiguous);
}

// A kernel that PyTorch registered for another key.
class Borrowed final : public c10::OperatorKernel {
 public:
  Borrowed(c10::SafeKernelFunction kernel, const c10::FunctionSchema& schema)
      : kernel_(std::move(kernel)), of_layout_(schema.name() == "aten::clone") {
    for (const auto& result : schema.returns()) {
      of_layout_ |= result.alias_info() != nullptr && !result.alias_info()->isWrite();
    }
    of_layout_ |= schema.name().rfind("aten::_nested_tensor_", 0) == 0;
  }

  void operator()(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
    std::vector<std::pair<at::Tensor, at::Tensor>> written;
    if (!of_layout_) {
      pack(op.schema(), stack, written);
    }
    kernel_.callBoxed(op, keys, stack);
    for (const auto& [tensor, copy] : written) {
      auto to = tensor.unbind(), from = copy.unbind();
      for (size_t i = 0; i < to.size(); ++i) {
        to[i].copy_(from[i]);
      }
      const auto count = op.schema().returns().size();
      for (size_t i = 0; i < count; ++i) {
        auto& result = torch::jit::peek(*stack, i, count);
        if (result.isTensor() && result.toTensor().is_same(copy)) {
          result = tensor;
        }
      }
    }
  }

 private:
  static void pack(
      const c10::FunctionSchema& schema,
      torch::jit::Stack* stack,
      std::vector<std::pair<at::Tensor, at::Tensor>>& written) {
    const auto count = schema.arguments().size();
    for (size_t i = 0; i < count; ++i) {
      auto& value = torch::jit::peek(*stack, i, count);
      if (value.isTensor() && has_gaps(value.toTensor())) {
        const auto tensor = value.toTensor();
        value = packed(tensor);
        const auto* alias = schema.arguments()[i].alias_info();
        if (alias != nullptr && alias->isWrite()) {
          written.emplace_back(tensor, value.toTensor());
        }
      } else if (value.isTensorList()) {
        auto list = value.toTensorVector();
        if (std::any_of(list.begin(), list.end(), has_gaps)) {
          for (auto& t : list) {
            t = has_gaps(t) ? packed(t) : t;
          }
          value = list;
        }
      }
    }
  }

  c10::SafeKernelFunction kernel_;
  bool of_layout_; // views, and what tells where the tensors lie
};

} // namespace

void borrow_kernel(
    const std::string& name, const std::string& overload, const std::string& from, const std::string& to) {
  static auto* handles = new std::vector<c10::RegistrationHandleRAII>;
  auto& dispatcher = c10::Dispatcher::singleton();
  auto op = dispatcher.findSchemaOrThrow(name.c_str(), overload.c_str());
  handles->push_back(dispatcher.registerImpl(
      op.operator_name(),
      c10::parseDispatchKey(to),
      c10::KernelFunction::makeFromBoxedFunctor(
          std::make_unique<Borrowed>(op.getComputedKernelForDispatchKey(c10::parseDispatchKey(from)), op.schema())),
      std::nullopt,
      nullptr,
      "torch_pjrt: borrowed of " + from));
}

} // namespace torch_pjrt
