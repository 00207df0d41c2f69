// Running a trace as pieces, each with an executable of its own.
//
// A loop in which one small tensor grows (the token ids of a text being generated) makes a trace of new shapes at every
// turn, though nearly all of its nodes are the same as before. Such a trace is run as pieces: long runs of nodes that
// an earlier trace has too, and what lies between them. The long pieces are compiled once, the short ones are cheap.
//
// A trace with graphs of torch.compile is one program if it has a backward pass, so that a training step is; otherwise
// each graph is a piece, and so is what lies between them.
#pragma once

#include "trace.h"

#include <functional>
#include <memory>
#include <vector>

namespace torch_pjrt {

using MakeTrace = std::function<std::unique_ptr<Trace>(c10::DeviceIndex)>;

// For each node the number of the piece that it is part of, from 0 on; pieces run in that order. Empty: one program.
using Pieces = std::vector<uint32_t>;

// How to run a trace that has no executable yet; whole if it shares too little with earlier ones, which it then joins.
// Called with the flush lock.
Pieces where_to_split(const Trace& trace);

// The same for a trace with graphs.
Pieces where_graphs_part(const Trace& trace);

// The trace as several: values of a piece are inputs of the later ones.
std::vector<std::unique_ptr<Trace>>
split(std::unique_ptr<Trace> whole, const Pieces& numbers, const MakeTrace& fresh_trace);

// The pieces from `first` on, none of which has run, as one trace; they are removed from `pieces`.
std::unique_ptr<Trace> join(std::vector<std::unique_ptr<Trace>>& pieces, size_t first, const MakeTrace& fresh_trace);

} // namespace torch_pjrt
