// Schedules and one-shots as they are, of one type.
#define ONLY int32, Int32
#include "schedule.cu"

#include "one_shot.cu"
