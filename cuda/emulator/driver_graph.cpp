// Functions of libcuda for graphs: work that is pushed to a stream is kept, and pushed again for
// each launch.
#include "driver.hpp"

#include <vector>

using namespace emulator;

namespace {

using Graph = std::vector<Stream::Work>;

// A graph that can be launched; launches of it follow each other.
struct Ready {
    Graph graph;
    std::mutex running;
};

constexpr int RELAXED = 2;

// Captures of this thread that are not relaxed.
thread_local int strict = 0;

} // namespace

bool emulator::may_allocate() { return strict == 0; }

extern "C" {

int cuStreamBeginCapture_v2(Stream* stream, int mode) {
    if (!stream || !stream->begin_capture()) {
        return stream ? CAPTURE_UNSUPPORTED : INVALID_HANDLE;
    }
    return strict += mode != RELAXED, SUCCESS;
}

int cuStreamIsCapturing(Stream* stream, int* status) { return *status = stream ? stream->capturing() : 0, SUCCESS; }

int cuStreamEndCapture(Stream* stream, Graph** graph) {
    *graph = nullptr;
    strict -= strict > 0;
    auto captured = std::make_unique<Graph>();
    switch (stream->end_capture(*captured)) {
    case Stream::Capture::None: return INVALID_VALUE;
    case Stream::Capture::Spoiled: return CAPTURE_INVALIDATED;
    default: return *graph = captured.release(), SUCCESS;
    }
}

int cuGraphInstantiateWithFlags(std::shared_ptr<Ready>** ready, Graph* graph, unsigned long long) {
    *ready = new std::shared_ptr<Ready>(std::make_shared<Ready>());
    return (**ready)->graph = *graph, SUCCESS;
}

int cuGraphLaunch(std::shared_ptr<Ready>* ready, Stream* stream) {
    return enqueue_launch(stream, [ready = *ready] {
        std::lock_guard running(ready->running);
        for (const Stream::Work& work : ready->graph) {
            if (int error = work()) {
                return error;
            }
        }
        return int(SUCCESS);
    });
}

int cuGraphExecDestroy(std::shared_ptr<Ready>* ready) { return delete ready, SUCCESS; }

int cuGraphDestroy(Graph* graph) { return delete graph, SUCCESS; }

} // extern "C"
