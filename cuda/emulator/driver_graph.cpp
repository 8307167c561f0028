// Functions of libcuda for graphs: work that is pushed to a stream is kept, and pushed again for
// each launch.
#include "capture.hpp"
#include "driver.hpp"
#include "rules.hpp"

using namespace emulator;

namespace {

// A graph that can be launched; launches of it follow each other.
struct Ready {
    Graph graph;
    std::mutex running;
};

// Bit of `CUuserObjectRetain_flags`: the caller's references become the graph's.
constexpr unsigned MOVE = 1;

// Ends a capture in every stream that joined it.
void end(Capture& capture) {
    capture.ended = true;
    for (Stream* stream : capture.streams()) {
        stream->leave_capture();
    }
}

} // namespace

extern "C" {

int cuStreamBeginCapture_v2(Stream* stream, int mode) {
    CALL(CONTEXT)
    if (mode < int(Mode::Global) || mode > int(Mode::Relaxed)) {
        return INVALID_VALUE;
    }
    if (!stream || !stream->begin_capture(mode)) {
        return stream ? CAPTURE_UNSUPPORTED : INVALID_HANDLE;
    }
    return SUCCESS;
}

int cuStreamIsCapturing(Stream* stream, int* status) {
    CALL(CONTEXT)
    return *status = stream ? int(stream->captured()) : 0, SUCCESS;
}

// Dependencies are not told, because no function here makes use of them.
int cuStreamGetCaptureInfo_v2(Stream* stream, int* status, uint64_t* id, Graph** graph, void** dependencies,
                              size_t* count) {
    CALL(CONTEXT)
    if (!stream) {
        return INVALID_HANDLE;
    }
    auto capture = stream->capture();
    *status = int(stream->captured());
    if (capture && id) {
        *id = capture->id;
    }
    if (capture && graph) {
        *graph = capture->graph();
    }
    if (dependencies) {
        *dependencies = nullptr;
    }
    if (count) {
        *count = 0;
    }
    return SUCCESS;
}

int cuThreadExchangeStreamCaptureMode(int* mode) {
    CALL(PLAIN)
    if (*mode < int(Mode::Global) || *mode > int(Mode::Relaxed)) {
        return INVALID_VALUE;
    }
    Mode before = thread_mode();
    thread_mode() = Mode(*mode);
    return *mode = int(before), SUCCESS;
}

int cuStreamEndCapture(Stream* stream, Graph** graph) {
    CALL(CONTEXT)
    *graph = nullptr;
    std::vector<size_t> last;
    auto capture = stream ? stream->capture(&last) : nullptr;
    if (!capture) {
        return stream ? INVALID_VALUE : INVALID_HANDLE;
    }
    if (capture->origin != stream) {
        return CAPTURE_UNMATCHED;
    }
    bool elsewhere = capture->thread != std::this_thread::get_id();
    if (elsewhere && capture->mode != Mode::Relaxed && on(Rule::CaptureModes)) {
        return CAPTURE_WRONG_THREAD;
    }
    bool joined = capture->all_before(last);
    end(*capture);
    if (capture->spoiled || !joined) {
        return capture->spoiled ? CAPTURE_INVALIDATED : CAPTURE_UNJOINED;
    }
    return *graph = capture->release_graph(), SUCCESS;
}

int cuGraphInstantiateWithFlags(std::shared_ptr<Ready>** ready, Graph* graph, unsigned long long) {
    CALL(CONTEXT)
    *ready = new std::shared_ptr<Ready>(std::make_shared<Ready>());
    return (**ready)->graph = *graph, SUCCESS;
}

int cuGraphLaunch(std::shared_ptr<Ready>* ready, Stream* stream) {
    CALL(CONTEXT)
    return enqueue_launch(stream, [ready = *ready] {
        std::lock_guard running(ready->running);
        return ready->graph.run();
    });
}

int cuGraphExecDestroy(std::shared_ptr<Ready>* ready) {
    CALL(CONTEXT)
    return delete ready, SUCCESS;
}

int cuGraphDestroy(Graph* graph) {
    CALL(CONTEXT)
    return delete graph, SUCCESS;
}

int cuUserObjectCreate(UserObject** object, void* data, void (*destroy)(void*), unsigned references, unsigned) {
    CALL(PLAIN)
    return references == 0 ? INVALID_VALUE : (*object = new UserObject(data, destroy, references), SUCCESS);
}

int cuUserObjectRetain(UserObject* object, unsigned references) {
    CALL(PLAIN)
    return object->add(references), SUCCESS;
}

int cuUserObjectRelease(UserObject* object, unsigned references) {
    CALL(PLAIN)
    return object->remove(references), SUCCESS;
}

int cuGraphRetainUserObject(Graph* graph, UserObject* object, unsigned references, unsigned flags) {
    CALL(PLAIN)
    if (!(flags & MOVE)) {
        object->add(references);
    }
    return graph->held.push_back(std::make_shared<Held>(object, references)), SUCCESS;
}

} // extern "C"
