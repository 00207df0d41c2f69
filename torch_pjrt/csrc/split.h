// Splitting a new trace so that what it shares with an earlier one is compiled once.
//
// A loop in which one small tensor grows (the token ids of a text being generated) makes a trace of new shapes at every
// turn, though nearly all of its nodes are the same as before. Such a trace is run as pieces: long runs of nodes that
// an earlier trace has too, and what lies between them. The long pieces are compiled once, the short ones are cheap.
#pragma once

#include "trace.h"

#include <functional>
#include <memory>
#include <vector>

namespace torch_pjrt {

// The positions to cut a trace at that has no executable yet; empty if it shares too little with earlier ones, which
// it then joins. Called with the flush lock.
std::vector<size_t> where_to_split(const Trace& trace);

// The trace as several, cut before the nodes at `cuts`: values of a piece are inputs of the later ones.
std::vector<std::unique_ptr<Trace>> split(
    std::unique_ptr<Trace> whole,
    const std::vector<size_t>& cuts,
    const std::function<std::unique_ptr<Trace>(c10::DeviceIndex)>& fresh_trace);

} // namespace torch_pjrt
