#include "stream.hpp"

namespace software {

Stream::Stream() : thread_([this] { serve(); }) {}

Stream::~Stream() {
    {
        std::lock_guard lock(mutex_);
        closing_ = true;
        changed_.notify_all();
    }
    thread_.join();
}

void Stream::push(Work work) {
    std::lock_guard lock(mutex_);
    queue_.push_back(std::move(work));
    changed_.notify_all();
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

void Stream::serve() {
    std::unique_lock lock(mutex_);
    for (;;) {
        changed_.wait(lock, [this] { return !queue_.empty() || closing_; });
        if (queue_.empty()) {
            return;
        }
        Work work = std::move(queue_.front());
        queue_.pop_front();
        busy_ = true;
        lock.unlock();
        int error = work();
        lock.lock();
        busy_ = false;
        error_ = error_ == 0 ? error : error_;
        changed_.notify_all();
    }
}

void Event::Mark::pass() {
    std::lock_guard lock(mutex);
    passed = true;
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

void Event::hold_up(Stream& stream) {
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

} // namespace software
