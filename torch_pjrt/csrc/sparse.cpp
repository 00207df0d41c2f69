// Sparse tensors: a sparse tensor of the device is PyTorch's own SparseTensorImpl over dense device tensors, so that
// most of PyTorch's kernels for sparse CPU tensors, which only call other ops on the indices and values, serve it as
// they are.
#include <ATen/NativeFunctions.h>
#include <torch/library.h>

namespace torch_pjrt {
namespace {

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
} // namespace torch_pjrt
