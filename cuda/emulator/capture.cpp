#include "capture.hpp"

#include "driver.hpp"
#include "queues.hpp"
#include "rules.hpp"

#include <algorithm>
#include <condition_variable>

namespace emulator {

namespace {

// Captures under way. Never destroyed, because threads may capture while the process ends.
std::mutex& active_mutex = *new std::mutex;
std::vector<std::shared_ptr<Capture>>& active = *new std::vector<std::shared_ptr<Capture>>;
std::atomic<size_t> active_count{0};

// Execution of a graph: each stream that was captured is a thread.
class Execution {
public:
    explicit Execution(const Graph& graph) : graph_(graph), done_(graph.nodes.size()) {}

    int run() {
        std::vector<std::thread> others;
        for (size_t lane = 1; lane < graph_.lanes; lane++) {
            others.emplace_back([this, lane] { run_lane(lane, nullptr); });
        }
        // The hardware queue holds the graph until its last work has started.
        run_lane(0, Departure::take());
        std::for_each(others.begin(), others.end(), [](std::thread& other) { other.join(); });
        return error_;
    }

private:
    void run_lane(size_t lane, Departure* departure) {
        for (size_t index = 0; index < graph_.nodes.size(); index++) {
            const Node& node = graph_.nodes[index];
            if (node.lane != lane) {
                continue;
            }
            {
                std::unique_lock lock(mutex_);
                changed_.wait(lock, [&] {
                    return std::all_of(node.after.begin(), node.after.end(), [&](size_t at) { return done_[at]; });
                });
            }
            Departure::give(index + 1 == graph_.nodes.size() ? departure : nullptr);
            int error = error_ == 0 ? node.work() : 0;
            std::lock_guard lock(mutex_);
            error_ = error_ == 0 ? error : error_.load();
            done_[index] = true;
            changed_.notify_all();
        }
    }

    const Graph& graph_;
    std::mutex mutex_;
    std::condition_variable changed_;
    std::vector<bool> done_;
    std::atomic<int> error_{0};
};

} // namespace

void UserObject::remove(unsigned references) {
    if (references_.fetch_sub(references) == references) {
        // A driver calls it from a thread of its own.
        std::thread([data = data_, destroy = destroy_] { destroy(data); }).detach();
        delete this;
    }
}

int Graph::run() const { return Execution(*this).run(); }

size_t Capture::join(Stream* stream) {
    std::lock_guard lock(mutex_);
    streams_.push_back(stream);
    graph_->lanes = streams_.size();
    return streams_.size() - 1;
}

size_t Capture::add(size_t lane, std::vector<size_t> after, Stream::Work work) {
    std::lock_guard lock(mutex_);
    graph_->nodes.push_back({std::move(work), lane, std::move(after)});
    return graph_->nodes.size() - 1;
}

bool Capture::all_before(const std::vector<size_t>& last) {
    std::lock_guard lock(mutex_);
    std::vector<bool> before(graph_->nodes.size());
    for (std::vector<size_t> open = last; !open.empty();) {
        size_t index = open.back();
        open.pop_back();
        if (!before[index]) {
            before[index] = true;
            const std::vector<size_t>& after = graph_->nodes[index].after;
            open.insert(open.end(), after.begin(), after.end());
        }
    }
    return std::find(before.begin(), before.end(), false) == before.end();
}

std::vector<Stream*> Capture::streams() {
    std::lock_guard lock(mutex_);
    return streams_;
}

std::shared_ptr<Capture> begin_capture(Stream* origin, Mode mode) {
    static std::atomic<uint64_t> last{0};
    auto capture = std::make_shared<Capture>(origin, mode, ++last);
    std::lock_guard lock(active_mutex);
    active.push_back(capture);
    active_count = active.size();
    return capture;
}

int refuse_unsafe() {
    if (active_count == 0 || !on(Rule::CaptureModes) || thread_mode() == Mode::Relaxed) {
        return SUCCESS;
    }
    std::lock_guard lock(active_mutex);
    auto ended = [](const std::shared_ptr<Capture>& capture) { return capture->ended.load(); };
    active.erase(std::remove_if(active.begin(), active.end(), ended), active.end());
    active_count = active.size();
    bool refused = false;
    for (const auto& capture : active) {
        bool own = capture->thread == std::this_thread::get_id();
        bool forbids = own ? capture->mode != Mode::Relaxed
                           : capture->mode == Mode::Global && thread_mode() == Mode::Global;
        if (forbids) {
            capture->spoiled = refused = true;
        }
    }
    return refused ? CAPTURE_UNSUPPORTED : SUCCESS;
}

Mode& thread_mode() {
    thread_local Mode mode = Mode::Global;
    return mode;
}

} // namespace emulator
