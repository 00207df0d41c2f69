// How the outputs of a compiled graph are made: fresh tensors, its arguments, and views of both.
#pragma once

#include "layout.h"
#include "python.h"

#include <ATen/core/Tensor.h>

#include <functional>
#include <vector>

namespace torch_pjrt {

// How one output of the graph is made (torch_pjrt.compile.graph.Makes).
struct Output {
  enum class Kind : uint8_t {
    kResult, // a fresh tensor over a result of the program
    kHost, // the same on the CPU
    kArgument, // the argument itself
    kOutput, // another output itself
    kViewOfArgument,
    kViewOfOutput,
    kConstant, // None, or a size
  };
  Kind kind = Kind::kConstant;
  uint32_t index = 0;
  const Layout* layout = nullptr;
  int64_t offset = 0;
  py::object constant;
};

// The outputs as Python describes them (torch_pjrt.compile.graph.OutputTuple).
std::vector<Output> read_outputs(const py::list& described);

// Makes all of them. result: the tensor of a kResult or kHost.
py::list make_outputs(
    const std::vector<Output>& outputs, const py::list& args, const std::function<at::Tensor(const Output&)>& result);

} // namespace torch_pjrt
