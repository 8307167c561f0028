// A stream: a thread of the operating system that does one thing after the other; and events in it.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <stdint.h>
#include <thread>
#include <vector>

namespace emulator {

class Capture;
class Queue;

class Stream {
public:
    // Work of a stream. It returns 0, or the number of an error.
    using Work = std::function<int()>;

    // When work leaves the hardware queue: at its start, or when the work says so, at the latest at
    // its end.
    enum class Leaves { AtStart, Itself };

    // Values of `CUstreamCaptureStatus`.
    enum class Captured : int { No = 0, Yes = 1, Spoiled = 2 };

    // A priority as the driver's: the lower, the sooner; 0 is the last.
    Stream(int gpu, int priority);
    Stream(const Stream&) = delete;
    // Runs all that was pushed, and then destroys the stream. Returns before that.
    void close();

    int gpu() const { return gpu_; }
    // The higher, the sooner; 0 is the last.
    unsigned urgency() const { return unsigned(-priority_); }
    // Adds what is to be done, to the capture if there is one. SUCCESS, or an error if that is
    // spoiled.
    int push(Work work, Leaves leaves = Leaves::AtStart);
    // Returns true if a launch must wait for work to end.
    bool is_full(size_t pending);
    // Waits until less than so much is to be done, unless there is a capture.
    void wait_for_room(size_t pending);
    // Waits for all that was pushed, and returns the first error.
    int synchronize();
    bool idle();
    // Waits for all streams of a GPU.
    static void synchronize_all(int gpu);

    // False if there is a capture.
    bool begin_capture(int mode);
    Captured captured();
    // The capture, and the numbers of the work in it behind which the stream's next work comes.
    std::shared_ptr<Capture> capture(std::vector<size_t>* last = nullptr);
    // Lets later work belong to a capture, behind this work of it. SUCCESS, or an error if the
    // stream has other work before it.
    int join_capture(const std::shared_ptr<Capture>& capture, const std::vector<size_t>& after);
    void leave_capture();
    // Makes a capture fail, and says whether there is one.
    bool spoil_capture();

private:
    // Work that waits in a hardware queue under this number; 0 if it waits in none.
    struct Task {
        Work work;
        Leaves leaves;
        uint64_t number;
    };

    ~Stream();
    // Body of the thread, which also destroys the stream.
    void serve();
    int execute(const Task& task);

    std::mutex mutex_;
    std::condition_variable changed_;
    std::deque<Task> tasks_;
    bool busy_ = false, closing_ = false;
    int error_ = 0;
    std::shared_ptr<Capture> capture_;
    size_t lane_ = 0;
    std::vector<size_t> last_;
    int gpu_, priority_;
    Queue* queue_;
};

class Event {
public:
    explicit Event(bool timed) : timed_(timed) {}
    // Enters a mark into the stream, which supersedes the last one. In a captured stream the event
    // becomes a point of the capture.
    int record(Stream& stream);
    // Waits for the last recorded mark. Without a mark it returns at once.
    void synchronize();
    // Makes what comes later in the stream wait for it.
    int block_stream(Stream& stream);
    bool passed();
    bool timed() const { return timed_; }
    // Computes the time from the other's mark to this one's, both of which have been passed.
    // Returns false if one was never recorded.
    bool since(Event& start, float& milliseconds);
    // The capture in which it was recorded last; null if it was recorded in none.
    std::shared_ptr<Capture> capture();

private:
    // One recording.
    struct Mark {
        std::mutex mutex;
        std::condition_variable changed;
        bool passed = false;
        uint64_t at_ns = 0;

        void pass();
        void wait();
    };

    std::shared_ptr<Mark> last();

    const bool timed_;
    std::mutex mutex_;
    std::shared_ptr<Mark> mark_;
    std::shared_ptr<Capture> capture_;
    // Work of the capture before it.
    std::vector<size_t> after_;
};

} // namespace emulator
