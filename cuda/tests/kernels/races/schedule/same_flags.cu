// Schedules with a bug planted: all lines have the same flag, so that old ones are taken for new.
#include "lines.cuh"

#define flag_of(step) (flag_of(step) == 0 ? 0 : 1u)

#include "right.cu"
