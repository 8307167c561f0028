// The exchange with a bug planted: the sender counts one slot more than there are.
#include "copy.cuh"
#include "wait.cuh"

DEVICE u64 one_less(u64 credit) { return credit == 0 ? 0 : credit - 1; }

#define wait_until(counter, wanted, waiter) \
    wait_until(counter, (counter) == fifo.head ? one_less(wanted) : (wanted), waiter)

#include "exchange.cu"
