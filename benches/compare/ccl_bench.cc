// Collectives of oneCCL, its ranks introduced to each other by MPI.
#include "bench.h"
#include <exception>
#include <memory>
#include <mpi.h>
#include <oneapi/ccl.hpp>

static std::unique_ptr<ccl::communicator> communicator;

static void barrier() { MPI_Barrier(MPI_COMM_WORLD); }

static void max_over_ranks(double *values, int count) {
    MPI_Allreduce(MPI_IN_PLACE, values, count, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
}

static void call(enum collective what, float *input, float *output, size_t count) {
    const auto &all = *communicator;
    switch (what) {
    case ALL_REDUCE: ccl::allreduce(input, output, count, ccl::reduction::sum, all).wait(); break;
    case ALL_GATHER: ccl::allgather(input, output, count, ccl::datatype::float32, all).wait(); break;
    case REDUCE_SCATTER: ccl::reduce_scatter(input, output, count, ccl::reduction::sum, all).wait(); break;
    case BROADCAST: ccl::broadcast(output, count, 0, all).wait(); break;
    default: ccl::alltoall(input, output, count, all).wait();
    }
}

static void connect(int rank, int ranks) {
    ccl::init();
    ccl::shared_ptr_class<ccl::kvs> store;
    ccl::kvs::address_type address;
    if (rank == 0) {
        store = ccl::create_main_kvs();
        address = store->get_address();
    }
    MPI_Bcast(address.data(), (int)address.size(), MPI_BYTE, 0, MPI_COMM_WORLD);
    if (rank != 0) store = ccl::create_kvs(address);
    communicator.reset(new ccl::communicator(ccl::create_communicator(ranks, rank, store)));
}

int main(int arguments, char **values) {
    struct library ccl = {0, 0, barrier, max_over_ranks, call};
    int level, code = 1;
    MPI_Init_thread(&arguments, &values, MPI_THREAD_MULTIPLE, &level);
    MPI_Comm_rank(MPI_COMM_WORLD, &ccl.rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ccl.ranks);
    try {
        connect(ccl.rank, ccl.ranks);
        code = benchmark(&ccl, arguments, values);
    } catch (const std::exception &error) {
        fail(error.what());
    }
    communicator.reset();
    MPI_Finalize();
    return code;
}
