// The slots of a FIFO.
#pragma once

#include "arguments.cuh"

DEVICE u8* slot(const Fifo& fifo, u64 step) { return fifo.slots + step % fifo.slot_count * fifo.slot_bytes; }

// Value that the head must have reached before a slot is filled in this step.
DEVICE u64 credit_for(const Fifo& fifo, u64 step) { return step < fifo.slot_count ? 0 : step + 1 - fifo.slot_count; }
