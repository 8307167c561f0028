// Messages between ranks: a slot of a FIFO holds a head (tag, bytes) and data, or lines with them. All of this is done by one
// thread of a block; barriers are between it and the others, who move the data.
#pragma once

#include "heads.cuh"

// What an act does with slots.
struct Message {
    // Data of the slot that came, and of the one that will go; null where there is none.
    u8* arrived;
    u8* leaving;
    // Length of each block that only the message tells.
    u64 each;
    // Of the next block.
    u64 offset;
    // Of the slots.
    u64 arrived_step;
    u64 leaving_step;
    // Bytes that are all to be written of the one that will go; 0: only those of the message.
    u64 refresh;
};

DEVICE Port& port_to(const Stage& stage, u32 peer) {
    return stage.args.ports[u64(stage.lane) * stage.args.ranks + peer];
}

// Bytes that a message must have that came with `bytes`. Blocks of the caller have their lengths; the rest is shared evenly
// by those of scratch that it is to fill, as they are equally long where an algorithm keeps whole shares there.
DEVICE u64 expected_bytes(const Stage& stage, const Act& act, u64 bytes, u64& each) {
    u64 known = 0;
    u32 unknown = 0;
#pragma unroll 1
    for (u32 index = 0; index < act.operands; index++) {
        const Place& place = stage.args.places[act.first_place + index];
        if (act.verb == RECV && !is_callers(place)) {
            unknown++;
        } else {
            known += bytes_of(stage, place);
        }
    }
    each = unknown != 0 && bytes > known ? (bytes - known) / unknown : 0;
    // No more than there is room for.
    each = each > stage.args.slice_bytes ? 0 : each;
    return known + each * unknown;
}

// Waits for the message that is next. False: given up, or it is another than expected.
DEVICE bool arrive(const Stage& stage, const Act& act, Message& message, u64& bytes) {
    Port& port = port_to(stage, act.peer);
    Doer waiter = doer(stage, act.peer, port.received);
    u8* start = slot(port.into, port.received);
    Head head;
    if (!wait_head(head, stage, port.into, port.received, waiter)) {
        return false;
    }
    if (!is_same_tag(stage, head.tag)) {
        return refuse(waiter, MISMATCH, head.tag, 0, 0);
    }
    u64 expected = expected_bytes(stage, act, head.bytes, message.each);
    if (head.bytes != expected) {
        return refuse(waiter, LENGTH, head.tag, expected, head.bytes);
    }
    bytes = head.bytes;
    message.arrived = start + head_bytes(stage);
    message.arrived_step = port.received;
    return true;
}

// Waits for a free slot and writes the head of a message there.
DEVICE bool depart(const Stage& stage, u32 peer, u64 bytes, Message& message) {
    Port& port = port_to(stage, peer);
    if (!wait_until(port.out.head, credit_for(port.out, port.sent), doer(stage, peer, port.sent))) {
        return false;
    }
    store_head(stage, port.out, port.sent, bytes);
    message.leaving = slot(port.out, port.sent) + head_bytes(stage);
    message.leaving_step = port.sent;
    message.refresh = refreshes(port.sent, port.out.slot_count) ? port.out.slot_bytes - head_bytes(stage) : 0;
    return true;
}

DEVICE u64 bytes_to_send(const Stage& stage, const Act& act) {
    u64 bytes = 0;
#pragma unroll 1
    for (u32 index = 0; index < act.operands; index++) {
        bytes += bytes_of(stage, stage.args.places[act.first_place + index]);
    }
    return bytes;
}

// Waits for all that a message act needs: what is received, then room for what is sent.
DEVICE bool open_message(const Stage& stage, const Act& act, Message& message) {
    if (act.verb == SEND) {
        return depart(stage, act.peer, bytes_to_send(stage, act), message);
    }
    u64 bytes = 0;
    return arrive(stage, act, message, bytes) &&
           (act.forward == NOBODY || depart(stage, act.forward, bytes, message));
}

// Hands over what was written, then gives back what was read; after a barrier.
DEVICE void close_message(const Stage& stage, const Act& act, const Message& message) {
    if (message.leaving) {
        Port& port = port_to(stage, act.verb == SEND ? act.peer : act.forward);
        port.sent++;
        if (stage.args.protocol == SLOTS) {
            store_release(port.out.tail, port.sent);
        }
    }
    if (message.arrived) {
        Port& port = port_to(stage, act.peer);
        port.received++;
        store_release(port.into.head, port.received);
    }
}
