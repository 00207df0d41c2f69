#include "split.h"

#include "state.h"

#include <algorithm>
#include <deque>

namespace torch_pjrt {
namespace {

// A piece is worth an executable of its own from this many nodes on.
constexpr size_t kMinPiece = 32;
// Traces shorter than this compile quickly as they are.
constexpr size_t kMinTrace = 96;
constexpr size_t kRemembered = 16;
// A graph that occurs more often than this in a step (the block of a model, compiled by itself) keeps a program of its
// own: in one program each copy would be compiled.
constexpr size_t kMostCalls = 2;
// So does one that was merged into this many: a loop that reads values in the middle of its steps, now here, now there,
// would compile a large program each time.
constexpr uint32_t kMostMerged = 8;

std::deque<std::vector<uint64_t>>& remembered() {
  static auto* d = new std::deque<std::vector<uint64_t>>;
  return *d;
}

// Runs of at least kMinPiece equal nodes, as cut positions; empty if they are less than half of the trace or all of it.
std::vector<size_t> common_runs(const std::vector<uint64_t>& before, const Trace& trace) {
  size_t n = trace.nodes.size();
  std::vector<size_t> cuts;
  size_t common = 0;
  for (size_t i = 0; i < n;) {
    size_t j = i;
    while (j < n && before[j] == trace.nodes[j].signature)
      ++j;
    if (j - i >= kMinPiece) {
      common += j - i;
      if (i > 0)
        cuts.push_back(i);
      if (j < n)
        cuts.push_back(j);
    }
    i = std::max(j, i + 1);
  }
  if (common * 2 < n || common == n)
    return {};
  return cuts;
}

// Appends node number `i` of a trace to another, which is to make its values.
void copy_node(const Trace& t, size_t i, Trace& to, std::vector<std::pair<uint64_t, uint64_t>>& prefixes) {
  const TraceNode& old = t.nodes[i];
  bool last = i + 1 == t.nodes.size();
  TraceNode n = to.next(old);
  auto copy = [&](auto& into, const auto& from, uint32_t first, uint32_t end) {
    into.insert(into.end(), from.begin() + first, from.begin() + end);
  };
  copy(
      to.floats, t.floats, old.first_float, last ? static_cast<uint32_t>(t.floats.size()) : t.nodes[i + 1].first_float);
  copy(to.keys, t.keys, old.first_key, last ? static_cast<uint32_t>(t.keys.size()) : t.nodes[i + 1].first_key);
  uint32_t ints_end = last ? static_cast<uint32_t>(t.ints.size()) : t.nodes[i + 1].first_int;
  copy(to.ints, t.ints, old.first_int, ints_end);
  // The ints of an update's starts came with the op before it, so they moved as far as that op's did.
  int64_t moved = static_cast<int64_t>(to.ints.size()) - static_cast<int64_t>(ints_end);
  for (uint32_t k = 0; k < old.operand_count; ++k) {
    Operand o = t.operands[old.first_operand + k];
    if (o.kind == Operand::Kind::kInput || o.kind == Operand::Kind::kNode) {
      const ValuePtr& value =
          o.kind == Operand::Kind::kInput ? t.inputs[o.index] : t.outs[t.nodes[o.index].first_out + o.out];
      Operand from = to.refer(value);
      o.kind = from.kind;
      o.index = from.index;
      o.out = from.out;
    }
    if (o.structure != nullptr) {
      if (o.run_time_starts) {
        o.first_start = static_cast<uint32_t>(static_cast<int64_t>(o.first_start) + moved);
      } else {
        auto first = static_cast<uint32_t>(to.starts.size());
        copy(to.starts, t.starts, o.first_start, o.first_start + o.start_count);
        o.first_start = first;
      }
    }
    to.operands.push_back(o);
  }
  for (uint32_t k = 0; k < old.out_count; ++k) {
    const ValuePtr& value = t.outs[old.first_out + k];
    if (value) {
      value->trace = to.id;
      value->node = static_cast<uint32_t>(to.nodes.size());
    }
    to.outs.push_back(value);
  }
  to.append(n);
  if (n.kind == TraceNode::Kind::kGraph)
    to.add_graph(t.graph_of(n));
  prefixes.emplace_back(old.prefix, to.nodes.back().prefix);
}

// An update belongs to the op before it, with which it shares its view's starts.
size_t after_updates(const Trace& trace, size_t cut) {
  while (cut < trace.nodes.size() && trace.nodes[cut].kind == TraceNode::Kind::kUpdate)
    ++cut;
  return cut;
}

// The pieces between cuts, in ascending order, before some of the nodes; none if that is but one piece.
Pieces between(const Trace& trace, const std::vector<size_t>& cuts) {
  Pieces pieces(trace.nodes.size());
  for (size_t c : cuts)
    if (c > 0 && c < pieces.size())
      pieces[c] = 1;
  for (size_t i = 1; i < pieces.size(); ++i)
    pieces[i] += pieces[i - 1];
  return pieces.empty() || pieces.back() == 0 ? Pieces{} : pieces;
}

// Whether a trace with graphs is to be one program.
bool is_one_program(const Trace& trace) {
  if (trace.backwards == 0)
    return false;
  for (const auto& graph : trace.graphs)
    if (graph->merged >= kMostMerged ||
        std::count(trace.graphs.begin(), trace.graphs.end(), graph) > static_cast<int64_t>(kMostCalls))
      return false;
  return true;
}

// Constants that later nodes overwrite, before all others: an optimizer's state in its first step. What remains is then
// the program of every later step.
Pieces constants_first(const Trace& t) {
  size_t n = t.nodes.size();
  std::vector<bool> constant(n);
  std::vector<uint32_t> pieces(n, 1);
  bool found = false;
  for (size_t i = 0; i < n; ++i) {
    const TraceNode& node = t.nodes[i];
    constant[i] = node.kind == TraceNode::Kind::kOp && node.out_count > 0;
    for (uint32_t k = 0; k < node.operand_count; ++k) {
      const Operand& o = t.operands[node.first_operand + k];
      // What zeroes a gradient makes a constant, too, but in place of a value: that belongs to every step.
      bool fresh = o.kind == Operand::Kind::kZeros || (o.kind == Operand::Kind::kWriteOnly && !o.written);
      constant[i] = constant[i] && fresh;
      if (o.written && o.kind == Operand::Kind::kNode && constant[o.index]) {
        pieces[o.index] = 0;
        found = true;
      }
    }
    if ((i + 1 < n ? t.nodes[i + 1].first_key : t.keys.size()) != node.first_key)
      constant[i] = false;
  }
  return found ? pieces : Pieces{};
}

} // namespace

Pieces where_to_split(const Trace& trace) {
  size_t n = trace.nodes.size();
  if (n < kMinTrace)
    return {};
  for (const auto& before : remembered()) {
    if (before.size() != n)
      continue;
    auto cuts = common_runs(before, trace);
    for (auto& c : cuts)
      c = after_updates(trace, c);
    auto pieces = between(trace, cuts);
    if (!pieces.empty())
      return pieces;
  }
  std::vector<uint64_t> signatures;
  signatures.reserve(n);
  for (const auto& node : trace.nodes)
    signatures.push_back(node.signature);
  remembered().push_front(std::move(signatures));
  if (remembered().size() > kRemembered)
    remembered().pop_back();
  return {};
}

Pieces where_graphs_part(const Trace& trace) {
  if (is_one_program(trace))
    return constants_first(trace);
  std::vector<size_t> cuts;
  for (size_t i = 0; i < trace.nodes.size(); ++i) {
    if (trace.nodes[i].kind != TraceNode::Kind::kGraph)
      continue;
    cuts.push_back(i);
    cuts.push_back(after_updates(trace, i + 1));
  }
  return between(trace, cuts);
}

std::vector<std::unique_ptr<Trace>>
split(std::unique_ptr<Trace> whole, const Pieces& numbers, const MakeTrace& fresh_trace) {
  const Trace& t = *whole;
  std::vector<std::unique_ptr<Trace>> pieces;
  std::vector<std::pair<uint64_t, uint64_t>> prefixes;
  {
    StateLock lock;
    for (uint32_t p = 0; p <= *std::max_element(numbers.begin(), numbers.end()); ++p) {
      pieces.push_back(fresh_trace(t.device));
      for (size_t i = 0; i < t.nodes.size(); ++i)
        if (numbers[i] == p)
          copy_node(t, i, *pieces.back(), prefixes);
    }
  }
  for (const auto& [from, to] : prefixes)
    copy_source(from, to);
  return pieces; // `whole` and its hold on the values end here
}

std::unique_ptr<Trace> join(std::vector<std::unique_ptr<Trace>>& pieces, size_t first, const MakeTrace& fresh_trace) {
  auto joined = fresh_trace(pieces[first]->device);
  std::vector<std::pair<uint64_t, uint64_t>> prefixes;
  {
    StateLock lock;
    for (size_t p = first; p < pieces.size(); ++p)
      for (size_t i = 0; i < pieces[p]->nodes.size(); ++i)
        copy_node(*pieces[p], i, *joined, prefixes);
  }
  for (const auto& [from, to] : prefixes)
    copy_source(from, to);
  pieces.erase(pieces.begin() + static_cast<int64_t>(first), pieces.end());
  return joined;
}

} // namespace torch_pjrt
