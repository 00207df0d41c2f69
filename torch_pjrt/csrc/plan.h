// Reaching a tensor's content through the view it is of its storage's value.
#pragma once

#include "trace.h"

namespace torch_pjrt {

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

// Makes the operand, which refers to the plan's base, the view.
void set_plan(Trace& trace, Operand* operand, const Plan& plan);

// Works out the plan that was missing, or raises the error of the flush that failed to make the tensor's value.
void remove_obstacle();

} // namespace torch_pjrt
