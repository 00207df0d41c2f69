// Value: one immutable array, or the promise of one. Cell: the mutable binding that a storage is.
#pragma once

#include "layout.h"

#include <c10/core/Device.h>
#include <c10/util/intrusive_ptr.h>

#include <Python.h>

#include <cstdint>
#include <memory>

namespace torch_pjrt {

// Drops a reference to a Python object here and now if that is safe, else later (`drain_released_arrays`).
void release_object(PyObject* object);

// Why a value will never exist: the exception of the flush that should have made it.
struct Failure {
  PyObject* exception; // owned, released only under the GIL
  explicit Failure(PyObject* e) : exception(e) {}
  ~Failure();
};

struct Value final : c10::intrusive_ptr_target {
  Value(const Layout* l, c10::DeviceIndex d) : layout(l), device(d) {}
  ~Value() override;

  // The dense layout of the array: it has layout->sizes in this order, whatever the strides say of memory.
  const Layout* layout;
  c10::DeviceIndex device;
  // Where the value is made, if `trace` is the id of the trace being recorded.
  uint64_t trace = 0;
  uint32_t node = 0;
  uint32_t out = 0;
  // Its number among the trace's inputs, if `input_of` is the id of the trace being recorded.
  uint64_t input_of = 0;
  uint32_t input = 0;
  uint64_t run = 0; // number of the run that made it (findings.h)
  PyObject* array = nullptr; // owned jax.Array once materialized
  bool exported = false; // somebody outside reads its memory: it must not be donated
  std::shared_ptr<Failure> failure;
  // Key of the user's line that made it (see trace.h), and its neighbours among the device's arrays (memory.h).
  uint64_t source = 0;
  Value* previous = nullptr;
  Value* next = nullptr;

  // Gives the array up when the last owner goes: c10 destroys a value only when its last weak reference goes too.
  void release_resources() override;

  // Binds the array (takes the reference) and accounts for its memory. Needs the state lock.
  void materialize(PyObject* jax_array, uint64_t source_key);
};
using ValuePtr = c10::intrusive_ptr<Value>;

struct Cell {
  ValuePtr value; // null: never written, nothing reserved
  c10::DeviceIndex device;
  // The last call that was seen to write here (see aliasing.h), and at which place of its lists.
  uint64_t writer = 0;
  int32_t place = 0;
};

// Drops arrays whose last owner died without the GIL. Call with the GIL and without the state lock.
void drain_released_arrays();

} // namespace torch_pjrt
