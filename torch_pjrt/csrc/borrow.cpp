// Kernels of PyTorch that serve the device's sparse and nested tensors as they are.
#include "borrow.h"

#include <ATen/core/boxing/KernelFunction.h>
#include <ATen/core/dispatch/Dispatcher.h>

#include <memory>
#include <vector>

namespace torch_pjrt {
namespace {

// A kernel that PyTorch registered for another key.
class Borrowed final : public c10::OperatorKernel {
 public:
  explicit Borrowed(c10::SafeKernelFunction kernel) : kernel_(std::move(kernel)) {}
  void operator()(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
    kernel_.callBoxed(op, keys, stack);
  }

 private:
  c10::SafeKernelFunction kernel_;
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
          std::make_unique<Borrowed>(op.getComputedKernelForDispatchKey(c10::parseDispatchKey(from)))),
      std::nullopt,
      nullptr,
      "torch_pjrt: borrowed of " + from));
}

} // namespace torch_pjrt
