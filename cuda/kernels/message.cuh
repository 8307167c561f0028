// Messages between ranks: a slot of a FIFO holds a head (tag, bytes) and data. All of this is done by one thread of a block;
// barriers are between it and the others, who move the data.
#pragma once

#include "doer.cuh"
#include "slots.cuh"

// What an act does with slots.
struct Message {
    // Data of the slot that came, and of the one that will go; null where there is none.
    u8* arrived;
    u8* leaving;
    // Length of each block that only the message tells.
    u64 each;
    // Of the next block.
    u64 offset;
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
    if (!wait_until(port.into.tail, port.received + 1, waiter)) {
        return false;
    }
    u8* start = slot(port.into, port.received);
    const u64* head = (const u64*)start;
    load_data(bytes, head + TAG_WORDS);
    if (!is_same_tag(stage, head)) {
        return refuse(waiter, MISMATCH, head, 0, 0);
    }
    u64 expected = expected_bytes(stage, act, bytes, message.each);
    if (bytes != expected) {
        return refuse(waiter, LENGTH, head, expected, bytes);
    }
    message.arrived = start + HEAD_BYTES;
    return true;
}

// Waits for a free slot and writes the head of a message there.
DEVICE bool depart(const Stage& stage, u32 peer, u64 bytes, Message& message) {
    Port& port = port_to(stage, peer);
    if (!wait_until(port.out.head, credit_for(port.out, port.sent), doer(stage, peer, port.sent))) {
        return false;
    }
    u8* start = slot(port.out, port.sent);
    u64* head = (u64*)start;
    store_tag(stage, head);
    store_data(head + TAG_WORDS, bytes);
    message.leaving = start + HEAD_BYTES;
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
        store_release(port.out.tail, ++port.sent);
    }
    if (message.arrived) {
        Port& port = port_to(stage, act.peer);
        store_release(port.into.head, ++port.received);
    }
}
