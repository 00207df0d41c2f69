// Factories that PyTorch has no composite kernel for, and whose results are small: made by the CPU's kernel and sent.
#include "guard.h"

#include <ATen/ATen.h>
#include <torch/library.h>

namespace torch_pjrt {
namespace {

c10::TensorOptions on_host(std::optional<c10::ScalarType> dtype) {
  return c10::TensorOptions().dtype(dtype).device(c10::kCPU);
}

at::Tensor send(const at::Tensor& made, std::optional<c10::Device> device) {
  return made.to(c10::Device(c10::kPrivateUse1, index_of(device)));
}

// tril_indices and triu_indices.
template <at::Tensor (*make)(int64_t, int64_t, int64_t, at::TensorOptions)>
at::Tensor triangle_indices(
    int64_t row,
    int64_t col,
    int64_t offset,
    std::optional<c10::ScalarType> dtype,
    std::optional<c10::Layout> /*layout*/,
    std::optional<c10::Device> device,
    std::optional<bool> /*pin_memory*/) {
  return send(make(row, col, offset, on_host(dtype.value_or(at::kLong))), device);
}

at::Tensor kaiser_window_beta(
    int64_t length,
    bool periodic,
    double beta,
    std::optional<c10::ScalarType> dtype,
    std::optional<c10::Layout> /*layout*/,
    std::optional<c10::Device> device,
    std::optional<bool> /*pin_memory*/) {
  return send(at::kaiser_window(length, periodic, beta, on_host(dtype)), device);
}

at::Tensor kaiser_window_periodic(
    int64_t length,
    bool periodic,
    std::optional<c10::ScalarType> dtype,
    std::optional<c10::Layout> layout,
    std::optional<c10::Device> device,
    std::optional<bool> pin_memory) {
  constexpr double kBeta = 12.0; // PyTorch's default
  return kaiser_window_beta(length, periodic, kBeta, dtype, layout, device, pin_memory);
}

at::Tensor kaiser_window(
    int64_t length,
    std::optional<c10::ScalarType> dtype,
    std::optional<c10::Layout> layout,
    std::optional<c10::Device> device,
    std::optional<bool> pin_memory) {
  return kaiser_window_periodic(length, /*periodic=*/true, dtype, layout, device, pin_memory);
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("tril_indices", triangle_indices<at::tril_indices>);
  m.impl("triu_indices", triangle_indices<at::triu_indices>);
  m.impl("kaiser_window", kaiser_window);
  m.impl("kaiser_window.periodic", kaiser_window_periodic);
  m.impl("kaiser_window.beta", kaiser_window_beta);
}

} // namespace
} // namespace torch_pjrt
