// Images of modules: PTX text, and machine code in ELF files.
#pragma once

#include <set>
#include <string>

namespace emulator {

// Returns true for machine code.
bool is_cubin(const void* image);

// Finds the names of an image's kernels. Returns an error for machine code of another architecture,
// and for images without kernels.
int find_kernels(const void* image, std::set<std::string>& kernels);

} // namespace emulator
