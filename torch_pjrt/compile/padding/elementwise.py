"""Elementwise primitives: what comes out of padding is padding."""

from __future__ import annotations

from .arrays import Padded, meet
from .rules import Call, rule

# Of zero they make zero.
_KEEP_ZERO = (
    "abs", "copy", "convert_element_type", "conj", "imag", "neg", "optimization_barrier", "real",
    "reduce_precision", "sign", "square", "stop_gradient", "add", "sub", "add_any", "select_n", "sqrt", "cbrt", "sin",
    "tan", "tanh", "asin", "atan", "asinh", "atanh", "sinh", "expm1", "log1p", "erf", "floor", "ceil", "round", "or",
    "xor", "max", "min",
)  # fmt: skip
_OTHERS = (
    "acos", "acosh", "and", "atan2", "bessel_i0e", "bessel_i1e", "bitcast_convert_type", "clamp", "clz", "complex",
    "cos", "cosh", "digamma", "div", "eq", "eq_to", "erf_inv", "erfc", "exp", "exp2", "ge", "gt", "igamma", "igammac",
    "integer_pow", "is_finite", "le", "le_to", "lgamma", "log", "logistic", "lt", "lt_to", "mul", "mulhi", "ne",
    "nextafter", "not", "polygamma", "population_count", "pow", "random_gamma_grad", "regularized_incomplete_beta",
    "rem", "rsqrt", "shift_left", "shift_right_arithmetic", "shift_right_logical", "zeta",
)  # fmt: skip


@rule(*_KEEP_ZERO, *_OTHERS, may_differ=["sharding"])
def elementwise(call: Call) -> list[Padded]:
    made = call.bind(*(x.array for x in call.operands))
    arrays = made if call.step.primitive.multiple_results else [made]
    if len(arrays) > 1:  # optimization_barrier: each result is its operand
        return [Padded(a, x.extents, x.zero) for a, x in zip(arrays, call.operands, strict=True)]
    extents = meet(call.step.shapes[0], [x for x in call.operands if x.array.ndim])
    # The condition of a select is what chooses, not what is chosen.
    values = call.operands[1:] if call.step.primitive.name == "select_n" else call.operands
    # What is broadcast along a padded dimension is not zero there.
    zero = call.step.primitive.name in _KEEP_ZERO and all(x.zero and x.extents == extents for x in values)
    return [Padded(arrays[0], extents, zero)]
