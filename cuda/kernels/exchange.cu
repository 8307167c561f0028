// Two ranks swap a buffer through FIFOs, slot by slot: the test of a link before its use.
#include "fifo.cuh"

UNISONO_KERNEL(exchange, Exchange) {
    const Channel& channel = args.channels[blockIdx.x];
    u64 slot_bytes = channel.out.slot_bytes;
    for (u64 at = 0, step = channel.step; at < channel.bytes; at += slot_bytes, step++) {
        u64 left = channel.bytes - at;
        u64 bytes = left < slot_bytes ? left : slot_bytes;
        Waiter waiter = {args.deadline, channel.rank, channel.peer, step};
        if (!send(channel.out, channel.input + at, bytes, waiter) ||
            !receive(channel.into, channel.output + at, bytes, waiter)) {
            return;
        }
    }
}
