// A compiled graph's call as a node of the trace, so that the forward pass, the backward pass and the optimizer's ops
// of a training step meet in one program.
#pragma once

#include "append.h"
#include "outputs.h"
#include "python.h"

#include <c10/util/flat_hash_map.h>

#include <memory>
#include <optional>
#include <vector>

namespace torch_pjrt {

// What the graph does with one of its arguments (torch_pjrt.compile.graph.Takes).
enum class Takes : uint8_t {
  kNothing, // unused, or only handed through
  kTensor, // a tensor of the device
  kHost, // a CPU tensor: uploaded for every call
  kInt, // a size: each value has a program of its own
};

// Tensor number `i` of a graph's arguments, as the graph takes it; raises if it is no such tensor.
at::Tensor tensor_argument(const py::list& args, size_t i, Takes takes, bool written, c10::DeviceIndex device);

// Random keys for one call.
Keys draw_keys(size_t count, c10::DeviceIndex device);

// The value of a CPU tensor's content, uploaded.
ValuePtr upload_value(const at::Tensor& tensor, c10::DeviceIndex device);

class GraphRecorder {
 public:
  // recording: "role", "options" (a number), and "describe", see torch_pjrt.compile.recorded.
  GraphRecorder(
      c10::DeviceIndex device,
      const std::vector<Takes>& takes,
      const std::vector<bool>& is_written,
      size_t draws,
      const py::dict& recording);

  // Records the call and returns its outputs; nothing if it has to run by itself. Empties `args`. Needs the GIL.
  std::optional<py::list> call(const py::list& args);

 private:
  // The graph for arguments of given layouts.
  struct Recipe {
    std::shared_ptr<const GraphEntry> entry; // null: such a call runs by itself
    std::vector<Output> outputs;
  };
  bool joins_trace() const;
  const Recipe& recipe_for(Call& call);
  std::unique_ptr<Recipe> describe(const Call& call);

  c10::DeviceIndex device_;
  std::vector<Takes> takes_;
  std::vector<bool> is_written_;
  size_t written_ = 0;
  size_t draws_;
  Role role_;
  uint64_t options_;
  py::object describe_;
  std::vector<at::Tensor> constants_; // what the graph's module holds
  ska::flat_hash_map<Hash128, std::unique_ptr<Recipe>, HashOfHash> recipes_;
};

} // namespace torch_pjrt
