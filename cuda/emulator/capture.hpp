// Captures of streams, and the graphs that they become.
#pragma once

#include "stream.hpp"

#include <atomic>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

namespace emulator {

// What a program gave to a graph to keep: `destroy` runs when its last reference is gone.
class UserObject {
public:
    UserObject(void* data, void (*destroy)(void*), unsigned references)
        : data_(data), destroy_(destroy), references_(references) {}
    void add(unsigned references) { references_ += references; }
    // Deletes the object with its last reference.
    void remove(unsigned references);

private:
    void* data_;
    void (*destroy_)(void*);
    std::atomic<unsigned> references_;
};

// References that a graph has to an object. Graphs made of it share them.
struct Held {
    Held(UserObject* object, unsigned references) : object(object), references(references) {}
    Held(const Held&) = delete;
    ~Held() { object->remove(references); }

    UserObject* const object;
    const unsigned references;
};

// One piece of captured work. It comes after others of the graph, given by their numbers.
struct Node {
    Stream::Work work;
    // Number of the stream from which it was captured. Work of one stream has an order.
    size_t lane;
    std::vector<size_t> after;
};

struct Graph {
    std::vector<Node> nodes;
    std::vector<std::shared_ptr<Held>> held;
    size_t lanes = 1;

    // Does all work, each piece after those that it comes after. Returns the first error.
    int run() const;
};

// Modes of `CUstreamCaptureMode`.
enum class Mode : int { Global = 0, ThreadLocal = 1, Relaxed = 2 };

class Capture {
public:
    Capture(Stream* origin, Mode mode, uint64_t id) : origin(origin), mode(mode), id(id) {}

    Stream* const origin;
    const Mode mode;
    const uint64_t id;
    const std::thread::id thread = std::this_thread::get_id();
    // Set by a call that a capture forbids.
    std::atomic<bool> spoiled{false}, ended{false};

    // Adds a stream, and returns its number.
    size_t join(Stream* stream);
    // Adds work of a stream behind other work, and returns its number.
    size_t add(size_t lane, std::vector<size_t> after, Stream::Work work);
    // Returns true if all work comes before what follows `last`.
    bool all_before(const std::vector<size_t>& last);
    std::vector<Stream*> streams();
    Graph* graph() { return graph_.get(); }
    Graph* release_graph() { return graph_.release(); }

private:
    std::mutex mutex_;
    std::vector<Stream*> streams_;
    std::unique_ptr<Graph> graph_ = std::make_unique<Graph>();
};

// Begins a capture that threads look for.
std::shared_ptr<Capture> begin_capture(Stream* origin, Mode mode);

// Refuses a potentially unsafe call of this thread where a capture forbids it, and spoils the
// capture.
int refuse_unsafe();

// The mode of this thread, which says how much captures forbid it.
Mode& thread_mode();

} // namespace emulator
