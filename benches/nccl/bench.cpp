// NCCL on one GPU: several ranks in one process, beside which unisono is measured.
//
// bench --ranks N --collective NAME[,..] --bytes LIST --dtype T --in-place yes|no|both --registered
//       --modes enqueued,graph --seconds LIMIT --library FILE
// bench --version
//
// Each row is a JSON object on a line of its own, written as soon as it is measured. `bytes` counts
// as in nccl-tests: the buffers of all ranks together in all_gather, reduce_scatter and all_to_all.
// The exit status is 0, 2 for wrong options, 3 after a row with an error, 4 after a wrong result,
// and 5 where the time is over. A cell that hangs ends the process, because the GPU then stays busy.
#include "elements.hpp"
#include "options.hpp"

#include <algorithm>
#include <chrono>
#include <mutex>
#include <sstream>
#include <stdio.h>
#include <stdlib.h>
#include <thread>
#include <unistd.h>

using namespace bench;
using Clock = std::chrono::steady_clock;

namespace {

// What a row is about.
struct Cell {
    std::string collective;
    int ranks;
    size_t bytes;
    const Type* type;
    bool in_place, registered;
};

std::string quoted(const std::string& text) {
    std::string safe = "\"";
    for (char each : text) {
        safe += each == '"' || each == '\\' ? std::string("\\") + each : std::string(1, each < ' ' ? ' ' : each);
    }
    return safe + "\"";
}

std::mutex output_mutex;

// Writes a line at once: a process that is killed later has lost no row.
void write(const std::string& fields) {
    std::lock_guard lock(output_mutex);
    printf("{\"library\":\"nccl\",%s}\n", fields.c_str());
    fflush(stdout);
}

std::string fields(const Cell& cell) {
    std::ostringstream text;
    text << "\"collective\":" << quoted(cell.collective) << ",\"ranks\":" << cell.ranks << ",\"bytes\":" << cell.bytes
         << ",\"dtype\":" << quoted(cell.type->name) << ",\"in_place\":" << (cell.in_place ? "true" : "false")
         << ",\"registered\":" << (cell.registered ? "true" : "false");
    return text.str();
}

// Ends the process when its time is over, with a row that names the cell.
class Watchdog {
public:
    explicit Watchdog(double seconds) : limit(seconds) {
        std::thread([this] {
            std::this_thread::sleep_for(std::chrono::duration<double>(limit));
            fail("the time limit is over");
            _exit(5);
        }).detach();
    }
    void name(const std::string& cell) {
        std::lock_guard lock(mutex);
        now = cell;
    }
    // Writes a row with an error in the current cell.
    void fail(const std::string& why) {
        std::lock_guard lock(mutex);
        write((now.empty() ? "" : now + ",") + "\"error\":" + quoted(why));
    }

private:
    double limit;
    std::mutex mutex;
    std::string now;
};

// The communicators of all ranks, and their streams.
class World {
public:
    const Driver& cu;
    const Nccl& nccl;
    const int ranks;
    std::vector<ncclComm_t> comms;
    std::vector<CUstream> streams;

    World(const Driver& cu, const Nccl& nccl, int ranks)
        : cu(cu), nccl(nccl), ranks(ranks), comms(ranks), streams(ranks), ends(ranks) {
        CUdevice device;
        CUcontext context;
        CU(cu, cuDeviceGet, &device, 0);
        CU(cu, cuDevicePrimaryCtxRetain, &context, device);
        CU(cu, cuCtxSetCurrent, context);
        for (int rank = 0; rank < ranks; rank++) {
            CU(cu, cuStreamCreate, &streams[rank], CU_STREAM_NON_BLOCKING);
            CU(cu, cuEventCreate, &ends[rank], CU_EVENT_DEFAULT);
        }
        CU(cu, cuEventCreate, &begin, CU_EVENT_DEFAULT);
        std::vector<int> devices(ranks, 0);
        NCCL(nccl, ncclCommInitAll, comms.data(), ranks, devices.data());
    }

    void synchronize() const {
        for (CUstream stream : streams) {
            CU(cu, cuStreamSynchronize, stream);
        }
    }

    // All streams continue after what the first one has now.
    void fork() const {
        CU(cu, cuEventRecord, begin, streams[0]);
        for (int rank = 1; rank < ranks; rank++) {
            CU(cu, cuStreamWaitEvent, streams[rank], begin, 0);
        }
    }

    // The first stream continues after what all others have now.
    void join() const {
        for (int rank = 1; rank < ranks; rank++) {
            CU(cu, cuEventRecord, ends[rank], streams[rank]);
            CU(cu, cuStreamWaitEvent, streams[0], ends[rank], 0);
        }
    }

    // Microseconds on the GPU of work on all streams, until the last of them ends.
    template <typename Work> double time(Work work) const {
        synchronize();
        fork();
        work();
        join();
        CU(cu, cuEventRecord, ends[0], streams[0]);
        synchronize();
        float milliseconds = 0;
        CU(cu, cuEventElapsedTime, &milliseconds, begin, ends[0]);
        return milliseconds * 1000.0;
    }

private:
    CUevent begin{};
    std::vector<CUevent> ends;
};

// Buffers of all ranks for one cell.
class Buffers {
public:
    Buffers(const World& world, const Cell& cell) : world(world), cell(cell), windows(2 * world.ranks) {
        bool total = is_total(cell.collective);
        count = std::max<size_t>(1, cell.bytes / cell.type->size / (total ? cell.ranks : 1));
        bool gathers = cell.collective == "all_gather", scatters = cell.collective == "reduce_scatter";
        bool exchanges = cell.collective == "all_to_all";
        in_count = scatters || exchanges ? count * cell.ranks : count;
        out_count = gathers || exchanges ? count * cell.ranks : count;
        size_t size = std::max(in_count, out_count) * cell.type->size;
        for (int rank = 0; rank < world.ranks; rank++) {
            inputs.push_back(allocate(size));
            outputs.push_back(cell.in_place ? inputs.back() : allocate(size));
        }
        if (cell.registered) {
            register_all(size);
        }
    }
    Buffers(const Buffers&) = delete;
    ~Buffers() {
        for (int rank = 0; rank < world.ranks; rank++) {
            for (int each : {2 * rank, 2 * rank + 1}) {
                if (windows[each]) {
                    world.nccl.ncclCommWindowDeregister_(world.comms[rank], windows[each]);
                }
            }
        }
        for (char* memory : allocated) {
            cell.registered ? (void)world.nccl.ncclMemFree_(memory) : (void)world.cu.cuMemFree_(CUdeviceptr(memory));
        }
    }

    static bool is_total(const std::string& collective) {
        return collective == "all_gather" || collective == "reduce_scatter" || collective == "all_to_all";
    }

    // In place, the input of all_gather and the output of reduce_scatter are a rank's share.
    char* input(int rank) const { return inputs[rank] + (cell.collective == "all_gather" ? share(rank) : 0); }
    char* output(int rank) const { return outputs[rank] + (cell.collective == "reduce_scatter" ? share(rank) : 0); }

    void fill() const {
        size_t piece = PERIOD * std::max<size_t>(1, (size_t(4) << 20) / (PERIOD * cell.type->size));
        for (int rank = 0; rank < world.ranks; rank++) {
            auto value = [rank](size_t index) { return bench::input(rank, index); };
            auto bytes = elements(*cell.type, 0, std::min(piece, in_count), value);
            for (size_t first = 0; first < in_count; first += piece) {
                size_t length = std::min(piece, in_count - first) * cell.type->size;
                CU(world.cu, cuMemcpyHtoD, CUdeviceptr(input(rank) + first * cell.type->size), bytes.data(), length);
            }
        }
    }

    // Elements that are wrong, of at most 64 stretches of each output, the first and the last among them.
    size_t wrong() const {
        const size_t STRETCHES = 64, LENGTH = 16384;
        size_t wrong = 0;
        for (int rank = 0; rank < world.ranks; rank++) {
            if (cell.collective == "reduce" && rank != 0) {
                continue;
            }
            size_t length = std::min(LENGTH, out_count);
            size_t stretches = std::min(STRETCHES, (out_count + length - 1) / length);
            for (size_t index = 0; index < stretches; index++) {
                size_t first = stretches == 1 ? 0 : (out_count - length) / (stretches - 1) * index;
                wrong += wrong_in(rank, index + 1 == stretches ? out_count - length : first, length);
            }
        }
        return wrong;
    }

    void enqueue(int rank) const {
        const Nccl& nccl = world.nccl;
        ncclComm_t comm = world.comms[rank];
        auto stream = reinterpret_cast<cudaStream_t>(world.streams[rank]);
        ncclDataType_t type = cell.type->type;
        char *in = input(rank), *out = output(rank);
        if (cell.collective == "all_reduce") {
            NCCL(nccl, ncclAllReduce, in, out, count, type, ncclSum, comm, stream);
        } else if (cell.collective == "all_gather") {
            NCCL(nccl, ncclAllGather, in, out, count, type, comm, stream);
        } else if (cell.collective == "reduce_scatter") {
            NCCL(nccl, ncclReduceScatter, in, out, count, type, ncclSum, comm, stream);
        } else if (cell.collective == "broadcast") {
            NCCL(nccl, ncclBroadcast, in, out, count, type, 0, comm, stream);
        } else if (cell.collective == "reduce") {
            NCCL(nccl, ncclReduce, in, out, count, type, ncclSum, 0, comm, stream);
        } else if (cell.collective == "all_to_all") {
            NCCL(nccl, ncclAlltoAll, in, out, count, type, comm, stream);
        } else {
            NCCL(nccl, ncclSend, in, count, type, (rank + 1) % cell.ranks, comm, stream);
            NCCL(nccl, ncclRecv, out, count, type, (rank + cell.ranks - 1) % cell.ranks, comm, stream);
        }
    }

private:
    const World& world;
    const Cell& cell;
    size_t count, in_count, out_count;
    std::vector<char*> inputs, outputs, allocated;
    std::vector<ncclWindow_t> windows;

    size_t share(int rank) const { return cell.in_place ? rank * count * cell.type->size : 0; }

    char* allocate(size_t size) {
        if (cell.registered) {
            void* memory = nullptr;
            NCCL(world.nccl, ncclMemAlloc, &memory, size);
            allocated.push_back(static_cast<char*>(memory));
        } else {
            CUdeviceptr memory = 0;
            CU(world.cu, cuMemAlloc, &memory, size);
            allocated.push_back(reinterpret_cast<char*>(memory));
        }
        return allocated.back();
    }

    // Registration is a collective, so the calls of all ranks are one group.
    void register_all(size_t size) {
        for (int which : {0, 1}) {
            if (which == 1 && cell.in_place) {
                continue;
            }
            NCCL(world.nccl, ncclGroupStart);
            for (int rank = 0; rank < world.ranks; rank++) {
                char* memory = which ? outputs[rank] : inputs[rank];
                NCCL(world.nccl, ncclCommWindowRegister, world.comms[rank], memory, size, &windows[2 * rank + which],
                     NCCL_WIN_COLL_SYMMETRIC);
            }
            NCCL(world.nccl, ncclGroupEnd);
        }
    }

    // What rank's output has at an index.
    int expected(int rank, size_t index) const {
        auto sum = [&](size_t at) {
            int total = 0;
            for (int each = 0; each < cell.ranks; each++) {
                total += bench::input(each, at);
            }
            return total;
        };
        if (cell.collective == "all_reduce" || cell.collective == "reduce") {
            return sum(index);
        } else if (cell.collective == "reduce_scatter") {
            return sum(rank * count + index);
        } else if (cell.collective == "all_gather") {
            return bench::input(int(index / count), index % count);
        } else if (cell.collective == "all_to_all") {
            return bench::input(int(index / count), rank * count + index % count);
        } else if (cell.collective == "broadcast") {
            return bench::input(0, index);
        }
        return bench::input((rank + cell.ranks - 1) % cell.ranks, index);
    }

    size_t wrong_in(int rank, size_t first, size_t length) const {
        size_t size = cell.type->size, wrong = 0;
        std::vector<char> found(length * size);
        CU(world.cu, cuMemcpyDtoH, found.data(), CUdeviceptr(output(rank) + first * size), found.size());
        auto wanted = elements(*cell.type, first, length, [&](size_t index) { return expected(rank, index); });
        for (size_t index = 0; index < length; index++) {
            wrong += memcmp(&found[index * size], &wanted[index * size], size) != 0;
        }
        return wrong;
    }
};

// One call of all ranks.
void call(const World& world, const Buffers& buffers) {
    NCCL(world.nccl, ncclGroupStart);
    for (int rank = 0; rank < world.ranks; rank++) {
        buffers.enqueue(rank);
    }
    NCCL(world.nccl, ncclGroupEnd);
}

double median(std::vector<double> values) {
    std::sort(values.begin(), values.end());
    return values[values.size() / 2];
}

const int ROUNDS = 5;
const int REPLAYED = 20;

// Calls of a round: some 10 ms of them, at least 5 and at most 200.
int calls(double microseconds) { return int(std::clamp(10000.0 / std::max(microseconds, 1.0), 5.0, 200.0)); }

void write_time(const Cell& cell, const char* mode, double microseconds, double host, size_t wrong) {
    std::ostringstream text;
    text.precision(6);
    text << fields(cell) << ",\"mode\":\"" << mode << "\",\"us\":" << microseconds << ",\"host_us\":" << host
         << ",\"wrong\":" << wrong;
    write(text.str());
}

// Measures calls that are enqueued one after another.
void measure_enqueued(const World& world, const Buffers& buffers, const Cell& cell, size_t wrong) {
    auto repeat = [&](int times) {
        for (int index = 0; index < times; index++) {
            call(world, buffers);
        }
    };
    repeat(5);
    int times = calls(world.time([&] { repeat(5); }) / 5);
    std::vector<double> gpu, host;
    for (int round = 0; round < ROUNDS; round++) {
        gpu.push_back(world.time([&] {
            auto start = Clock::now();
            repeat(times);
            host.push_back(std::chrono::duration<double, std::micro>(Clock::now() - start).count() / times);
        }) / times);
    }
    write_time(cell, "enqueued", median(gpu), median(host), wrong);
}

// Measures replays of a graph of 20 calls.
void measure_graph(const World& world, const Buffers& buffers, const Cell& cell, size_t wrong) {
    const Driver& cu = world.cu;
    CUgraph graph = nullptr;
    CUgraphExec replay = nullptr;
    world.synchronize();
    CU(cu, cuStreamBeginCapture, world.streams[0], CU_STREAM_CAPTURE_MODE_RELAXED);
    world.fork();
    for (int index = 0; index < REPLAYED; index++) {
        call(world, buffers);
    }
    world.join();
    CU(cu, cuStreamEndCapture, world.streams[0], &graph);
    CU(cu, cuGraphInstantiateWithFlags, &replay, graph, 0);
    auto launch = [&](int times) {
        for (int index = 0; index < times; index++) {
            CU(cu, cuGraphLaunch, replay, world.streams[0]);
        }
    };
    launch(1);
    int times = std::max(1, calls(world.time([&] { launch(1); }) / REPLAYED) / REPLAYED);
    std::vector<double> gpu, host;
    for (int round = 0; round < ROUNDS; round++) {
        gpu.push_back(world.time([&] {
            auto start = Clock::now();
            launch(times);
            host.push_back(std::chrono::duration<double, std::micro>(Clock::now() - start).count());
        }) / times / REPLAYED);
    }
    write_time(cell, "graph", median(gpu), median(host) / times / REPLAYED, wrong);
    CU(cu, cuGraphExecDestroy, replay);
    CU(cu, cuGraphDestroy, graph);
}

// Returns the number of wrong elements.
size_t measure(const World& world, const Cell& cell, const std::vector<std::string>& modes) {
    Buffers buffers(world, cell);
    buffers.fill();
    call(world, buffers);
    world.synchronize();
    size_t wrong = buffers.wrong();
    for (const std::string& mode : modes) {
        (mode == "graph" ? measure_graph : measure_enqueued)(world, buffers, cell, wrong);
    }
    return wrong;
}

// Rows that cannot be: NCCL exchanges no shares in place.
bool is_possible(const Cell& cell) {
    return !cell.in_place || (cell.collective != "all_to_all" && cell.collective != "sendrecv");
}

int measure_all(const Options& options, Watchdog& watchdog) {
    Nccl nccl(options.library);
    Driver cu;
    CU(cu, cuInit, 0);
    World world(cu, nccl, options.ranks);
    size_t wrong = 0;
    for (const std::string& collective : options.collectives) {
        for (size_t bytes : options.bytes) {
            for (bool in_place : options.in_place) {
                Cell cell{collective, options.ranks, bytes, options.type, in_place, options.registered};
                watchdog.name(fields(cell));
                wrong += is_possible(cell) ? measure(world, cell, options.modes) : 0;
            }
        }
    }
    return wrong ? 4 : 0;
}

} // namespace

int main(int count, char** arguments) {
    Options options = read_options(count, arguments);
    // Settings of the user stay. Many ranks need room for their blocks, and queues of their own.
    setenv("NCCL_MULTI_RANK_GPU_ENABLE", "1", 0);
    setenv("NCCL_MAX_CTAS", "16", 0);
    setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 0);
    Watchdog watchdog(options.seconds);
    int status = 3;
    try {
        if (options.version_only) {
            int version = 0;
            Nccl nccl(options.library);
            NCCL(nccl, ncclGetVersion, &version);
            write("\"version\":" + std::to_string(version));
            status = 0;
        } else {
            status = measure_all(options, watchdog);
        }
    } catch (const std::exception& error) {
        watchdog.fail(error.what());
    }
    // Communicators are not destroyed: after an error that could wait for ever.
    fflush(stdout);
    _exit(status);
}
