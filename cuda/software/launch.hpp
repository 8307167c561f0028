// Kernels by name, and launches of them.
#pragma once

#include "device.hpp"

namespace software {

// The kernel of this name; null if there is none.
const Kernel* find(const char* name);

// Whether so many blocks can be resident at once.
bool fits(unsigned blocks);

// Runs a kernel to its end. 0, or 1: then `unisono_error` says why.
int run(const Kernel& kernel, const void* arguments, unsigned blocks, unsigned threads);

} // namespace software
