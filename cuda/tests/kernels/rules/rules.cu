// Kernels that tests of the driver's rules launch.
#include "target.cuh"

struct Spin {
    u32* begun;
    const u32* go;
    u32* ended;
    u32* unused;
};

// Runs until `go` is set.
UNISONO_KERNEL(spin, Spin) {
    if (threadIdx.x == 0) {
        store_release(args.begun, u32(1));
        while (load_acquire(args.go) == 0) {
            relax();
        }
        store_release(args.ended, u32(1));
    }
}

struct Note {
    const u32* from;
    u32* to;
    u32 add, unused;
};

// Notes what it finds.
UNISONO_KERNEL(note, Note) {
    if (threadIdx.x == 0) {
        store_relaxed(args.to, load_relaxed(args.from) + args.add);
    }
}

// The same under a name that begins like those that take many registers.
UNISONO_KERNEL(schedule_note, Note) {
    if (threadIdx.x == 0) {
        store_relaxed(args.to, load_relaxed(args.from) + args.add);
    }
}

struct Alone {
    u32* shared;
    u32* disturbed;
    u32 number, rounds;
};

// Counts the rounds in which another kernel changes a word that both write.
UNISONO_KERNEL(alone, Alone) {
    for (u32 round = 0; threadIdx.x == 0 && round < args.rounds; round++) {
        store_relaxed(args.shared, args.number);
        for (u32 look = 0; look < 2000; look++) {
            if (load_relaxed(args.shared) != args.number) {
                store_relaxed(args.disturbed, load_relaxed(args.disturbed) + 1);
                break;
            }
        }
        relax();
    }
}
