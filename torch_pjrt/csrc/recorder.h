// The boxed kernel behind every ATen op of the device: it appends the call to the device's trace.
#pragma once

#include "trace.h"

#include <ATen/core/boxing/KernelFunction.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

#include <memory>
#include <string>
#include <vector>

namespace torch_pjrt {

// What the schema, and on first use the lowering, say of one argument.
struct ArgInfo {
  enum class Kind : uint8_t { kTensor, kTensorList, kScalar, kFloat, kScalarList, kGenerator, kStatic };
  Kind kind = Kind::kStatic;
  bool written = false;
  bool out = false; // a keyword-only `out=` tensor
  bool write_only = false; // its old content does not matter
  bool run_time = false; // floats travel at run time
};

// How an op is carried out; Python decides on first use.
enum class Treatment : uint8_t { kUnknown, kRecord, kComposite, kPython, kFallback };

struct OpInfo {
  std::string name; // "aten::add.Tensor"
  std::vector<ArgInfo> args;
  std::vector<int> returns_arg; // for each return: the argument it aliases, or -1 for a fresh result
  std::vector<bool> returns_list;
  std::atomic<Treatment> treatment{Treatment::kUnknown};
  PyObject* function = nullptr; // for kPython
  bool random = false; // draws numbers: gets a key
  bool writes = false; // some argument is written
  uint8_t refusals = 0; // of overlapping memory: Refusal bits
  bool composite = false; // PyTorch has a composite kernel of it
  bool indexes = false; // index-like: a bool mask or a CPU index tensor goes to `function`
};

class Recorder final : public c10::OperatorKernel {
 public:
  explicit Recorder(const c10::OperatorHandle& op);
  void operator()(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack);

 private:
  void record(const c10::OperatorHandle& op, torch::jit::Stack* stack);
  void run_composite(const c10::OperatorHandle& op, torch::jit::Stack* stack);
  void describe(const c10::OperatorHandle& op);
  std::unique_ptr<OpInfo> info_;
};

// The content of `value` as the one-dimensional value of a storage of `nbytes` (padded or cut).
ValuePtr record_resize(const ValuePtr& value, size_t nbytes);

// The plan to reach a view from a value. Both layouts may be equal pointers. Needs the state lock; false if it must
// first be worked out by `work_out_plan` (without the state lock).
struct Plan {
  const ViewStructure* structure = nullptr; // null: identity
  c10::SmallVector<int64_t, 4> starts;
};
bool find_plan(const Layout* base, const Layout* view, int64_t offset, const Plan** plan);
void work_out_plan(const Layout* base, const Layout* view, int64_t offset);

// The trace's reference to a tensor's content, through a view if the tensor is not the whole value.
// Needs the state lock; false if `remove_obstacle` must be called first, without it.
bool refer_to_tensor(Trace& trace, const c10::TensorImpl& tensor, const Layout* layout, Operand* operand);

// The tensor with its lazy conjugate and negative bits computed. The recorder reads storages, which know no bits, and
// PyTorch hands some ops (mm, copy_) tensors with their bits on.
at::Tensor resolve_bits(const at::Tensor& tensor);

// Works out the plan that was missing, or raises the error of the flush that failed to make the tensor's value.
void remove_obstacle();

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
