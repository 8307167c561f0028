//! Memory that this process has allocated, for tests that look for growth.
//!
//! Resident memory grows without a leak: each thread has an arena of the allocator, which keeps
//! what the thread has freed.

/// Lets all threads allocate from two arenas, so that resident memory says what is in use.
pub fn share_arenas() {
    #[cfg(target_env = "gnu")]
    // SAFETY: sets a parameter of the allocator, which takes it at any time.
    unsafe {
        libc::mallopt(libc::M_ARENA_MAX, 2);
    }
}

/// Returns the bytes that are allocated and not freed. Zero where the allocator does not tell.
pub fn allocated_bytes() -> usize {
    #[cfg(target_env = "gnu")]
    {
        // SAFETY: reads counters of the allocator under its own locks.
        let info = unsafe { libc::mallinfo2() };
        info.uordblks + info.hblkhd
    }
    #[cfg(not(target_env = "gnu"))]
    0
}
