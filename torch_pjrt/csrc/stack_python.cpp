#include "stack_python.h"

#include <torch/csrc/jit/python/pybind_utils.h>

namespace torch_pjrt {

py::object to_python(const c10::IValue& value) {
  return torch::jit::toPyObject(value);
}

py::list python_args(const c10::FunctionSchema& schema, const torch::jit::Stack& stack) {
  py::list args;
  size_t n = schema.arguments().size();
  for (const auto& value : torch::jit::last(stack, n))
    args.append(to_python(value));
  return args;
}

void push_python_results(const c10::FunctionSchema& schema, torch::jit::Stack* stack, const py::object& result) {
  torch::jit::drop(*stack, schema.arguments().size());
  const auto& returns = schema.returns();
  if (returns.empty())
    return;
  if (returns.size() == 1) {
    stack->push_back(torch::jit::toIValue(result, returns[0].type()));
    return;
  }
  py::sequence many = result;
  TORCH_CHECK(
      many.size() == returns.size(), schema.name(), ": expected ", returns.size(), " results, got ", many.size());
  for (size_t i = 0; i < returns.size(); ++i)
    stack->push_back(torch::jit::toIValue(py::object(many[i]), returns[i].type()));
}

} // namespace torch_pjrt
