#include "trace.h"

#include "findings.h"
#include "guard.h"
#include "interrupts.h"
#include "layout_python.h"
#include "lowering_state.h"
#include "memory.h"
#include "modes.h"
#include "python.h"
#include "recorder.h"
#include "split.h"
#include "state.h"

#include <c10/util/Exception.h>
#include <c10/util/flat_hash_map.h>
#include <torch/csrc/Exceptions.h>

#include <pybind11/numpy.h>
#include <pybind11/stl.h>

#include <algorithm>
#include <array>
#include <list>
#include <memory>
#include <unordered_map>

namespace torch_pjrt {
namespace {

uint64_t next_trace_id() {
  static std::atomic<uint64_t> id{0};
  return ++id;
}

std::unique_ptr<Trace> fresh_trace(c10::DeviceIndex device) {
  auto t = std::make_unique<Trace>();
  t->id = next_trace_id();
  t->device = device;
  t->hash.add(static_cast<uint64_t>(device));
  return t;
}

std::array<std::unique_ptr<Trace>, 128>& slots() {
  static auto* traces = new std::array<std::unique_ptr<Trace>, 128>;
  return *traces;
}

std::unique_ptr<Trace>& slot(c10::DeviceIndex device) {
  auto& t = slots().at(static_cast<size_t>(device));
  if (t == nullptr)
    t = fresh_trace(device);
  return t;
}

std::recursive_mutex& flush_mutex() {
  static auto* m = new std::recursive_mutex;
  return *m;
}

// Waits for the flush lock without holding the GIL, as the lock order asks.
class FlushLock {
 public:
  FlushLock() {
    if (flush_mutex().try_lock())
      return;
    WithoutGil without;
    flush_mutex().lock();
  }
  ~FlushLock() {
    flush_mutex().unlock();
  }
};

// Executables by key, the least recently used dropped first: a program whose shapes never repeat would otherwise keep
// every one it ever compiled. Touched with the flush lock and the GIL.
class Executables {
 public:
  PyObject* find(const Hash128& key) {
    auto it = places_.find(key);
    if (it == places_.end())
      return nullptr;
    order_.splice(order_.begin(), order_, it->second);
    return it->second->second.ptr();
  }
  void add(const Hash128& key, py::object executable) {
    order_.emplace_front(key, std::move(executable));
    places_[key] = order_.begin();
    if (order_.size() > kMost) {
      places_.erase(order_.back().first);
      order_.pop_back();
    }
  }

 private:
  static constexpr size_t kMost = 4096;
  std::list<std::pair<Hash128, py::object>> order_;
  std::unordered_map<Hash128, decltype(order_)::iterator, HashOfHash> places_;
};

Executables& executables() {
  static auto* e = new Executables;
  return *e;
}

// Source lines by trace prefix. Bounded: programs whose shapes never repeat would grow it without end.
constexpr size_t kMaxSources = 1 << 20;
ska::flat_hash_map<uint64_t, PyObject*>& sources() {
  static auto* s = new ska::flat_hash_map<uint64_t, PyObject*>;
  return *s;
}

py::object dtype_and_sizes(const Layout* l) {
  return py::make_tuple(static_cast<int>(l->dtype), python_sizes(l->sizes));
}

py::object describe_operand(const Trace& t, const Operand& o) {
  static constexpr std::array<const char*, 4> kKinds{"input", "node", "zeros", "write_only"};
  py::object starts = py::none();
  if (o.structure != nullptr && !o.run_time_starts) {
    auto first = t.starts.begin() + o.first_start;
    starts = py::tuple(py::cast(std::vector<int64_t>(first, first + o.start_count)));
  }
  return py::make_tuple(
      kKinds[static_cast<size_t>(o.kind)],
      o.index,
      o.out,
      o.structure == nullptr ? py::none() : py::reinterpret_borrow<py::object>(o.structure->object),
      starts,
      o.run_time_starts ? py::object(py::make_tuple(o.first_start, static_cast<uint32_t>(o.start_count)))
                        : py::object(py::none()),
      dtype_and_sizes(o.base),
      dtype_and_sizes(o.view));
}

// The whole trace as Python objects, for compiling and for error messages. Called with the GIL; the trace is no
// longer being recorded, so nothing else touches it.
py::dict describe_trace(const Trace& t, const std::vector<uint32_t>& live, const std::vector<uint32_t>& donatable) {
  static constexpr std::array<const char*, 4> kKinds{"op", "update", "resize", "graph"};
  py::list nodes;
  for (const auto& n : t.nodes) {
    py::list operands;
    for (uint32_t i = 0; i < n.operand_count; ++i)
      operands.append(describe_operand(t, t.operands[n.first_operand + i]));
    py::list outs;
    for (uint32_t i = 0; i < n.out_count; ++i) {
      const auto& v = t.outs[n.first_out + i];
      outs.append(v ? dtype_and_sizes(v->layout) : py::none());
    }
    nodes.append(
        py::make_tuple(
            kKinds[static_cast<size_t>(n.kind)],
            n.entry == nullptr ? py::none() : py::reinterpret_borrow<py::object>(n.entry->call),
            operands,
            outs,
            py::make_tuple(n.first_float, n.first_int, n.first_key),
            n.structure == nullptr ? py::none() : py::reinterpret_borrow<py::object>(n.structure->object),
            source_line(n.prefix)));
  }
  py::list inputs;
  for (const auto& v : t.inputs)
    inputs.append(dtype_and_sizes(v->layout));
  py::list results;
  for (uint32_t i : live)
    results.append(i);
  py::dict d;
  d["device"] = static_cast<int>(t.device);
  d["nodes"] = nodes;
  d["inputs"] = inputs;
  d["results"] = results;
  d["donatable"] = py::cast(donatable);
  d["floats"] = t.floats.size();
  d["ints"] = t.ints.size();
  d["keys"] = t.keys.size();
  return d;
}

template <class T>
py::object as_numpy(const std::vector<T>& v) {
  return py::array_t<T>(static_cast<py::ssize_t>(v.size()), v.data());
}

// Makes a cut trace the current one again, if nothing has been recorded since.
bool resume(std::unique_ptr<Trace>& trace) {
  StateLock lock;
  auto& current = slot(trace->device);
  if (!current->nodes.empty())
    return false;
  for (auto& v : trace->outs)
    if (v)
      v->trace = trace->id;
  current = std::move(trace);
  return true;
}

// Whether the program that failed has left the trace's inputs as they were: none was donated after all.
bool has_inputs(const Trace& t) {
  for (const auto& v : t.inputs)
    if (py::handle(v->array).attr("is_deleted")().cast<bool>())
      return false;
  return true;
}

[[noreturn]] void throw_exception(PyObject* e) {
  PyErr_SetObject(reinterpret_cast<PyObject*>(Py_TYPE(e)), e);
  python_error error;
  error.persist();
  throw std::move(error);
}

// The exception being handled, as Python's. A new reference.
PyObject* exception_in_flight() {
  try {
    throw;
  } catch (py::error_already_set& e) {
    return py::object(e.value()).release().ptr();
  } catch (python_error& e) {
    e.restore();
    PyObject *type = nullptr, *value = nullptr, *traceback = nullptr;
    PyErr_Fetch(&type, &value, &traceback);
    PyErr_NormalizeException(&type, &value, &traceback);
    if (traceback != nullptr)
      PyException_SetTraceback(value, traceback);
    Py_XDECREF(type);
    Py_XDECREF(traceback);
    return value;
  } catch (std::exception& e) {
    return py::module_::import("builtins").attr("RuntimeError")(e.what()).release().ptr();
  }
}

enum class Runs : uint8_t { kWhole, kAsPiece };

void run_trace(std::unique_ptr<Trace>& trace, Runs how);

// Runs a trace piece by piece. If one fails, what the later ones should have made fails with it; if one has not run at
// all and can wait, so do they.
void run_pieces(std::unique_ptr<Trace> whole, const Pieces& numbers) {
  auto fresh = [](c10::DeviceIndex d) { return fresh_trace(d); };
  auto pieces = split(std::move(whole), numbers, fresh);
  std::exception_ptr first;
  for (size_t i = 0; i < pieces.size(); ++i) {
    try {
      run_trace(pieces[i], Runs::kAsPiece);
    } catch (...) {
      if (pieces[i]) {
        auto failure = std::make_shared<Failure>(exception_in_flight());
        auto rest = join(pieces, i, fresh);
        if (!resume(rest)) {
          StateLock lock;
          for (auto& v : rest->outs)
            if (v)
              v->failure = failure;
        }
        throw_exception(failure->exception);
      }
      if (!first)
        first = std::current_exception();
    }
  }
  if (first)
    std::rethrow_exception(first);
}

// Runs one cut trace. Every result is bound, or fails with the exception that is thrown; unless nothing has run and it
// can be tried again, after Ctrl-C while it was compiled, or for want of memory. Then the trace is the current one
// again or, if it is a piece, left to the caller.
void run_trace(std::unique_ptr<Trace>& trace, Runs how) {
  bool whole = how == Runs::kWhole;
  py::gil_scoped_acquire gil;
  drain_released_arrays();
  look_at_findings(0);
  Trace& t = *trace;
  std::vector<uint32_t> live;
  std::vector<uint32_t> donatable;
  std::vector<ValuePtr> results;
  Hash128 key = t.hash;
  key.add(lowering_state());
  {
    StateLock lock;
    for (uint32_t i = 0; i < t.outs.size(); ++i) {
      if (t.outs[i] && t.outs[i].use_count() > 1) {
        live.push_back(i);
        results.push_back(t.outs[i]);
        key.add(i);
      }
    }
    for (auto& v : t.outs)
      if (v)
        v->trace = 0; // no longer pending in a trace that can be recorded into
  }
  std::unique_ptr<Trace> done; // ends with the GIL, which what it holds may need
  if (live.empty() && !t.checks) {
    done = std::move(trace);
    return;
  }
  for (uint32_t i = 0; i < t.inputs.size(); ++i) {
    const PyObject* array = t.inputs[i]->array;
    if (t.inputs[i].use_count() == 1 && array != nullptr && Py_REFCNT(array) == 1 && !t.inputs[i]->exported) {
      donatable.push_back(i);
      key.add(uint64_t{i} << 32 | 1);
    }
  }
  auto executable = py::reinterpret_borrow<py::object>(executables().find(key));
  MemoryRequest memory(t.device, results, t.inputs, donatable, [&t](const Value& v) { return t.nodes[v.node].prefix; });
  if (!executable && whole && memory.fits()) {
    Pieces pieces = t.graphs.empty() ? where_to_split(t) : where_graphs_part(t);
    if (!pieces.empty()) {
      results.clear();
      run_pieces(std::move(trace), pieces);
      return;
    }
  }
  bool dispatched = false;
  Interrupts interrupts; // from the dispatch until the results are bound
  try {
    if (whole)
      memory.require();
    py::list inputs;
    for (const auto& v : t.inputs) {
      if (v->failure)
        throw_failure(v->failure);
      TORCH_INTERNAL_ASSERT(v->array != nullptr, "an input of a trace was never made");
      inputs.append(py::reinterpret_borrow<py::object>(v->array));
    }
    if (!executable) {
      executable = bridge().compile(describe_trace(t, live, donatable));
      executables().add(key, executable);
      if (t.nodes.size() > 1)
        for (const auto& graph : t.graphs)
          ++graph->merged;
    } else {
      ++counters().cache_hits;
    }
    if (t.device >= device_count())
      bridge().prepare(executable, inputs);
    interrupts.hold();
    dispatched = true;
    py::object made = bridge().run(executable, inputs, as_numpy(t.floats), as_numpy(t.ints), as_numpy(t.keys));
    ++counters().traces_run;
    auto [arrays, findings] = made.cast<std::pair<py::list, py::object>>();
    TORCH_INTERNAL_ASSERT(arrays.size() == results.size(), "an executable returned the wrong number of arrays");
    uint64_t run = note_run(t.inputs, results, executable, findings);
    StateLock lock;
    for (size_t i = 0; i < results.size(); ++i) {
      results[i]->run = run;
      results[i]->materialize(py::object(arrays[i]).release().ptr(), t.nodes[results[i]->node].prefix);
    }
  } catch (...) {
    auto failure = std::make_shared<Failure>(exception_in_flight());
    PyObject* exception = failure->exception;
    bool interrupted = !dispatched && PyErr_GivenExceptionMatches(exception, PyExc_KeyboardInterrupt) != 0;
    bool no_memory = is_out_of_memory(exception) && (!dispatched || has_inputs(t));
    if ((interrupted || no_memory) && (!whole || resume(trace))) {
      interrupts.release();
      throw_exception(exception);
    }
    {
      StateLock lock;
      for (auto& v : results)
        v->failure = failure;
    }
    done = std::move(trace);
    interrupts.release();
    throw_exception(exception);
  }
  done = std::move(trace);
  interrupts.release();
}

} // namespace

Operand Trace::refer(const ValuePtr& value) {
  Operand o;
  o.base = value->layout;
  if (value->trace == id) {
    o.kind = Operand::Kind::kNode;
    o.index = value->node;
    o.out = value->out;
    return o;
  }
  if (value->input_of != id) {
    value->input_of = id;
    value->input = static_cast<uint32_t>(inputs.size());
    inputs.push_back(value);
  }
  o.kind = Operand::Kind::kInput;
  o.index = value->input;
  return o;
}

ValuePtr Trace::promise(const Layout* layout) {
  auto v = c10::make_intrusive<Value>(layout, device);
  v->trace = id;
  v->node = static_cast<uint32_t>(nodes.size());
  return v;
}

TraceNode Trace::next(TraceNode n) const {
  n.first_operand = static_cast<uint32_t>(operands.size());
  n.first_out = static_cast<uint32_t>(outs.size());
  n.first_float = static_cast<uint32_t>(floats.size());
  n.first_int = static_cast<uint32_t>(ints.size());
  n.first_key = static_cast<uint32_t>(keys.size());
  return n;
}

void Trace::append(TraceNode n) {
  n.operand_count = static_cast<uint32_t>(operands.size()) - n.first_operand;
  n.out_count = static_cast<uint32_t>(outs.size()) - n.first_out;
  Hash128 own;
  own.add(static_cast<uint64_t>(n.kind) | (n.structure == nullptr ? 0 : uint64_t{n.structure->id} << 2));
  own.add(n.entry == nullptr ? 0 : n.entry->id);
  for (uint32_t i = 0; i < n.operand_count; ++i) {
    const auto& o = operands[n.first_operand + i];
    hash.add(static_cast<uint64_t>(o.kind) | uint64_t{o.index} << 2 | uint64_t{o.out} << 40);
    own.add(o.base);
    if (o.structure != nullptr) {
      own.add(uint64_t{o.structure->id} << 1 | static_cast<uint64_t>(o.run_time_starts));
      if (!o.run_time_starts)
        for (uint32_t s = 0; s < o.start_count; ++s)
          own.add(static_cast<uint64_t>(starts[o.first_start + s]));
    }
  }
  for (uint32_t i = 0; i < n.out_count; ++i) {
    auto& v = outs[n.first_out + i];
    if (v) {
      v->out = i;
      own.add(v->layout);
    }
  }
  hash.add(own.a);
  hash.add(own.b);
  n.signature = own.a;
  n.prefix = hash.a;
  nodes.push_back(n);
  uint32_t border = borders.empty() ? 0 : borders.back();
  checks |= n.kind == TraceNode::Kind::kOp && n.out_count == 0;
  if (nodes.size() > 1) {
    while (border > 0 && nodes[border].signature != n.signature)
      border = borders[border - 1];
    if (nodes[border].signature == n.signature)
      ++border;
  }
  borders.push_back(border);
}

void Trace::add_graph(std::shared_ptr<const GraphEntry> graph) {
  backwards += graph->role == Role::kBackward;
  graphs.push_back(std::move(graph));
}

std::shared_ptr<const GraphEntry> Trace::graph_of(const TraceNode& node) const {
  return *std::find_if(graphs.begin(), graphs.end(), [&](const auto& graph) { return graph.get() == node.entry; });
}

bool Trace::is_whole_step() const {
  return graphs.empty() ? nodes.size() >= kMinStepNodes : backwards != 0;
}

bool Trace::is_whole_loops() const {
  size_t n = nodes.size();
  size_t turn = n - borders.back();
  return turn < n && n % turn == 0;
}

Trace& current_trace(c10::DeviceIndex device) {
  return *slot(device);
}

void flush(c10::DeviceIndex device) {
  std::unique_ptr<Trace> cut;
  FlushLock flushing;
  {
    StateLock lock;
    auto& t = slot(device);
    if (t->nodes.empty())
      return;
    cut = std::move(t);
    t = fresh_trace(device);
    t->nodes.reserve(cut->nodes.size());
    t->operands.reserve(cut->operands.size());
    t->outs.reserve(cut->outs.size());
  }
  run_trace(cut, Runs::kWhole);
}

void flush_all() {
  c10::SmallVector<c10::DeviceIndex, 4> pending;
  {
    StateLock lock;
    for (size_t d = 0; d < 128; ++d)
      if (const auto& t = slots().at(d); t != nullptr && !t->nodes.empty())
        pending.push_back(static_cast<c10::DeviceIndex>(d));
  }
  for (auto d : pending)
    flush(d);
}

PyObject* array_of(const ValuePtr& value, const char* cause) {
  bool ready = false;
  {
    StateLock lock;
    ready = value->array != nullptr || value->failure != nullptr;
  }
  if (!ready)
    flush(value->device);
  if (cause != nullptr && !value->failure)
    raise_findings(value->run);
  if (value->failure)
    throw_failure(value->failure);
  TORCH_INTERNAL_ASSERT(value->array != nullptr, "a value was neither made nor failed by its flush");
  if (cause != nullptr)
    bridge().host_sync(cause);
  return value->array;
}

void throw_failure(const std::shared_ptr<Failure>& failure) {
  py::gil_scoped_acquire gil;
  reported(failure);
  throw_exception(failure->exception);
}

uint64_t source_here() {
  PyObject* line = bridge().source().release().ptr(); // immortal, as in remember_source
  auto key = reinterpret_cast<uint64_t>(line);
  StateLock lock;
  sources()[key] = line;
  return key;
}

py::object source_line(uint64_t key) {
  StateLock lock;
  auto it = sources().find(key);
  return it == sources().end() ? py::object(py::none()) : py::reinterpret_borrow<py::object>(it->second);
}

bool knows_source(uint64_t prefix) {
  return sources().find(prefix) != sources().end();
}

void copy_source(uint64_t from, uint64_t to) {
  StateLock lock;
  auto it = sources().find(from);
  if (it != sources().end() && sources().size() < kMaxSources)
    sources().emplace(to, it->second);
}

void remember_source(uint64_t prefix) {
  py::gil_scoped_acquire gil;
  PyObject* line = bridge().source().release().ptr();
  StateLock lock;
  if (sources().size() >= kMaxSources)
    sources().clear(); // the strings are interned by the bridge and stay
  sources()[prefix] = line;
}

} // namespace torch_pjrt
