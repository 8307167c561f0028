// The functions of the CUDA driver and of NCCL that the benchmark calls. Both libraries are opened at
// run time, so that the program builds and answers on machines without them.
#pragma once

#include <cuda.h>
#include <dlfcn.h>
#include <nccl.h>
#include <stdexcept>
#include <string>

namespace bench {

// A failure, whose text becomes the error of a row.
struct Error : std::runtime_error {
    using std::runtime_error::runtime_error;
};

class Library {
public:
    explicit Library(const std::string& file) : handle(dlopen(file.c_str(), RTLD_NOW | RTLD_GLOBAL)) {
        if (!handle) {
            throw Error(dlerror());
        }
    }
    template <typename F> void find(F& function, const char* name) const {
        function = reinterpret_cast<F>(dlsym(handle, name));
        if (!function) {
            throw Error(std::string("no function ") + name);
        }
    }

private:
    void* handle;
};

// The headers of CUDA replace some names by versioned ones, before the name is made a text.
#define BENCH_TEXT(name) #name
#define BENCH_NAME(name) BENCH_TEXT(name)
#define BENCH_DRIVER(each)                                                                                   \
    each(cuInit) each(cuGetErrorString) each(cuDeviceGet) each(cuDevicePrimaryCtxRetain)                     \
    each(cuCtxSetCurrent) each(cuMemAlloc) each(cuMemFree) each(cuMemcpyHtoD) each(cuMemcpyDtoH)             \
    each(cuStreamCreate) each(cuStreamSynchronize) each(cuStreamWaitEvent) each(cuEventCreate)               \
    each(cuEventRecord) each(cuEventElapsedTime) each(cuStreamBeginCapture) each(cuStreamEndCapture)         \
    each(cuGraphInstantiateWithFlags) each(cuGraphLaunch) each(cuGraphDestroy) each(cuGraphExecDestroy)
#define BENCH_NCCL(each)                                                                                     \
    each(ncclGetVersion) each(ncclGetErrorString) each(ncclGetLastError) each(ncclCommInitAll)               \
    each(ncclMemAlloc) each(ncclMemFree) each(ncclCommWindowRegister) each(ncclCommWindowDeregister)         \
    each(ncclGroupStart) each(ncclGroupEnd) each(ncclAllReduce) each(ncclAllGather)                          \
    each(ncclReduceScatter) each(ncclBroadcast) each(ncclReduce) each(ncclAlltoAll) each(ncclSend)           \
    each(ncclRecv)

#define BENCH_MEMBER(name) decltype(&::name) name##_;
#define BENCH_FIND(name) library.find(name##_, BENCH_NAME(name));

struct Nccl {
    BENCH_NCCL(BENCH_MEMBER)

    explicit Nccl(const std::string& file) {
        Library library(file);
        BENCH_NCCL(BENCH_FIND)
    }
    void check(ncclResult_t result, const char* call) const {
        if (result != ncclSuccess) {
            throw Error(std::string(call) + ": " + ncclGetErrorString_(result) + ": " + ncclGetLastError_(nullptr));
        }
    }
};

struct Driver {
    BENCH_DRIVER(BENCH_MEMBER)

    Driver() {
        Library library("libcuda.so.1");
        BENCH_DRIVER(BENCH_FIND)
    }
    void check(CUresult result, const char* call) const {
        if (result != CUDA_SUCCESS) {
            const char* text = nullptr;
            cuGetErrorString_(result, &text);
            throw Error(std::string(call) + ": " + (text ? text : "unknown error"));
        }
    }
};

#define CU(driver, name, ...) (driver).check((driver).name##_(__VA_ARGS__), #name)
#define NCCL(nccl, name, ...) (nccl).check((nccl).name##_(__VA_ARGS__), #name)

} // namespace bench
