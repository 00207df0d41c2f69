#include "value.h"

#include "memory.h"
#include "state.h"

#include <atomic>
#include <utility>
#include <vector>

namespace torch_pjrt {
namespace {

std::mutex& state_mutex() {
  static std::mutex* m = new std::mutex;
  return *m;
}
thread_local bool holds_state = false;

// Objects whose last owner died where Python must not run.
struct Graveyard {
  std::mutex mutex;
  std::vector<PyObject*> objects;
  std::atomic<size_t> count{0};
};
Graveyard& graveyard() {
  static Graveyard* g = new Graveyard;
  return *g;
}

} // namespace

// Deallocating a jax.Array lets go of the GIL, so it must not happen under the state lock.
void release_object(PyObject* object) {
  if (object == nullptr || !Py_IsInitialized())
    return;
  if (!StateLock::held() && PyGILState_Check()) {
    Py_DECREF(object);
    if (graveyard().count.load(std::memory_order_relaxed) != 0)
      drain_released_arrays();
    return;
  }
  std::lock_guard<std::mutex> guard(graveyard().mutex);
  graveyard().objects.push_back(object);
  graveyard().count.fetch_add(1, std::memory_order_relaxed);
}

StateLock::StateLock() {
  lock();
}
StateLock::~StateLock() {
  if (owns_)
    unlock();
}
void StateLock::lock() {
  state_mutex().lock();
  owns_ = holds_state = true;
}
void StateLock::unlock() {
  owns_ = holds_state = false;
  state_mutex().unlock();
}
bool StateLock::held() {
  return holds_state;
}

void drain_released_arrays() {
  std::vector<PyObject*> dead;
  {
    std::lock_guard<std::mutex> guard(graveyard().mutex);
    dead.swap(graveyard().objects);
    graveyard().count.store(0, std::memory_order_relaxed);
  }
  for (PyObject* o : dead)
    Py_DECREF(o);
}

Failure::~Failure() {
  release_object(exception);
}

Value::~Value() {
  release_resources();
}

void Value::release_resources() {
  if (array == nullptr)
    return;
  account_freed(*this);
  release_object(std::exchange(array, nullptr));
}

void Value::materialize(PyObject* jax_array, uint64_t source_key) {
  array = jax_array;
  source = source_key;
  account_made(*this);
}

} // namespace torch_pjrt
