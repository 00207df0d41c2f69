// The lock over everything that recording touches.
//
// Lock order: flush lock -> GIL -> state lock. The state lock is held for short stretches of C++ only; nobody
// waits for the GIL or runs Python while holding it.
#pragma once

#include <mutex>

namespace torch_pjrt {

class StateLock {
 public:
  StateLock();
  ~StateLock();
  StateLock(const StateLock&) = delete;
  StateLock& operator=(const StateLock&) = delete;

  void unlock();
  void lock();
  // Whether this thread holds the state lock now.
  static bool held();

 private:
  bool owns_ = false;
};

} // namespace torch_pjrt
