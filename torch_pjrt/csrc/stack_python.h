// A boxed call's arguments and results between the C++ stack and Python.
#pragma once

#include "python.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

namespace torch_pjrt {

py::object to_python(const c10::IValue& value);

// The positional arguments of the call on top of the stack, one for each schema argument.
py::list python_args(const c10::FunctionSchema& schema, const torch::jit::Stack& stack);

// Replaces the call's arguments on the stack by what a Python implementation returned for it.
void push_python_results(const c10::FunctionSchema& schema, torch::jit::Stack* stack, const py::object& result);

} // namespace torch_pjrt
