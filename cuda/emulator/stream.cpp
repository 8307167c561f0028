#include "stream.hpp"

#include "device.hpp"

#include <algorithm>
#include <chrono>
#include <set>
#include <thread>
#include <utility>
#include <vector>

namespace emulator {

namespace {

// Never destroyed, as streams may be when the process ends.
std::mutex& all_mutex = *new std::mutex;
std::set<Stream*>& all = *new std::set<Stream*>;

} // namespace

Stream::Stream(int gpu, int priority) : gpu_(gpu), priority_(priority) {
    std::lock_guard lock(all_mutex);
    all.insert(this);
    std::thread([this] { serve(); }).detach();
}

Stream::~Stream() {
    std::lock_guard lock(all_mutex);
    all.erase(this);
}

void Stream::close() {
    std::lock_guard lock(mutex_);
    closing_ = true;
    changed_.notify_all();
}

void Stream::push(Work work) {
    std::lock_guard lock(mutex_);
    if (capture_ == Capture::None) {
        queue_.push_back(std::move(work));
    } else {
        captured_.push_back(std::move(work));
    }
    changed_.notify_all();
}

void Stream::wait_for_room(size_t pending) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return queue_.size() < pending || capture_ != Capture::None; });
}

int Stream::synchronize() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return queue_.empty() && !busy_; });
    return error_;
}

bool Stream::idle() {
    std::lock_guard lock(mutex_);
    return queue_.empty() && !busy_;
}

void Stream::wait_all(int gpu, const std::function<std::function<bool(Stream*)>(Stream*)>& condition) {
    std::vector<std::pair<Stream*, std::function<bool(Stream*)>>> left;
    {
        std::lock_guard lock(all_mutex);
        for (Stream* one : all) {
            if (one->gpu_ == gpu) {
                left.emplace_back(one, condition(one));
            }
        }
    }
    // The work may need a new stream, so the lock is not held meanwhile, and a stream may end.
    auto done = [](auto& waited) { return !all.count(waited.first) || waited.second(waited.first); };
    for (;; std::this_thread::sleep_for(std::chrono::microseconds(100))) {
        std::lock_guard lock(all_mutex);
        left.erase(std::remove_if(left.begin(), left.end(), done), left.end());
        if (left.empty()) {
            return;
        }
    }
}

void Stream::synchronize_all(int gpu) {
    wait_all(gpu, [](Stream*) { return [](Stream* one) { return one->idle(); }; });
}

void Stream::wait_for_running(int gpu) {
    wait_all(gpu, [](Stream* one) {
        std::lock_guard lock(one->mutex_);
        uint64_t enough = one->ended_ + one->busy_;
        return [enough](Stream* one) {
            std::lock_guard lock(one->mutex_);
            return one->ended_ >= enough;
        };
    });
}

bool Stream::begin_capture() {
    std::lock_guard lock(mutex_);
    bool first = capture_ == Capture::None;
    capture_ = first ? Capture::Active : capture_;
    return first;
}

int Stream::capturing() {
    std::lock_guard lock(mutex_);
    return int(capture_);
}

bool Stream::spoil_capture() {
    std::lock_guard lock(mutex_);
    capture_ = capture_ == Capture::None ? capture_ : Capture::Spoiled;
    return capture_ != Capture::None;
}

Stream::Capture Stream::end_capture(std::vector<Work>& captured) {
    std::lock_guard lock(mutex_);
    captured.clear();
    captured.swap(captured_);
    return std::exchange(capture_, Capture::None);
}

void Stream::serve() {
    std::unique_lock lock(mutex_);
    for (;;) {
        changed_.wait(lock, [this] { return !queue_.empty() || closing_; });
        if (queue_.empty()) {
            break;
        }
        Work work = std::move(queue_.front());
        queue_.pop_front();
        busy_ = true;
        changed_.notify_all();
        lock.unlock();
        int error = work();
        lock.lock();
        busy_ = false;
        ended_++;
        error_ = error_ == 0 ? error : error_;
        changed_.notify_all();
    }
    lock.unlock();
    delete this;
}

void Event::Mark::pass() {
    std::lock_guard lock(mutex);
    passed = true;
    at_ns = now_ns();
    changed.notify_all();
}

void Event::Mark::wait() {
    std::unique_lock lock(mutex);
    changed.wait(lock, [this] { return passed; });
}

std::shared_ptr<Event::Mark> Event::last() {
    std::lock_guard lock(mutex_);
    return mark_;
}

void Event::record(Stream& stream) {
    auto mark = std::make_shared<Mark>();
    stream.push([mark] { return mark->pass(), 0; });
    std::lock_guard lock(mutex_);
    mark_ = mark;
}

void Event::synchronize() {
    if (auto mark = last()) {
        mark->wait();
    }
}

void Event::block_stream(Stream& stream) {
    if (auto mark = last()) {
        stream.push([mark] { return mark->wait(), 0; });
    }
}

bool Event::passed() {
    auto mark = last();
    if (!mark) {
        return true;
    }
    std::lock_guard lock(mark->mutex);
    return mark->passed;
}

bool Event::since(Event& start, float& milliseconds) {
    auto first = start.last(), second = last();
    if (first && second) {
        milliseconds = float(double(int64_t(second->at_ns - first->at_ns)) / 1e6);
    }
    return first && second;
}

} // namespace emulator
