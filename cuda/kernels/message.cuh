// Messages between ranks: a slot of a FIFO has a header (tag, bytes) and data, or LL lines of them.
// One thread of a block runs all of this. Barriers are between it and the threads that move the
// data.
#pragma once

#include "msg_header.cuh"

// Slots of an instruction.
struct MessageState {
    // Data of the slot that came, and of the one that will go; null where there is none.
    u8* arrived;
    u8* leaving;
    // Length of each block that only the message tells.
    u64 each;
    // Offset of the next block.
    u64 offset;
    // Steps of the slots.
    u64 arrived_step;
    u64 leaving_step;
    // Bytes that are all to be written of the one that will go; 0: only those of the message.
    u64 refresh;
};

DEVICE Port& port_to(const KernelContext& context, u32 peer) {
    return context.args.ports[u64(context.lane) * context.args.ranks + peer];
}

// Returns the bytes that a received message of `bytes` must have. Blocks of user buffers have known
// lengths. The scratch blocks that it fills share the rest evenly, because algorithms keep whole
// shares there, of equal length.
DEVICE u64 expected_bytes(const KernelContext& context, const Instr& instr, u64 bytes, u64& each) {
    u64 known = 0;
    u32 unknown = 0;
#pragma unroll 1
    for (u32 index = 0; index < instr.operands; index++) {
        const ChunkRef& chunk = context.args.chunks[instr.first_chunk + index];
        if (instr.opcode == RECV && !is_user_buffer(chunk)) {
            unknown++;
        } else {
            known += bytes_of(context, chunk);
        }
    }
    each = unknown != 0 && bytes > known ? (bytes - known) / unknown : 0;
    // A block is never longer than its memory.
    each = each > context.args.slice_bytes ? 0 : each;
    return known + each * unknown;
}

// Waits for the message that is next. False: given up, or it is another than expected.
DEVICE bool receive_header(const KernelContext& context, const Instr& instr, MessageState& message, u64& bytes) {
    Port& port = port_to(context, instr.peer);
    WaitContext waiter = wait_context(context, instr.peer, port.received);
    u8* start = slot(port.into, port.received);
    MessageHeader head;
    if (!wait_header(head, context, port.into, port.received, waiter)) {
        return false;
    }
    if (!is_same_tag(context, head.tag)) {
        return report_mismatch(waiter, MISMATCH, head.tag, 0, 0);
    }
    u64 expected = expected_bytes(context, instr, head.bytes, message.each);
    if (head.bytes != expected) {
        return report_mismatch(waiter, LENGTH_MISMATCH, head.tag, expected, head.bytes);
    }
    bytes = head.bytes;
    message.arrived = start + header_bytes(context);
    message.arrived_step = port.received;
    return true;
}

// Waits for a free slot, and writes the header of a message to it.
DEVICE bool begin_send(const KernelContext& context, u32 peer, u64 bytes, MessageState& message) {
    Port& port = port_to(context, peer);
    if (!wait_until(port.out.head, credit_for(port.out, port.sent), wait_context(context, peer, port.sent))) {
        return false;
    }
    store_header(context, port.out, port.sent, bytes);
    message.leaving = slot(port.out, port.sent) + header_bytes(context);
    message.leaving_step = port.sent;
    message.refresh = refreshes(port.sent, port.out.slot_count) ? port.out.slot_bytes - header_bytes(context) : 0;
    return true;
}

DEVICE u64 bytes_to_send(const KernelContext& context, const Instr& instr) {
    u64 bytes = 0;
#pragma unroll 1
    for (u32 index = 0; index < instr.operands; index++) {
        bytes += bytes_of(context, context.args.chunks[instr.first_chunk + index]);
    }
    return bytes;
}

// Waits for everything a message instruction needs: the received message, then room for the sent
// one.
DEVICE bool open_message(const KernelContext& context, const Instr& instr, MessageState& message) {
    if (instr.opcode == SEND) {
        return begin_send(context, instr.peer, bytes_to_send(context, instr), message);
    }
    u64 bytes = 0;
    return receive_header(context, instr, message, bytes) &&
           (instr.forward == NO_PEER || begin_send(context, instr.forward, bytes, message));
}

// Publishes the written slot, then returns the read slot. Called after a barrier.
DEVICE void close_message(const KernelContext& context, const Instr& instr, const MessageState& message) {
    if (message.leaving) {
        Port& port = port_to(context, instr.opcode == SEND ? instr.peer : instr.forward);
        port.sent++;
        if (context.args.protocol == SIMPLE) {
            store_release(port.out.tail, port.sent);
        }
    }
    if (message.arrived) {
        Port& port = port_to(context, instr.peer);
        port.received++;
        store_release(port.into.head, port.received);
    }
}
