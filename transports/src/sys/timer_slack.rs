//! The precision of a thread's sleeps.

/// Lets sleeps of this thread end on time. By default, the kernel may add 50 µs to each.
pub fn minimize() {
    // Without it, sleeps only last longer.
    let _ = rustix::thread::set_current_timer_slack(std::num::NonZeroU64::new(1));
}
