#include "generator.h"

#include "guard.h"

#include <ATen/Functions.h>
#include <ATen/Utils.h>
#include <ATen/core/GeneratorForPrivateuseone.h>
#include <c10/util/Exception.h>

#include <cstring>
#include <mutex>
#include <vector>

namespace torch_pjrt {
namespace {

// splitmix64's finalizer (Steele, Lea, Flood 2014): a bijection in which every input bit flips half the output bits.
uint64_t mix(uint64_t z) {
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ull;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBull;
  return z ^ (z >> 31);
}

} // namespace

GeneratorImpl::GeneratorImpl(c10::DeviceIndex device)
    : c10::GeneratorImpl(c10::Device(c10::kPrivateUse1, device), c10::DispatchKeySet(c10::DispatchKey::PrivateUse1)),
      seed_(c10::default_rng_seed_val) {}

void GeneratorImpl::set_current_seed(uint64_t seed) {
  seed_ = seed;
  offset_ = 0;
}
void GeneratorImpl::set_offset(uint64_t offset) {
  offset_ = offset;
}
uint64_t GeneratorImpl::get_offset() const {
  return offset_;
}
uint64_t GeneratorImpl::current_seed() const {
  return seed_;
}
uint64_t GeneratorImpl::seed() {
  set_current_seed(c10::detail::getNonDeterministicRandom());
  return seed_;
}

// The state is 16 bytes: the seed, then the number of draws, both little-endian.
void GeneratorImpl::set_state(const c10::TensorImpl& state) {
  at::detail::check_rng_state(state);
  TORCH_CHECK(
      state.numel() == 16,
      "RNG state of the ",
      device_name(),
      " device must be 16 bytes (seed and offset), got ",
      state.numel());
  const auto* bytes = static_cast<const uint8_t*>(state.data());
  TORCH_CHECK(bytes != nullptr, "RNG state of the ", device_name(), " device: a tensor without content (a fake one?)");
  std::memcpy(&seed_, bytes, 8);
  std::memcpy(&offset_, bytes + 8, 8);
}
c10::intrusive_ptr<c10::TensorImpl> GeneratorImpl::get_state() const {
  auto state = at::empty({16}, at::TensorOptions().dtype(at::kByte).device(at::kCPU));
  auto* bytes = state.mutable_data_ptr<uint8_t>();
  std::memcpy(bytes, &seed_, 8);
  std::memcpy(bytes + 8, &offset_, 8);
  return state.getIntrusivePtr();
}

std::array<uint32_t, 4> GeneratorImpl::draw() {
  std::lock_guard<std::mutex> lock(mutex_);
  uint64_t stream = mix(seed_ + 0x9E3779B97F4A7C15ull);
  uint64_t key = mix(stream ^ (offset_ * 0xD1B54A32D192ED03ull));
  uint64_t counter = mix(key + 0x9E3779B97F4A7C15ull * (offset_ + 1));
  ++offset_;
  return {
      static_cast<uint32_t>(key),
      static_cast<uint32_t>(key >> 32),
      static_cast<uint32_t>(counter),
      static_cast<uint32_t>(counter >> 32)};
}

GeneratorImpl* GeneratorImpl::clone_impl() const {
  auto* copy = new GeneratorImpl(device_.index());
  copy->seed_ = seed_;
  copy->offset_ = offset_;
  return copy;
}

at::Generator make_generator(c10::DeviceIndex device) {
  return at::make_generator<GeneratorImpl>(device < 0 ? current_device() : device);
}

const at::Generator& default_generator(c10::DeviceIndex device) {
  static auto* mutex = new std::mutex;
  static auto* generators = new std::array<std::optional<at::Generator>, 128>;
  std::lock_guard<std::mutex> lock(*mutex);
  if (device < 0)
    device = current_device();
  if (device >= device_count())
    device = 0; // a mesh draws what a single device would
  auto& g = generators->at(static_cast<size_t>(device));
  if (!g)
    g = make_generator(device);
  return *g;
}

std::array<uint32_t, 4> draw_key(const std::optional<at::Generator>& generator, c10::DeviceIndex device) {
  const auto& g = generator && generator->defined() ? *generator : default_generator(device);
  TORCH_CHECK(
      g.device().type() == c10::kPrivateUse1,
      "Expected a '",
      device_name(),
      "' device type for generator but found '",
      g.device().type(),
      "'");
  return static_cast<GeneratorImpl*>(g.unsafeGetGeneratorImpl())->draw();
}

} // namespace torch_pjrt
