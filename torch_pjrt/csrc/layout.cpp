#include "layout.h"

#include "hash.h"

#include <algorithm>
#include <memory>
#include <numeric>
#include <vector>

namespace torch_pjrt {
namespace {

bool covers_densely(const Layout& l) {
  c10::SmallVector<size_t, 6> order(l.sizes.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::sort(order.begin(), order.end(), [&](size_t i, size_t j) { return l.strides[i] < l.strides[j]; });
  int64_t expected = 1;
  for (size_t d : order) {
    if (l.sizes[d] == 1)
      continue;
    if (l.strides[d] != expected)
      return false;
    expected *= l.sizes[d];
  }
  return true;
}

// Open addressing over interned layouts: a lookup is one probe in the common case.
class Table {
 public:
  Table() : slots_(4096, nullptr) {}

  const Layout* find_or_add(c10::ScalarType dtype, c10::IntArrayRef sizes, c10::IntArrayRef strides) {
    Hash128 h;
    h.add(static_cast<uint64_t>(dtype) << 8 | sizes.size());
    for (size_t i = 0; i < sizes.size(); ++i) {
      h.add(static_cast<uint64_t>(sizes[i]));
      h.add(static_cast<uint64_t>(strides[i]));
    }
    size_t mask = slots_.size() - 1;
    for (size_t i = h.a & mask;; i = (i + 1) & mask) {
      const Layout* l = slots_[i];
      if (l == nullptr)
        break;
      if (l->hash == h.a && l->dtype == dtype && sizes.equals(l->sizes) && strides.equals(l->strides))
        return l;
    }
    auto owned = std::make_unique<Layout>();
    owned->dtype = dtype;
    owned->sizes.assign(sizes.begin(), sizes.end());
    owned->strides.assign(strides.begin(), strides.end());
    owned->hash = h.a;
    owned->numel = c10::multiply_integers(sizes);
    owned->dense = owned->numel == 0 || covers_densely(*owned);
    const Layout* l = owned.get();
    layouts_.push_back(std::move(owned));
    if (layouts_.size() * 2 > slots_.size())
      grow();
    else
      place(l);
    return l;
  }

 private:
  void place(const Layout* l) {
    size_t mask = slots_.size() - 1;
    size_t i = l->hash & mask;
    while (slots_[i] != nullptr)
      i = (i + 1) & mask;
    slots_[i] = l;
  }
  void grow() {
    slots_.assign(slots_.size() * 2, nullptr);
    for (const auto& l : layouts_)
      place(l.get());
  }

  std::vector<const Layout*> slots_;
  std::vector<std::unique_ptr<Layout>> layouts_;
};

} // namespace

const Layout* intern(c10::ScalarType dtype, c10::IntArrayRef sizes, c10::IntArrayRef strides) {
  static Table* table = new Table; // never destroyed: tensors may outlive static destruction
  return table->find_or_add(dtype, sizes, strides);
}

} // namespace torch_pjrt
