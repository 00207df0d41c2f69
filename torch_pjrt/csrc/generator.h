// The device's random number generator: a seed and a counter of draws.
//
// Draw number n of seed s gets a 128-bit key that depends on (s, n) alone, so what a random op yields does not depend
// on the eager mode or on where a trace is cut.
#pragma once

#include <ATen/core/Generator.h>
#include <c10/core/GeneratorImpl.h>

#include <array>
#include <optional>

namespace torch_pjrt {

struct GeneratorImpl final : c10::GeneratorImpl {
  explicit GeneratorImpl(c10::DeviceIndex device);

  void set_current_seed(uint64_t seed) override;
  void set_offset(uint64_t offset) override;
  uint64_t get_offset() const override;
  uint64_t current_seed() const override;
  uint64_t seed() override;
  void set_state(const c10::TensorImpl& state) override;
  c10::intrusive_ptr<c10::TensorImpl> get_state() const override;

  // The key of the next draw. Takes the generator's own lock.
  std::array<uint32_t, 4> draw();

 private:
  GeneratorImpl* clone_impl() const override;
  uint64_t seed_;
  uint64_t offset_ = 0;
};

const at::Generator& default_generator(c10::DeviceIndex device);
at::Generator make_generator(c10::DeviceIndex device);

// Draws from `generator`, or from the device's default one.
std::array<uint32_t, 4> draw_key(const std::optional<at::Generator>& generator, c10::DeviceIndex device);

} // namespace torch_pjrt
