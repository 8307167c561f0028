// Schedules with a bug planted: the sender counts one slot more than there are.
#include "slots.cuh"

DEVICE u64 one_less(u64 credit) { return credit == 0 ? 0 : credit - 1; }

#define credit_for(fifo, step) one_less(credit_for(fifo, step))

#include "right.cu"
