#include "sharing.hpp"

#include "driver.hpp"
#include "rules.hpp"

#include <condition_variable>
#include <errno.h>
#include <fcntl.h>
#include <mutex>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <thread>
#include <unistd.h>

namespace emulator {

namespace {

// Whether this is an ordinary file of this user that no other user may access. Another user may have made it.
bool is_private(int file) {
    struct stat found;
    return fstat(file, &found) == 0 && S_ISREG(found.st_mode) && found.st_uid == geteuid() && !(found.st_mode & 077);
}

// A file that the processes of a user share for a GPU. It is in memory, except where a host has no
// folder for shared memory.
int open_file(const char* what, int gpu) {
    std::string name = "unisono-emulator-" + std::to_string(geteuid()) + "-" + what + std::to_string(gpu);
    std::string path;
    int file = -1;
    for (const char* folder : {"/dev/shm/", "/tmp/"}) {
        path = folder + name;
        file = open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0600);
        if (file >= 0 && !is_private(file)) {
            close(file);
            file = -1, errno = EACCES;
        }
        if (file >= 0 || (errno != ENOENT && errno != EROFS && errno != EACCES)) {
            break;
        }
    }
    if (file < 0) {
        perror(("CUDA emulator: " + path).c_str());
        abort();
    }
    return file;
}

void lock(int file) {
    while (flock(file, LOCK_EX) != 0 && errno == EINTR) {
    }
}

// The turns of this process on a GPU. A thread has the lock of all processes for a slice of time
// while a block wants to run, and then leaves it to others.
class Turns {
public:
    void enter(int gpu) {
        std::unique_lock held(mutex_);
        if (!started_) {
            started_ = true;
            std::thread([this, gpu] { serve(gpu); }).detach();
        }
        wanting_++;
        changed_.notify_all();
        changed_.wait(held, [this] { return open_; });
        wanting_--;
        running_++;
    }

    void leave() {
        std::lock_guard held(mutex_);
        running_--;
        changed_.notify_all();
    }

private:
    static constexpr unsigned SLICE_US = 2000, PAUSE_US = 200;

    void serve(int gpu) {
        int file = open_file("slices", gpu);
        for (std::unique_lock held(mutex_);;) {
            changed_.wait(held, [this] { return wanting_ > 0; });
            held.unlock();
            lock(file);
            held.lock();
            open_ = true;
            changed_.notify_all();
            held.unlock();
            usleep(SLICE_US);
            held.lock();
            open_ = false;
            // No block of this process runs while another process has the GPU.
            changed_.wait(held, [this] { return running_ == 0; });
            held.unlock();
            flock(file, LOCK_UN);
            usleep(PAUSE_US);
            held.lock();
        }
    }

    std::mutex mutex_;
    std::condition_variable changed_;
    bool started_ = false, open_ = false;
    unsigned wanting_ = 0, running_ = 0;
};

// Never destroyed, because blocks may run while the process ends.
Turns* turns_of(int gpu) {
    static Turns* const turns = new Turns[GPUS_MAX];
    return turns + gpu;
}

// Room that each process has taken.
struct Taken {
    int process;
    uint64_t room;
};
constexpr unsigned PROCESSES = 64;

// The table that processes share for a GPU, and its lock.
class SharedRoom {
public:
    explicit SharedRoom(int gpu) : file_(open_file("room", gpu)) {
        const size_t bytes = PROCESSES * sizeof(Taken);
        void* mapped = ftruncate(file_, off_t(bytes)) == 0
                           ? mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file_, 0)
                           : MAP_FAILED;
        if (mapped == MAP_FAILED) {
            perror("CUDA emulator: no memory for the room that processes share");
            abort();
        }
        taken_ = static_cast<Taken*>(mapped);
    }

    bool take(uint64_t room, uint64_t limit) {
        Locked locked(*this);
        uint64_t sum = room;
        Taken* own = nullptr;
        for (Taken* each = taken_; each < taken_ + PROCESSES; each++) {
            // A process that has died gives its room back.
            if (each->process && kill(each->process, 0) != 0 && errno == ESRCH) {
                *each = {0, 0};
            }
            sum += each->room;
            own = each->process == getpid() || (!own && !each->process) ? each : own;
        }
        if (!own || sum > limit) {
            return false;
        }
        own->process = getpid();
        own->room += room;
        return true;
    }

    void give(uint64_t room) {
        Locked locked(*this);
        for (Taken* each = taken_; each < taken_ + PROCESSES; each++) {
            if (each->process == getpid()) {
                each->room -= room;
                each->process = each->room ? each->process : 0;
                return;
            }
        }
    }

private:
    // Threads exclude each other by the mutex, processes by the file.
    struct Locked {
        explicit Locked(SharedRoom& room) : room(room), held(room.mutex_) { lock(room.file_); }
        ~Locked() { flock(room.file_, LOCK_UN); }
        SharedRoom& room;
        std::lock_guard<std::mutex> held;
    };

    const int file_;
    std::mutex mutex_;
    Taken* taken_;
};

SharedRoom& room_of(int gpu) {
    static std::mutex mutex;
    static SharedRoom* rooms[GPUS_MAX];
    std::lock_guard held(mutex);
    rooms[gpu] = rooms[gpu] ? rooms[gpu] : new SharedRoom(gpu);
    return *rooms[gpu];
}

} // namespace

Slice::Slice(int gpu) : gpu_(gpu), kept_(on(Rule::TimeSlices)) {
    if (kept_) {
        turns_of(gpu_)->enter(gpu_);
    }
}

Slice::~Slice() {
    if (kept_) {
        turns_of(gpu_)->leave();
    }
}

bool take_shared_room(int gpu, uint64_t room, uint64_t limit) { return room_of(gpu).take(room, limit); }

void give_shared_room(int gpu, uint64_t room) { room_of(gpu).give(room); }

} // namespace emulator
