// Programs that check their data (an index in range, say) and have been dispatched: what they found is asked for when
// the host waits for the device anyway. See lowering/check.py.
#pragma once

#include "value.h"

#include <pybind11/pybind11.h>

#include <cstdint>
#include <limits>
#include <vector>

namespace torch_pjrt {

// Notes that a program was dispatched. `findings` is None if it checks nothing: it is remembered then only while an
// earlier run's findings are open, because what it computed from them fails with them. Returns the run's number, by
// which its values are known (Value::run). Needs the GIL.
uint64_t note_run(
    const std::vector<ValuePtr>& inputs,
    const std::vector<ValuePtr>& results,
    pybind11::object program,
    pybind11::object findings);

constexpr uint64_t kEveryRun = std::numeric_limits<uint64_t>::max();

// Looks at the findings there are, waiting for those of runs up to number `until`. Where a check failed, what the run
// made and all that was computed from it fails with its error. Needs the GIL.
void look_at_findings(uint64_t until);

// The same, and throws the first error that has not been thrown yet.
void raise_findings(uint64_t until);

// Says that an error is being thrown elsewhere, so that raise_findings need not. Needs the GIL.
void reported(const std::shared_ptr<Failure>& failure);

} // namespace torch_pjrt
