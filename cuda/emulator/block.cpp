#include "block.hpp"

#include "driver.hpp"
#include "race.hpp"
#include "rules.hpp"

#include <sched.h>
#include <stdio.h>
#include <time.h>

namespace emulator {

namespace {

thread_local Block* current = nullptr;

} // namespace

const Place& place() { return current->running_->place; }

bool sync_threads(bool vote, const char* file, int line) { return current->wait(vote, file, line); }

void relax() { current->yield(); }

void misaligned(const void* address, unsigned bytes) {
    if (current && on(Rule::Misaligned)) {
        char place[32];
        snprintf(place, sizeof place, "%p", address);
        current->fault(MISALIGNED_ADDRESS, "accesses " + std::to_string(bytes) + " bytes at " + place);
    }
}

void published() {
    if (on(Rule::ReleasePauses) && current->random_.next() % 2 == 0) {
        timespec pause = {0, 100000};
        nanosleep(&pause, nullptr);
    }
}

uint64_t now_ns() {
    timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return uint64_t(time.tv_sec) * 1000000000 + uint64_t(time.tv_nsec);
}

uint64_t Random::next() {
    state += 0x9e3779b97f4a7c15;
    uint64_t mixed = (state ^ state >> 30) * 0xbf58476d1ce4e5b9;
    mixed = (mixed ^ mixed >> 27) * 0x94d049bb133111eb;
    return mixed ^ mixed >> 31;
}

Block::Block(const Grid& grid, unsigned index)
    : grid_(grid), index_(index), random_{grid.seed + index}, threads_(grid.threads), ended_(0),
      running_(nullptr), generation_(0), votes_{true, true} {
    for (unsigned thread = 0; thread < grid.threads; thread++) {
        Place place = {{thread, 0, 0}, {index, 0, 0}, {grid.threads, 1, 1}, {grid.blocks, 1, 1}};
        threads_[thread] = {this, place, State::Ready, nullptr, 0, nullptr};
        ready_.push_back(thread);
    }
}

void Block::enter(void* argument) {
    auto* thread = static_cast<Thread*>(argument);
    thread->block->grid_.body(thread->block->grid_.arguments);
    thread->state = State::Ended;
    race::release(&thread->block->end_token_);
}

std::string Block::run() {
    current = this;
    std::string failure;
    while (failure.empty() && ended_ < threads_.size()) {
        run_ready();
        failure = fault_;
        if (*grid_.lost || !failure.empty()) {
            break;
        }
        if (!ready_.empty()) {
            sched_yield();
        } else if (ended_ < threads_.size()) {
            failure = release();
        }
    }
    race::acquire(&end_token_);
    current = nullptr;
    return failure;
}

// Runs each thread that can until it waits, yields or ends.
void Block::run_ready() {
    for (size_t left = ready_.size(); left > 1; left--) {
        std::swap(ready_[left - 1], ready_[random_.next() % left]);
    }
    size_t kept = 0;
    for (unsigned index : ready_) {
        Thread& thread = threads_[index];
        if (!thread.fiber) {
            thread.fiber = std::make_unique<Fiber>(enter, &thread);
        }
        running_ = &thread;
        thread.fiber->resume();
        if (!fault_.empty()) {
            return;
        }
        if (thread.state == State::Ended) {
            thread.fiber.reset();
            ended_++;
        } else if (thread.state == State::Ready) {
            ready_[kept++] = index;
        }
    }
    ready_.resize(kept);
}

bool Block::wait(bool vote, const char* file, int line) {
    Thread& thread = *running_;
    unsigned turn = generation_ % 2;
    votes_[turn] &= vote;
    thread.file = file;
    thread.line = line;
    thread.state = State::AtBarrier;
    race::release(&order_tokens_[turn]);
    thread.fiber->suspend();
    race::acquire(&order_tokens_[turn]);
    return votes_[turn];
}

void Block::fault(int error, const std::string& what) {
    const Thread& thread = *running_;
    *grid_.error = error;
    fault_ = std::string(grid_.kernel) + ": thread " + std::to_string(thread.place.thread.x) + " of block " +
             std::to_string(index_) + " " + what;
    for (;;) {
        thread.fiber->suspend();
    }
}

void Block::yield() { running_->fiber->suspend(); }

std::string Block::release() {
    const Thread* waiting = nullptr;
    for (const Thread& thread : threads_) {
        waiting = thread.state == State::AtBarrier && !waiting ? &thread : waiting;
    }
    for (const Thread& thread : threads_) {
        if (thread.state == State::Ended || thread.line != waiting->line || thread.file != waiting->file) {
            return std::string("barrier deadlock in ") + grid_.kernel + ": " + describe(*waiting) + ", " +
                   describe(thread);
        }
    }
    generation_++;
    votes_[generation_ % 2] = true;
    for (unsigned index = 0; index < threads_.size(); index++) {
        threads_[index].state = State::Ready;
        ready_.push_back(index);
    }
    return "";
}

std::string Block::describe(const Thread& thread) const {
    std::string name = "thread " + std::to_string(thread.place.thread.x) + " of block " + std::to_string(index_);
    if (thread.state == State::Ended) {
        return name + " has ended";
    }
    return name + " waits at " + thread.file + ":" + std::to_string(thread.line);
}

} // namespace emulator
