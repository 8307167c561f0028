/* Collectives of an MPI. With the single argument `startup`: initialize, one barrier, finalize. */
#include "bench.h"
#include <mpi.h>

static void barrier(void) { MPI_Barrier(MPI_COMM_WORLD); }

static void max_over_ranks(double *values, int count) {
    MPI_Allreduce(MPI_IN_PLACE, values, count, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
}

static void call(enum collective what, float *input, float *output, size_t size) {
    int count = (int)size;
    switch (what) {
    case ALL_REDUCE: MPI_Allreduce(input, output, count, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD); break;
    case ALL_GATHER: MPI_Allgather(input, count, MPI_FLOAT, output, count, MPI_FLOAT, MPI_COMM_WORLD); break;
    case REDUCE_SCATTER: MPI_Reduce_scatter_block(input, output, count, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD); break;
    case BROADCAST: MPI_Bcast(output, count, MPI_FLOAT, 0, MPI_COMM_WORLD); break;
    default: MPI_Alltoall(input, count, MPI_FLOAT, output, count, MPI_FLOAT, MPI_COMM_WORLD);
    }
}

int main(int arguments, char **values) {
    struct library mpi = {0, 0, barrier, max_over_ranks, call};
    int code = 0;
    MPI_Init(&arguments, &values);
    MPI_Comm_rank(MPI_COMM_WORLD, &mpi.rank);
    MPI_Comm_size(MPI_COMM_WORLD, &mpi.ranks);
    if (arguments == 2 && !strcmp(values[1], "startup"))
        barrier();
    else
        code = benchmark(&mpi, arguments, values);
    MPI_Finalize();
    return code;
}
