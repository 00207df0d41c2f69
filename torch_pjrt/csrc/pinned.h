// Host memory that a program asked to be pinned.
#pragma once

#include <c10/core/Allocator.h>

namespace torch_pjrt {

c10::Allocator* pinned_allocator();
void register_pinned_allocator();
// Whether the address lies in a block of that allocator.
bool is_pinned(const void* data);

} // namespace torch_pjrt
