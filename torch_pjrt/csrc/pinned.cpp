#include "pinned.h"

#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic ignored "-Winterference-size" // in PyTorch's header
#endif
#include <ATen/core/CachingHostAllocator.h>
#include <c10/core/CPUAllocator.h>

#include <map>
#include <mutex>

namespace torch_pjrt {
namespace {

// PJRT stages transfers itself, so that any host memory is as good as pinned memory. It is remembered all the same:
// programs and DataLoader ask is_pinned() of what they have pinned.
class PinnedAllocator final : public at::HostAllocator {
 public:
  c10::DataPtr allocate(size_t nbytes) override {
    auto memory = c10::GetCPUAllocator()->allocate(nbytes);
    void* data = memory.get();
    if (data == nullptr)
      return memory;
    auto* block = new Block{std::move(memory), nbytes};
    {
      std::lock_guard<std::mutex> lock(mutex_);
      blocks_[data] = nbytes;
      requests_.increase(1);
      bytes_.increase(nbytes);
    }
    return {data, block, &free_block, c10::Device(c10::kCPU)};
  }
  c10::DeleterFnPtr raw_deleter() const override {
    return nullptr; // the pointer is not the context
  }
  void copy_data(void* to, const void* from, std::size_t nbytes) const override {
    default_copy_data(to, from, nbytes);
  }
  bool record_event(void* /*data*/, void* /*block*/, c10::Stream /*stream*/) override {
    return true; // a copy to the device has read the memory when it returns
  }
  void empty_cache() override {} // nothing is cached
  at::HostStats get_stats() override {
    std::lock_guard<std::mutex> lock(mutex_);
    at::HostStats stats;
    stats.active_requests = stats.allocations = requests_;
    stats.active_bytes = stats.allocated_bytes = bytes_;
    return stats;
  }
  void reset_accumulated_stats() override {
    std::lock_guard<std::mutex> lock(mutex_);
    requests_.reset_accumulated();
    bytes_.reset_accumulated();
  }
  void reset_peak_stats() override {
    std::lock_guard<std::mutex> lock(mutex_);
    requests_.reset_peak();
    bytes_.reset_peak();
  }
  bool holds(const void* data) {
    std::lock_guard<std::mutex> lock(mutex_);
    auto after = blocks_.upper_bound(data);
    if (after == blocks_.begin())
      return false;
    const auto& [start, nbytes] = *std::prev(after);
    return static_cast<const char*>(data) < static_cast<const char*>(start) + nbytes;
  }

 private:
  struct Block {
    c10::DataPtr memory;
    size_t nbytes;
  };

  static void free_block(void* context);

  std::mutex mutex_;
  std::map<const void*, size_t> blocks_;
  c10::CachingAllocator::Stat requests_;
  c10::CachingAllocator::Stat bytes_;
};

PinnedAllocator& instance() {
  static auto* allocator = new PinnedAllocator;
  return *allocator;
}

void PinnedAllocator::free_block(void* context) {
  auto* block = static_cast<Block*>(context);
  {
    auto& self = instance();
    std::lock_guard<std::mutex> lock(self.mutex_);
    self.blocks_.erase(block->memory.get());
    self.requests_.decrease(1);
    self.bytes_.decrease(block->nbytes);
  }
  delete block;
}

} // namespace

c10::Allocator* pinned_allocator() {
  return &instance();
}

void register_pinned_allocator() {
  at::setHostAllocator(c10::kPrivateUse1, &instance());
}

bool is_pinned(const void* data) {
  return instance().holds(data);
}

} // namespace torch_pjrt
