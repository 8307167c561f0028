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

class Stream {
public:
    // Work of a stream. It returns 0, or the number of an error.
    using Work = std::function<int()>;

    // Values of `CUstreamCaptureStatus`.
    enum class Capture : int { None = 0, Active = 1, Spoiled = 2 };

    // A priority as the driver's: the lower, the sooner; 0 is the last.
    Stream(int gpu, int priority);
    Stream(const Stream&) = delete;
    // Runs all that was pushed, and then destroys the stream. Returns before that.
    void close();

    int gpu() const { return gpu_; }
    // The higher, the sooner; 0 is the last.
    unsigned urgency() const { return unsigned(-priority_); }
    // Adds what is to be done, to the capture if there is one.
    void push(Work work);
    // Waits until less than so much is to be done, unless there is a capture.
    void wait_for_room(size_t pending);
    // Waits for all that was pushed, and returns the first error.
    int synchronize();
    bool idle();
    // Waits for what runs on a GPU now, and not for what is enqueued behind it.
    static void wait_for_running(int gpu);
    // Waits for all streams of a GPU.
    static void synchronize_all(int gpu);

    // False if there is a capture.
    bool begin_capture();
    int capturing();
    // Makes a capture fail, and says whether there is one.
    bool spoil_capture();
    // Returns the captured work.
    Capture end_capture(std::vector<Work>& captured);

private:
    ~Stream();
    // Waits until what `condition` makes of each stream of a GPU is true for it.
    static void wait_all(int gpu, const std::function<std::function<bool(Stream*)>(Stream*)>& condition);
    // Body of the thread, which also destroys the stream.
    void serve();

    std::mutex mutex_;
    std::condition_variable changed_;
    std::deque<Work> queue_;
    bool busy_ = false, closing_ = false;
    int error_ = 0;
    // Pieces of work that have ended.
    uint64_t ended_ = 0;
    Capture capture_ = Capture::None;
    std::vector<Work> captured_;
    int gpu_, priority_;
};

class Event {
public:
    // Enters a mark into the stream, which supersedes the last one.
    void record(Stream& stream);
    // Waits for the last recorded mark. Without a mark it returns at once.
    void synchronize();
    // Makes what comes later in the stream wait for it.
    void block_stream(Stream& stream);
    bool passed();
    // Computes the time from the other's mark to this one's, both of which have been passed.
    // Returns false if one was never recorded.
    bool since(Event& start, float& milliseconds);

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

    std::mutex mutex_;
    std::shared_ptr<Mark> mark_;
};

} // namespace emulator
