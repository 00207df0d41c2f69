// The eager mode: when a recorded op runs.
#pragma once

#include <atomic>
#include <cstdint>

namespace torch_pjrt {

enum class EagerMode : int { kStrict = 0, kAsync = 1, kFused = 2 };

struct Settings {
  std::atomic<EagerMode> mode{EagerMode::kFused};
  // A fused trace is cut when it has this many nodes.
  std::atomic<int64_t> max_trace_nodes{8192};
};
Settings& settings();

struct Counters {
  std::atomic<int64_t> ops_recorded{0};
  std::atomic<int64_t> traces_run{0};
  std::atomic<int64_t> cache_hits{0};
};
Counters& counters();

} // namespace torch_pjrt
