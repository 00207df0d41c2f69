// The eager mode: when a recorded op runs.
#pragma once

#include <atomic>
#include <cstdint>

namespace torch_pjrt {

enum class EagerMode : int { kStrict = 0, kAsync = 1, kFused = 2 };

struct Settings {
  std::atomic<EagerMode> mode{EagerMode::kFused};
  // A fused trace is cut when it has this many nodes.
  std::atomic<int64_t> max_trace_nodes{4096};
  // Whether the platform has kernels for the attention of plain tensors, of which Python chooses one.
  std::atomic<bool> attention_kernels{false};
};

// A loop without a synchronization is cut after whole turns of it, once they make this many nodes.
constexpr size_t kMinLoopNodes = 256;
// Data that arrives from the host (a batch) begins a new step: the trace is cut if it has this many nodes (or, where
// graphs are recorded, a backward pass) and the data this many bytes. Smaller uploads are constants in the middle of a
// step.
constexpr size_t kMinStepNodes = 16;
constexpr size_t kMinBatchBytes = 1024;
Settings& settings();

struct Counters {
  std::atomic<int64_t> ops_recorded{0};
  std::atomic<int64_t> traces_run{0};
  std::atomic<int64_t> cache_hits{0};
};
Counters& counters();

} // namespace torch_pjrt
