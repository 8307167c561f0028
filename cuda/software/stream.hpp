// A stream: a thread of the operating system that does one thing after the other; and events in it.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>

namespace software {

class Stream {
public:
    // What is to be done; 0, or the number of an error.
    using Work = std::function<int()>;

    Stream();
    // Waits for all that was pushed.
    ~Stream();
    Stream(const Stream&) = delete;

    void push(Work work);
    // Waits for all that was pushed; the first error there has been.
    int synchronize();
    bool idle();

private:
    void serve();

    std::mutex mutex_;
    std::condition_variable changed_;
    std::deque<Work> queue_;
    bool busy_ = false, closing_ = false;
    int error_ = 0;
    std::thread thread_;
};

class Event {
public:
    // Enters a mark into the stream, which supersedes the last one.
    void record(Stream& stream);
    // Waits for the mark that was recorded last; none counts as passed.
    void synchronize();
    // Makes what comes later in the stream wait for it.
    void hold_up(Stream& stream);
    bool passed();

private:
    // One recording.
    struct Mark {
        std::mutex mutex;
        std::condition_variable changed;
        bool passed = false;

        void pass();
        void wait();
    };

    std::shared_ptr<Mark> last();

    std::mutex mutex_;
    std::shared_ptr<Mark> mark_;
};

} // namespace software
