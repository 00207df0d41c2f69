"""Which ops have a kernel for sparse tensors: ours, and those of PyTorch's that are borrowed.

Of PyTorch's kernels for sparse CPU tensors those are borrowed that read no memory themselves. All are named here, so
that `import torch` registers them without importing ours.
"""

from __future__ import annotations

from .table import COMPRESSED, COO

# Of the values alone, with what has no entry staying zero: each has an in-place and an `out=` overload.
_UNARY = [
    "abs", "asin", "asinh", "atan", "atanh", "ceil", "deg2rad", "erf", "erfinv", "expm1", "floor", "frac", "log1p",
    "neg", "rad2deg", "round", "sgn", "sign", "sin", "sinh", "sqrt", "tan", "tanh", "trunc",
]  # fmt: skip
_BOTH = [
    *(name + kind for name in _UNARY for kind in ("", "_", ".out")),
    "signbit", "signbit.out", "isinf", "isnan", "isneginf", "isneginf.out", "isposinf", "isposinf.out", "relu",
    "relu_", "conj_physical.out", "threshold_backward", "threshold_backward.grad_input", "sum", "sum.dim_IntList",
    "mm", "mm.out", "mul.Tensor", "mul_.Tensor", "add.Tensor", "add_.Tensor", "empty.memory_format", "empty_like",
    "copy_", "clone", "zero_", "resize_as_sparse_", "sparse_mask", "sparse_dim", "dense_dim", "_nnz", "values",
    "is_pinned", "_pin_memory", "_to_dense", "_to_sparse", "_to_sparse.sparse_dim", "_to_sparse_csr",
    "_to_sparse_csc", "_to_sparse_bsr", "_to_sparse_bsc",
]  # fmt: skip
_COO = [
    "_sparse_coo_tensor_with_dims", "_sparse_coo_tensor_with_dims_and_tensors", "sparse_resize_",
    "sparse_resize_and_clear_", "zeros.out", "copy_sparse_to_sparse_", "_dimI", "_dimV", "is_coalesced",
    "_coalesced_", "_indices", "_values", "indices", "permute", "unsqueeze", "narrow_copy", "cat",
    "_sparse_broadcast_to", "view_as_real", "view_as_complex", "mv", "native_norm", "native_norm.ScalarOpt_dim_dtype",
    "norm.ScalarOpt_dim", "any", "nan_to_num", "norm.ScalarOpt_dim_dtype", "nan_to_num_", "nan_to_num.out",
    "pow.Tensor_Scalar", "pow.Tensor_Scalar_out", "sub.Tensor", "sub_.Tensor", "sub.out", "div.Tensor", "div_.Tensor",
    "div.out", "div.Tensor_mode", "div_.Tensor_mode", "div.out_mode", "floor_divide", "floor_divide_.Tensor",
    "floor_divide.out",
]  # fmt: skip
_COMPRESSED = [
    "angle", "angle.out", "_conj_physical", "conj_physical_", "mul.out", "mul.Scalar", "mul_.Scalar", "fill_.Scalar",
    "normal_", "resize_", "crow_indices", "col_indices", "ccol_indices", "row_indices", "select.int",
    "select_copy.int",
]  # fmt: skip
BORROWED = {COO: _BOTH + _COO, COMPRESSED: _BOTH + _COMPRESSED}
OURS = {
    COO: [
        "_coalesce", "_sparse_log_softmax", "_sparse_log_softmax_backward_data", "_sparse_mask_projection",
        "_sparse_softmax", "_sparse_softmax_backward_data", "_sparse_sparse_matmul", "_sparse_sum_backward", "add.out",
        "addmm", "addmm.out", "addmm_", "bmm", "bmm.out", "hspmm", "hspmm.out", "index_select", "mul.out",
        "sparse_mask",
    ],
    COMPRESSED: [
        "_sparse_csr_prod.dim_dtype", "_sparse_csr_sum.dim_dtype", "_sparse_mm_reduce_impl",
        "_sparse_mm_reduce_impl_backward", "_to_sparse", "_to_sparse_bsc", "_to_sparse_bsr", "_to_sparse_csc",
        "_to_sparse_csr", "add.out", "addmm", "addmm.out", "addmv.out", "sparse_sampled_addmm",
        "sparse_sampled_addmm.out",
    ],
}  # fmt: skip
