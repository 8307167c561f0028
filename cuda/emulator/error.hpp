// Why a call failed.
#pragma once

#include <string>

namespace emulator {

// Keeps `message` for `unisono_error`; 1.
int fail(const std::string& message);

} // namespace emulator
