// Calls that write to memory which they also name elsewhere, or more than once.
#pragma once

#include "value.h"

#include <c10/core/TensorImpl.h>
#include <c10/util/ArrayRef.h>

namespace torch_pjrt {

// What an op's CPU kernel refuses; Python says which (eager/checks/). A set of bits.
enum Refusal : uint8_t {
  kRefusesRepeats = 1, // a written tensor with two elements in one place
  kRefusesPartialOverlap = 2, // a written tensor that shares some of its memory with an input
  kRefusesOverlap = 4, // a written tensor that shares any of its memory with an input
  kRefusesGrowth = 8, // the same once the written tensor has been resized
};

struct Named {
  c10::TensorImpl* impl;
  int32_t place; // in its list, or -1
  bool written;
};

enum class Aliasing : uint8_t {
  kNone,
  kInPlace, // an input shares a written tensor's storage, at the same place of the lists
  kSequential, // one place of a list writes what another reads or writes, so the order of the places matters
};

// Needs the state lock, since it marks the written cells.
Aliasing aliasing_of(c10::ArrayRef<Named> tensors);

// Raises PyTorch's own error if the call does what `refusals` name.
void check_overlap(c10::ArrayRef<Named> tensors, uint8_t refusals, Aliasing aliasing);

} // namespace torch_pjrt
