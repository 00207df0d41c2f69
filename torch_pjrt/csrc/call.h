// One call as the recorder sees it: its key, its tensors and its run-time values, read off the stack.
#pragma once

#include "op_info.h"
#include "trace.h"

#include <ATen/core/Generator.h>
#include <ATen/core/stack.h>

#include <optional>

namespace torch_pjrt {

struct TensorRef {
  c10::TensorImpl* impl;
  const ArgInfo* arg;
  int32_t place; // in its list, or -1
  const Layout* layout = nullptr;
};

// Everything one call brings, read off the stack before any lock is taken.
struct Call {
  Hash128 key;
  c10::SmallVector<TensorRef, 8> tensors; // of this device, in schema order, lists flattened
  c10::SmallVector<double, 4> floats;
  c10::SmallVector<int64_t, 2> ints;
  c10::DeviceIndex device = -1;
  std::optional<at::Generator> generator;
  bool needs_python = false; // a bool mask, or an index tensor on the CPU
};

// Reads the call on top of the stack. Raises for tensors of another device. Takes no lock.
Call read_call(const OpInfo& info, const torch::jit::Stack& stack);

// What a call with this key (layouts included) returns; null if that must first be inferred. Needs the state lock.
const OpEntry* find_entry(const Hash128& key);

// Asks Python what the call returns. Raises what CPU PyTorch would raise for these shapes and dtypes.
void infer(const OpInfo& info, const torch::jit::Stack& stack, const Call& call);

} // namespace torch_pjrt
