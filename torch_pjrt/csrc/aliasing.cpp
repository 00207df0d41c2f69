#include "aliasing.h"

#include "storage.h"

#include <ATen/MemoryOverlap.h>

namespace torch_pjrt {

// Marks on the cells find shared storages in one pass: a fused optimizer names a thousand tensors.
Aliasing aliasing_of(c10::ArrayRef<Named> tensors) {
  static uint64_t calls = 0;
  uint64_t call = ++calls;
  auto found = Aliasing::kNone;
  for (const auto& t : tensors) {
    if (!t.written)
      continue;
    auto& cell = cell_of(*t.impl);
    if (cell.writer == call && cell.place != t.place)
      found = Aliasing::kSequential;
    cell.writer = call;
    cell.place = t.place;
  }
  for (const auto& t : tensors) {
    const auto& cell = cell_of(*t.impl);
    if (t.written || cell.writer != call)
      continue;
    if (cell.place >= 0 && cell.place != t.place)
      return Aliasing::kSequential;
    if (found == Aliasing::kNone)
      found = Aliasing::kInPlace;
  }
  return found;
}

void check_overlap(c10::ArrayRef<Named> tensors, uint8_t refusals, Aliasing aliasing) {
  for (const auto& t : tensors) {
    if (!t.written)
      continue;
    if (refusals & kRefusesRepeats)
      at::assert_no_internal_overlap(t.impl);
    if (aliasing == Aliasing::kNone || !(refusals & (kRefusesPartialOverlap | kRefusesOverlap)))
      continue;
    for (const auto& u : tensors) {
      if (u.written)
        continue;
      auto status = at::get_overlap_status(t.impl, u.impl);
      bool refused = status == at::MemOverlapStatus::Partial ||
                     (status == at::MemOverlapStatus::Full && (refusals & kRefusesOverlap));
      TORCH_CHECK(
          !refused,
          "unsupported operation: some elements of the input tensor and the written-to tensor refer to a single memory "
          "location. Please clone() the tensor before performing the operation.");
    }
  }
}

} // namespace torch_pjrt
