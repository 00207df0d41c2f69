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

} // namespace

std::vector<size_t> where_to_split(const Trace& trace) {
  size_t n = trace.nodes.size();
  if (n < kMinTrace)
    return {};
  for (const auto& before : remembered()) {
    if (before.size() != n)
      continue;
    auto cuts = common_runs(before, trace);
    // An update belongs to the op before it, with which it shares its view's starts.
    for (auto& c : cuts)
      while (c < n && trace.nodes[c].kind == TraceNode::Kind::kUpdate)
        ++c;
    cuts.erase(std::unique(cuts.begin(), cuts.end()), cuts.end());
    if (!cuts.empty() && cuts.back() == n)
      cuts.pop_back();
    if (!cuts.empty())
      return cuts;
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

std::vector<std::unique_ptr<Trace>> split(
    std::unique_ptr<Trace> whole,
    const std::vector<size_t>& cuts,
    const std::function<std::unique_ptr<Trace>(c10::DeviceIndex)>& fresh_trace) {
  const Trace& t = *whole;
  std::vector<std::unique_ptr<Trace>> pieces;
  std::vector<std::pair<uint64_t, uint64_t>> prefixes;
  {
    StateLock lock;
    size_t next_cut = 0;
    for (size_t i = 0; i < t.nodes.size(); ++i) {
      if (i == 0 || (next_cut < cuts.size() && cuts[next_cut] == i)) {
        pieces.push_back(fresh_trace(t.device));
        next_cut += i == 0 ? 0 : 1;
      }
      Trace& piece = *pieces.back();
      const TraceNode& old = t.nodes[i];
      bool last = i + 1 == t.nodes.size();
      TraceNode n = old;
      n.first_operand = static_cast<uint32_t>(piece.operands.size());
      n.first_out = static_cast<uint32_t>(piece.outs.size());
      n.first_float = static_cast<uint32_t>(piece.floats.size());
      n.first_int = static_cast<uint32_t>(piece.ints.size());
      n.first_key = static_cast<uint32_t>(piece.keys.size());
      auto copy = [&](auto& to, const auto& from, uint32_t first, uint32_t end) {
        to.insert(to.end(), from.begin() + first, from.begin() + end);
      };
      copy(
          piece.floats,
          t.floats,
          old.first_float,
          last ? static_cast<uint32_t>(t.floats.size()) : t.nodes[i + 1].first_float);
      copy(piece.keys, t.keys, old.first_key, last ? static_cast<uint32_t>(t.keys.size()) : t.nodes[i + 1].first_key);
      uint32_t ints_end = last ? static_cast<uint32_t>(t.ints.size()) : t.nodes[i + 1].first_int;
      copy(piece.ints, t.ints, old.first_int, ints_end);
      // The ints of an update's starts came with the op before it, so they moved as far as that op's did.
      int64_t moved = static_cast<int64_t>(piece.ints.size()) - static_cast<int64_t>(ints_end);
      for (uint32_t k = 0; k < old.operand_count; ++k) {
        Operand o = t.operands[old.first_operand + k];
        if (o.kind == Operand::Kind::kInput || o.kind == Operand::Kind::kNode) {
          const ValuePtr& value =
              o.kind == Operand::Kind::kInput ? t.inputs[o.index] : t.outs[t.nodes[o.index].first_out + o.out];
          Operand from = piece.refer(value);
          o.kind = from.kind;
          o.index = from.index;
          o.out = from.out;
        }
        if (o.structure != nullptr) {
          if (o.run_time_starts) {
            o.first_start = static_cast<uint32_t>(static_cast<int64_t>(o.first_start) + moved);
          } else {
            auto first = static_cast<uint32_t>(piece.starts.size());
            copy(piece.starts, t.starts, o.first_start, o.first_start + o.start_count);
            o.first_start = first;
          }
        }
        piece.operands.push_back(o);
      }
      for (uint32_t k = 0; k < old.out_count; ++k) {
        const ValuePtr& value = t.outs[old.first_out + k];
        if (value) {
          value->trace = piece.id;
          value->node = static_cast<uint32_t>(piece.nodes.size());
        }
        piece.outs.push_back(value);
      }
      piece.append(n);
      prefixes.emplace_back(old.prefix, piece.nodes.back().prefix);
    }
  }
  for (const auto& [from, to] : prefixes)
    copy_source(from, to);
  return pieces; // `whole` and its hold on the values end here
}

} // namespace torch_pjrt
