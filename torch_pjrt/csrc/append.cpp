#include "append.h"

#include "plan.h"
#include "storage.h"

namespace torch_pjrt {

bool append_call(
    Trace& trace,
    const Call& call,
    const OpEntry& entry,
    TraceNode::Kind kind,
    const Keys& keys,
    Values& made,
    Values& dropped) {
  TraceNode n = trace.next();
  n.kind = kind;
  n.entry = &entry;
  trace.ints.insert(trace.ints.end(), call.ints.begin(), call.ints.end());
  size_t starts = trace.starts.size();
  size_t inputs = trace.inputs.size();
  auto rewind = [&] {
    // Another thread may run the trace before this call is tried again: an input that no node names would not show in
    // its hash.
    for (size_t i = inputs; i < trace.inputs.size(); ++i)
      trace.inputs[i]->input_of = 0;
    trace.inputs.resize(inputs);
    trace.operands.resize(n.first_operand);
    trace.ints.resize(n.first_int);
    trace.starts.resize(starts);
    return false;
  };
  for (const auto& t : call.tensors) {
    Operand o;
    if (t.arg->write_only) {
      o.kind = Operand::Kind::kWriteOnly;
      o.base = o.view = t.layout;
    } else if (!refer_to_tensor(trace, *t.impl, t.layout, &o)) {
      return rewind();
    }
    o.written = t.arg->written && cell_of(*t.impl).value;
    trace.operands.push_back(o);
  }
  // Partial writes need a plan of the base; find them all before anything is changed.
  c10::SmallVector<Operand, 2> bases;
  for (const auto& t : call.tensors) {
    if (!t.arg->written || covers_storage(*t.impl, t.layout))
      continue;
    Operand o;
    if (!refer_to_tensor(trace, *t.impl, t.layout, &o))
      return rewind();
    bases.push_back(o);
  }
  trace.floats.insert(trace.floats.end(), call.floats.begin(), call.floats.end());
  trace.keys.insert(trace.keys.end(), keys.begin(), keys.end());
  for (size_t i = 0; i < entry.outs.size(); ++i)
    trace.outs.push_back(entry.outs[i] == nullptr ? ValuePtr() : trace.promise(entry.outs[i]));
  made.assign(trace.outs.begin() + n.first_out, trace.outs.end());
  size_t w = 0;
  for (const auto& t : call.tensors) {
    if (!t.arg->written)
      continue;
    auto& value = made[w++];
    if (covers_storage(*t.impl, t.layout))
      value->layout = t.layout;
  }
  trace.append(n);
  w = 0;
  size_t b = 0;
  for (const auto& t : call.tensors) {
    if (!t.arg->written)
      continue;
    ValuePtr value = made[w++];
    auto& cell = cell_of(*t.impl);
    if (!covers_storage(*t.impl, t.layout)) {
      Operand base = bases[b++];
      // An earlier write of this same call may have rebound the cell.
      if (cell.value) {
        Operand now = trace.refer(cell.value);
        base.kind = now.kind;
        base.index = now.index;
        base.out = now.out;
      }
      TraceNode u = trace.next();
      u.kind = TraceNode::Kind::kUpdate;
      u.structure = base.structure;
      Operand content = trace.refer(value);
      content.view = content.base;
      base.written = true;
      trace.operands.push_back(base);
      trace.operands.push_back(content);
      value = trace.promise(base.base);
      trace.outs.push_back(value);
      trace.append(u);
    }
    dropped.push_back(std::move(cell.value));
    cell.value = std::move(value);
  }
  return true;
}

} // namespace torch_pjrt
