// Slots between two ranks. The sender stores data, all its threads meet, and one releases the tail.
// One thread of the receiver acquires the tail, all meet, load the data, and meet again. Then one
// releases the head, which returns the slot.
#pragma once

#include "copy.cuh"
#include "slots.cuh"
#include "wait.cuh"

// Called by all threads of a block. Returns false after giving up the wait, with nothing sent.
DEVICE bool send(const Fifo& fifo, const u8* from, u64 bytes, const Waiter& waiter) {
    u64 step = waiter.step;
    bool room = threadIdx.x != 0 || wait_until(fifo.head, credit_for(fifo, step), waiter);
    if (!__syncthreads_and(room)) {
        return false;
    }
    copy_block(slot(fifo, step), from, bytes);
    __syncthreads();
    if (threadIdx.x == 0) {
        store_release(fifo.tail, step + 1);
    }
    return true;
}

// Called by all threads of a block. Returns false after giving up the wait, with nothing received.
DEVICE bool receive(const Fifo& fifo, u8* to, u64 bytes, const Waiter& waiter) {
    bool there = threadIdx.x != 0 || wait_until(fifo.tail, waiter.step + 1, waiter);
    if (!__syncthreads_and(there)) {
        return false;
    }
    copy_block(to, slot(fifo, waiter.step), bytes);
    __syncthreads();
    if (threadIdx.x == 0) {
        store_release(fifo.head, waiter.step + 1);
    }
    return true;
}
