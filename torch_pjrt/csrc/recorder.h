// The boxed kernel behind every ATen op of the device: it appends the call to the device's trace.
#pragma once

#include "op_info.h"
#include "trace.h"

#include <ATen/core/boxing/KernelFunction.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

#include <memory>
#include <string>
#include <vector>

namespace torch_pjrt {

class Recorder final : public c10::OperatorKernel {
 public:
  explicit Recorder(const c10::OperatorHandle& op);
  void operator()(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack);

 private:
  void record(const c10::OperatorHandle& op, torch::jit::Stack* stack);
  void record_by_places(const c10::OperatorHandle& op, torch::jit::Stack* stack);
  void run_composite(const c10::OperatorHandle& op, torch::jit::Stack* stack);
  void describe(const c10::OperatorHandle& op);
  std::unique_ptr<OpInfo> info_;
};

// The content of `value` as the one-dimensional value of a storage of `nbytes` (padded or cut).
ValuePtr record_resize(const ValuePtr& value, size_t nbytes);

// The tensor with its lazy conjugate and negative bits computed. The recorder reads storages, which know no bits, and
// PyTorch hands some ops (mm, copy_) tensors with their bits on.
at::Tensor resolve_bits(const at::Tensor& tensor);

// What an append left to do: find the source line if the trace is a new one, cut if the eager mode says so.
struct Appended {
  c10::DeviceIndex device = 0;
  uint64_t prefix = 0;
  bool known = false;
  bool cut = false;
};
// Needs the state lock.
Appended appended_to(const Trace& trace);
// Without it.
void after_append(const Appended& appended);

// Registers the recorder for every ATen op that needs a backend kernel.
void register_recorders();

} // namespace torch_pjrt
