// The trace being recorded on a device: operations in SSA form, their inputs and run-time parameters.
#pragma once

#include "hash.h"
#include "python.h"
#include "value.h"

#include <Python.h>

#include <cstdint>
#include <memory>
#include <vector>

namespace torch_pjrt {

// How a view is read from, or written to, the value under it. Immortal; equal structures are equal pointers.
struct ViewStructure {
  PyObject* object; // torch_pjrt.lowering.view structure
  uint32_t id;
};

struct Operand {
  enum class Kind : uint8_t { kInput, kNode, kZeros, kWriteOnly };
  Kind kind = Kind::kZeros;
  bool run_time_starts = false;
  bool written = false; // the node makes new content in place of what was there
  uint16_t start_count = 0;
  uint32_t index = 0; // input number or node number
  uint32_t out = 0; // which output of the node
  uint32_t first_start = 0; // into Trace::starts, or Trace::ints if run_time_starts
  const Layout* base = nullptr; // of the value
  const Layout* view = nullptr; // of the tensor
  const ViewStructure* structure = nullptr; // null: the tensor is the whole value
};

// One ATen call with given metadata: what it returns and how to lower it. Immortal.
struct OpEntry {
  PyObject* call; // torch_pjrt.eager.infer.Call
  uint64_t id;
  // Layouts of the normalized outputs (see lowering/apply.py); null: the op returns no tensor there.
  std::vector<const Layout*> outs;
  // For each of the schema's returns that is fresh: -1 for a single tensor, else the length of the list.
  std::vector<int64_t> fresh;
  // An `out=` tensor must be resized before the call can be recorded.
  bool resizes = false;
};

// What a graph of torch.compile is to a training step.
enum class Role : uint8_t { kForward, kBackward, kUpdate };

// One graph called with tensors of given layouts. Its `call` is a torch_pjrt.compile.recorded.RecordedGraph.
struct GraphEntry final : OpEntry {
  GraphEntry() = default;
  GraphEntry(const GraphEntry&) = delete;
  GraphEntry& operator=(const GraphEntry&) = delete;
  ~GraphEntry() {
    release_object(call);
  }
  Role role = Role::kForward;
  uint64_t options = 0; // XLA's, as a number: graphs of different options are not one program
  mutable uint32_t merged = 0; // programs that it was made part of, with other nodes; touched with the flush lock
};

struct TraceNode {
  enum class Kind : uint8_t { kOp, kUpdate, kResize, kGraph };
  Kind kind;
  const OpEntry* entry; // null but for kOp and kGraph, where it is a GraphEntry
  const ViewStructure* structure; // where a kUpdate writes
  uint32_t first_operand, operand_count;
  uint32_t first_out, out_count;
  uint32_t first_float, first_int, first_key;
  // The rolling hash up to and including this node: the key of its source line.
  uint64_t prefix;
  // The node by itself: what it does to which layouts, but not from where its operands come.
  uint64_t signature;
};

struct Trace {
  uint64_t id;
  c10::DeviceIndex device;
  Hash128 hash;
  std::vector<TraceNode> nodes;
  std::vector<Operand> operands;
  std::vector<ValuePtr> outs;
  std::vector<ValuePtr> inputs;
  std::vector<int64_t> starts; // compile-time
  std::vector<double> floats; // run-time
  std::vector<int64_t> ints; // run-time
  std::vector<uint32_t> keys; // run-time, four a key
  // Knuth-Morris-Pratt failure function over the nodes: borders[i] is the length of the longest proper prefix of the
  // first i + 1 nodes that is also their suffix.
  std::vector<uint32_t> borders;
  // Some node makes nothing: it is there for what it checks, so the trace runs even if nobody holds a result.
  bool checks = false;
  // The graphs that nodes name, kept alive: unlike ops they come and go. And how many of them are backward passes.
  std::vector<std::shared_ptr<const GraphEntry>> graphs;
  uint32_t backwards = 0;

  // Refers to a value from a node, registering it as an input of the trace if it isn't made here.
  Operand refer(const ValuePtr& value);
  // A value that output number `out` of the next node will make.
  ValuePtr promise(const Layout* layout);
  // Appends the node whose operands and outs were pushed since `first_operand` and `first_out`.
  // `node` with its lists beginning where those of the trace end: what is appended to them next is its own.
  TraceNode next(TraceNode node = {}) const;
  void append(TraceNode node);
  // Notes that the last node is a call of this graph.
  void add_graph(std::shared_ptr<const GraphEntry> graph);
  // The graph that a node calls.
  std::shared_ptr<const GraphEntry> graph_of(const TraceNode& node) const;
  // Whether the trace is, from its first node on, whole turns of one loop: two or more, of the same ops.
  bool is_whole_loops() const;
  // Whether a batch that arrives now, or another forward pass, belongs to the next step.
  bool is_whole_step() const;
};

// The trace being recorded on `device`. Needs the state lock.
Trace& current_trace(c10::DeviceIndex device);

// Cuts, compiles if need be, and runs the device's trace; a no-op if it is empty. Throws what the run raised, and
// then every value it should have made fails with that same exception. Must not be called with the state lock.
void flush(c10::DeviceIndex device);

// Flushes every device that has something pending.
void flush_all();

// The array of `value`, flushing if it is pending (counted as a host sync of that cause if `cause` is given).
// A borrowed reference, valid while `value` is. Needs the GIL. Throws the original error of a failed flush.
PyObject* array_of(const ValuePtr& value, const char* cause);

// Raises the exception that a value failed with.
[[noreturn]] void throw_failure(const std::shared_ptr<Failure>& failure);

// Lines of the user's program, by trace prefix.
bool knows_source(uint64_t prefix);
void remember_source(uint64_t prefix);
void copy_source(uint64_t from, uint64_t to);
// The key of the line that runs now. Needs the GIL.
uint64_t source_here();
// The line with this key, or None. Needs the GIL, and not the state lock.
py::object source_line(uint64_t key);

} // namespace torch_pjrt
