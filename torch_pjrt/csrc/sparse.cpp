// Sparse tensors: a sparse tensor of the device is PyTorch's own SparseTensorImpl over dense device tensors, so that
// most of PyTorch's kernels for sparse CPU tensors, which only call other ops on the indices and values, serve it as
// they are.
#include "sparse.h"

#include <ATen/NativeFunctions.h>
#include <ATen/core/boxing/KernelFunction.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/library.h>

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

// Where a dense tensor of the device becomes a sparse one: PyTorch's kernels find what is not zero with ops of ours.
TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("_to_sparse.sparse_dim", static_cast<at::Tensor (*)(const at::Tensor&, int64_t)>(at::native::dense_to_sparse));
  m.impl(
      "_to_sparse",
      static_cast<at::Tensor (*)(
          const at::Tensor&, std::optional<c10::Layout>, at::OptionalIntArrayRef, std::optional<int64_t>)>(
          at::native::dense_to_sparse));
  m.impl("_to_sparse_csr", at::native::dense_to_sparse_csr);
  m.impl("_to_sparse_csc", at::native::dense_to_sparse_csc);
  m.impl("_to_sparse_bsr", at::native::dense_to_sparse_bsr);
  m.impl("_to_sparse_bsc", at::native::dense_to_sparse_bsc);
}

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
