#include "stream.hpp"

#include "capture.hpp"
#include "device.hpp"
#include "driver.hpp"
#include "queues.hpp"
#include "rules.hpp"

#include <algorithm>
#include <chrono>
#include <iterator>
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

Stream::Stream(int gpu, int priority) : gpu_(gpu), priority_(priority), queue_(Queue::of_next_stream(gpu)) {
    std::lock_guard lock(all_mutex);
    all.insert(this);
    std::thread([this] { serve(); }).detach();
}

Stream::~Stream() {
    std::lock_guard lock(all_mutex);
    all.erase(this);
}

void Stream::close() {
    // A capture cannot go on without one of its streams.
    spoil_capture();
    leave_capture();
    std::lock_guard lock(mutex_);
    closing_ = true;
    changed_.notify_all();
}

int Stream::push(Work work, Leaves leaves) {
    std::lock_guard lock(mutex_);
    if (capture_) {
        last_ = {capture_->add(lane_, last_, std::move(work))};
        return capture_->spoiled ? CAPTURE_INVALIDATED : SUCCESS;
    }
    tasks_.push_back({std::move(work), leaves, on(Rule::HardwareQueues) ? queue_->append() : 0});
    changed_.notify_all();
    return SUCCESS;
}

bool Stream::is_full(size_t pending) {
    std::lock_guard lock(mutex_);
    return tasks_.size() >= pending && !capture_;
}

void Stream::wait_for_room(size_t pending) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return tasks_.size() < pending || capture_; });
}

int Stream::synchronize() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return tasks_.empty() && !busy_; });
    return error_;
}

bool Stream::idle() {
    std::lock_guard lock(mutex_);
    return tasks_.empty() && !busy_;
}

void Stream::synchronize_all(int gpu) {
    std::vector<Stream*> left;
    {
        std::lock_guard lock(all_mutex);
        std::copy_if(all.begin(), all.end(), std::back_inserter(left), [&](Stream* one) { return one->gpu_ == gpu; });
    }
    // The work may need a new stream, so the lock is not held meanwhile, and a stream may end.
    auto done = [](Stream* one) { return !all.count(one) || one->idle(); };
    for (;; std::this_thread::sleep_for(std::chrono::microseconds(100))) {
        std::lock_guard lock(all_mutex);
        left.erase(std::remove_if(left.begin(), left.end(), done), left.end());
        if (left.empty()) {
            return;
        }
    }
}

bool Stream::begin_capture(int mode) {
    std::lock_guard lock(mutex_);
    if (capture_) {
        return false;
    }
    capture_ = emulator::begin_capture(this, Mode(mode));
    lane_ = capture_->join(this);
    last_.clear();
    return true;
}

Stream::Captured Stream::captured() {
    std::lock_guard lock(mutex_);
    return !capture_ ? Captured::No : capture_->spoiled ? Captured::Spoiled : Captured::Yes;
}

std::shared_ptr<Capture> Stream::capture(std::vector<size_t>* last) {
    std::lock_guard lock(mutex_);
    if (last) {
        *last = last_;
    }
    return capture_;
}

int Stream::join_capture(const std::shared_ptr<Capture>& capture, const std::vector<size_t>& after) {
    std::lock_guard lock(mutex_);
    if (capture->ended || (capture_ && capture_ != capture)) {
        return CAPTURE_ISOLATION;
    }
    if (!capture_) {
        capture_ = capture;
        lane_ = capture->join(this);
        last_.clear();
    }
    last_.insert(last_.end(), after.begin(), after.end());
    return SUCCESS;
}

void Stream::leave_capture() {
    std::lock_guard lock(mutex_);
    capture_ = nullptr;
    changed_.notify_all();
}

bool Stream::spoil_capture() {
    std::lock_guard lock(mutex_);
    return capture_ ? capture_->spoiled = true : false;
}

// Does work when the hardware queue has come to it.
int Stream::execute(const Task& task) {
    Departure departure(queue_, task.number);
    if (task.number) {
        queue_->wait_for(task.number);
    }
    if (task.leaves == Leaves::AtStart) {
        departure.leave();
    }
    Departure::give(&departure);
    int error = task.work();
    Departure::give(nullptr);
    departure.leave();
    return error;
}

void Stream::serve() {
    std::unique_lock lock(mutex_);
    for (;;) {
        changed_.wait(lock, [this] { return !tasks_.empty() || closing_; });
        if (tasks_.empty()) {
            break;
        }
        busy_ = true;
        {
            Task task = std::move(tasks_.front());
            tasks_.pop_front();
            changed_.notify_all();
            lock.unlock();
            int error = execute(task);
            lock.lock();
            error_ = error_ == 0 ? error : error_;
        }
        busy_ = false;
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

int Event::record(Stream& stream) {
    std::vector<size_t> after;
    auto capture = stream.capture(&after);
    if (capture) {
        std::lock_guard lock(mutex_);
        capture_ = capture, after_ = after;
        return capture->spoiled ? CAPTURE_INVALIDATED : SUCCESS;
    }
    auto mark = std::make_shared<Mark>();
    int error = stream.push([mark] { return mark->pass(), 0; });
    std::lock_guard lock(mutex_);
    mark_ = mark, capture_ = nullptr;
    return error;
}

std::shared_ptr<Capture> Event::capture() {
    std::lock_guard lock(mutex_);
    return capture_;
}

void Event::synchronize() {
    if (auto mark = last()) {
        mark->wait();
    }
}

int Event::block_stream(Stream& stream) {
    {
        std::lock_guard lock(mutex_);
        if (capture_) {
            return stream.join_capture(capture_, after_);
        }
    }
    if (stream.spoil_capture()) {
        // The graph would depend on work outside of it.
        return CAPTURE_ISOLATION;
    }
    auto mark = last();
    return mark ? stream.push([mark] { return mark->wait(), 0; }, Stream::Leaves::Itself) : SUCCESS;
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
