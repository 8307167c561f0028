// Annotations for ThreadSanitizer. The emulator is not instrumented: its switches order nothing,
// and the order that a barrier makes is annotated here.
#pragma once

namespace emulator::race {

#ifdef UNISONO_RACES
extern "C" {
void* __tsan_get_current_fiber();
void* __tsan_create_fiber(unsigned flags);
void __tsan_destroy_fiber(void* fiber);
void __tsan_switch_to_fiber(void* fiber, unsigned flags);
void __tsan_acquire(void* address);
void __tsan_release(void* address);
}
inline void* current() { return __tsan_get_current_fiber(); }
inline void* create() { return __tsan_create_fiber(0); }
inline void destroy(void* fiber) { __tsan_destroy_fiber(fiber); }
inline void switch_unordered(void* fiber) { __tsan_switch_to_fiber(fiber, 1); }
inline void acquire(void* address) { __tsan_acquire(address); }
inline void release(void* address) { __tsan_release(address); }
#else
inline void* current() { return nullptr; }
inline void* create() { return nullptr; }
inline void destroy(void*) {}
inline void switch_unordered(void*) {}
inline void acquire(void*) {}
inline void release(void*) {}
#endif

} // namespace emulator::race
