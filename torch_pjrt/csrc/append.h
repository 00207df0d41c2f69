// One call as a node of the trace: its operands, what it makes, and the cells that it rebinds.
#pragma once

#include "call.h"
#include "trace.h"

namespace torch_pjrt {

using Values = c10::SmallVector<ValuePtr, 4>;
using Keys = c10::SmallVector<uint32_t, 4>; // of random ops, four numbers a key

// Appends the node and rebinds what the call writes; false if a plan is missing (nothing is changed then), which
// `remove_obstacle` works out. Needs the state lock.
//
// made: the values of the entry's outputs, those of the written tensors first. dropped: what the rebound cells held; to
// be released without the lock.
bool append_call(
    Trace& trace,
    const Call& call,
    const OpEntry& entry,
    TraceNode::Kind kind,
    const Keys& keys,
    Values& made,
    Values& dropped);

} // namespace torch_pjrt
