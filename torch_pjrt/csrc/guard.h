// Which device is current, how many there are, and what they are called.
#pragma once

#include <c10/core/Device.h>

#include <optional>
#include <string>
#include <utility>

namespace torch_pjrt {

c10::DeviceIndex current_device();
// The device's index, the current one's where none is given.
c10::DeviceIndex index_of(std::optional<c10::Device> device);
void set_current_device(c10::DeviceIndex device);
// The number of devices, asked of Python once (it starts a PJRT client only where nothing cheaper can tell).
c10::DeviceIndex device_count();
// The index of one more device: several of this process's as one (runtime/meshes.py). Raises if there are too many.
c10::DeviceIndex add_mesh();
int mesh_count();
// Raises unless the device exists; if there is none at all, says why and how to get one.
void check_device(c10::DeviceIndex device);
// (free, total) bytes, asked of the runtime.
std::pair<size_t, size_t> device_memory(c10::DeviceIndex device);
// The PrivateUse1 backend's name in this process.
std::string device_name();
// Runs the device's traces and waits for everything.
void synchronize_device(c10::DeviceIndex device);

} // namespace torch_pjrt
