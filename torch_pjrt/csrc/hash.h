// A 128-bit rolling hash. Keys of ops and traces are compared by it alone: at 2^40 distinct keys the
// probability of one collision is about 2^-49.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace torch_pjrt {

struct Hash128 {
  uint64_t a = 0x9E3779B97F4A7C15ull;
  uint64_t b = 0xD1B54A32D192ED03ull;

  void add(uint64_t x) {
    a = fold(a ^ x, 0xA0761D6478BD642Full);
    b = fold(b + x, 0xE7037ED1A0B428DBull) ^ x;
  }
  void add(const void* p) {
    add(reinterpret_cast<uint64_t>(p));
  }
  void add(std::string_view s) {
    add(static_cast<uint64_t>(s.size()));
    for (char c : s)
      add(static_cast<uint64_t>(static_cast<unsigned char>(c)));
  }
  bool operator==(const Hash128& o) const {
    return a == o.a && b == o.b;
  }

 private:
  // Multiply to 128 bits and fold the halves: every input bit reaches every output bit.
  static uint64_t fold(uint64_t x, uint64_t k) {
    auto wide = static_cast<unsigned __int128>(x) * k;
    return static_cast<uint64_t>(wide) ^ static_cast<uint64_t>(wide >> 64) ^ x;
  }
};

struct HashOfHash {
  size_t operator()(const Hash128& h) const {
    return h.a;
  }
};

} // namespace torch_pjrt
