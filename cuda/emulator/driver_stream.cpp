// Functions of libcuda for streams and events.
#include "capture.hpp"
#include "driver.hpp"
#include "launch.hpp"
#include "rules.hpp"
#include "emulator.h"

#include <unistd.h>

using namespace emulator;

namespace {

// Operations that a stream holds before launches wait.
std::atomic<size_t> capacity{1024};

// Bit of `CUevent_flags`.
constexpr unsigned DISABLE_TIMING = 2;

// The waits that a capture forbids end it.
int unless_captured(Stream* stream, int (*wait)(Stream*)) {
    return !stream ? INVALID_HANDLE : stream->spoil_capture() ? CAPTURE_UNSUPPORTED : wait(stream);
}

// A captured event is a point of a graph, and comes at no time.
int unless_captured(Event* event) {
    auto capture = event->capture();
    if (!capture) {
        return SUCCESS;
    }
    return capture->spoiled = true, CAPTURED_EVENT;
}

// Flags of `CUstreamWaitValue_flags`.
template <class Word>
bool holds(uint64_t address, Word value, unsigned flags) {
    Word found = __atomic_load_n((const Word*)address, __ATOMIC_ACQUIRE);
    switch (flags & 3) {
    case 0: return std::make_signed_t<Word>(found - value) >= 0;
    case 1: return found == value;
    case 2: return (found & value) != 0;
    default: return Word(~(found | value)) != 0;
    }
}

// Nothing tells when memory changes, so the stream looks again and again.
template <class Word>
int wait_for_value(Stream* stream, uint64_t address, Word value, unsigned flags) {
    auto wait = [=] {
        while (!holds(address, value, flags)) {
            usleep(20);
        }
        return int(SUCCESS);
    };
    return address % sizeof(Word) ? INVALID_VALUE : enqueue(stream, wait, Stream::Leaves::Itself);
}

template <class Word>
int write_value(Stream* stream, uint64_t address, Word value) {
    auto write = [=] { return __atomic_store_n((Word*)address, value, __ATOMIC_RELEASE), SUCCESS; };
    return address % sizeof(Word) ? INVALID_VALUE : enqueue(stream, write);
}

} // namespace

int emulator::enqueue_launch(Stream* stream, Stream::Work work) {
    if (stream && stream->is_full(capacity)) {
        // The driver holds the lock of the context until there is room, and other calls wait for it.
        std::unique_lock held(context_lock(stream->gpu()), std::defer_lock);
        if (on(Rule::ContextLock)) {
            held.lock();
        }
        stream->wait_for_room(capacity);
    }
    return enqueue(stream, std::move(work), Stream::Leaves::Itself);
}

void unisono_set_stream_capacity(uint32_t count) { capacity = count > 0 ? count : 1; }

extern "C" {

int cuStreamCreate(Stream** stream, unsigned) {
    CALL(CONTEXT)
    return *stream = new Stream(current_gpu(), 0), SUCCESS;
}

int cuCtxGetStreamPriorityRange(int* least, int* greatest) {
    CALL(CONTEXT)
    return *least = 0, *greatest = -int(PRIORITIES - 1), SUCCESS;
}

// A priority outside of the range becomes the nearest one inside.
int cuStreamCreateWithPriority(Stream** stream, unsigned, int priority) {
    CALL(CONTEXT)
    int first = -int(PRIORITIES - 1);
    return *stream = new Stream(current_gpu(), priority < first ? first : priority > 0 ? 0 : priority), SUCCESS;
}

int cuStreamSynchronize(Stream* stream) {
    CALL(CONTEXT | UNSAFE)
    return unless_captured(stream, [](Stream* stream) { return stream->synchronize(); });
}

int cuStreamQuery(Stream* stream) {
    CALL(CONTEXT | UNSAFE)
    return unless_captured(stream, [](Stream* stream) -> int {
        return stream->idle() ? stream->synchronize() : NOT_READY;
    });
}

int cuStreamDestroy_v2(Stream* stream) {
    CALL(CONTEXT)
    return stream ? stream->close(), SUCCESS : INVALID_HANDLE;
}

int cuEventCreate(Event** event, unsigned flags) {
    CALL(CONTEXT)
    return *event = new Event(!(flags & DISABLE_TIMING)), SUCCESS;
}

int cuEventRecord(Event* event, Stream* stream) {
    CALL(CONTEXT)
    return stream ? event->record(*stream) : INVALID_HANDLE;
}

int cuEventSynchronize(Event* event) {
    CALL(CONTEXT | UNSAFE)
    if (int captured = unless_captured(event)) {
        return captured;
    }
    return event->synchronize(), error_left(current_gpu());
}

int cuEventQuery(Event* event) {
    CALL(CONTEXT | UNSAFE)
    if (int captured = unless_captured(event)) {
        return captured;
    }
    return event->passed() ? SUCCESS : NOT_READY;
}

int cuEventElapsedTime(float* milliseconds, Event* start, Event* end) {
    CALL(CONTEXT)
    if (!start->timed() || !end->timed()) {
        return INVALID_HANDLE;
    }
    if (!start->passed() || !end->passed()) {
        return NOT_READY;
    }
    return end->since(*start, *milliseconds) ? SUCCESS : INVALID_HANDLE;
}

int cuEventDestroy_v2(Event* event) {
    CALL(CONTEXT)
    return delete event, SUCCESS;
}

int cuStreamWaitEvent(Stream* stream, Event* event, unsigned) {
    CALL(CONTEXT)
    return stream ? event->block_stream(*stream) : INVALID_HANDLE;
}

int cuStreamWaitValue32_v2(Stream* stream, uint64_t address, uint32_t value, unsigned flags) {
    CALL(CONTEXT)
    return wait_for_value(stream, address, value, flags);
}

int cuStreamWaitValue64_v2(Stream* stream, uint64_t address, uint64_t value, unsigned flags) {
    CALL(CONTEXT)
    return wait_for_value(stream, address, value, flags);
}

int cuStreamWriteValue32_v2(Stream* stream, uint64_t address, uint32_t value, unsigned) {
    CALL(CONTEXT)
    return write_value(stream, address, value);
}

int cuStreamWriteValue64_v2(Stream* stream, uint64_t address, uint64_t value, unsigned) {
    CALL(CONTEXT)
    return write_value(stream, address, value);
}

} // extern "C"
