// Why a call failed.
#pragma once

#include <string>

namespace software {

// Keeps `message` for `unisono_error`; 1.
int fail(const std::string& message);

} // namespace software
