//! A function that runs at the regular end of the process.

use std::ffi::{c_int, c_void};
use std::panic::catch_unwind;
use std::sync::OnceLock;

unsafe extern "C" {
    /// Registers a function that gets the exit code. See on_exit(3).
    fn on_exit(function: extern "C" fn(c_int, *mut c_void), argument: *mut c_void) -> c_int;
}

static HOOK: OnceLock<fn(i32)> = OnceLock::new();

/// Calls `hook` with the exit code when the process ends by `exit` or a return from `main`. Only
/// the first hook of the process is used.
///
/// The hook runs on the thread that ends the process, while other threads still run. That thread
/// may hold any lock, and its thread-local values may be gone. A signal or `_exit` ends the process
/// without it.
pub fn set_exit_hook(hook: fn(i32)) {
    if HOOK.set(hook).is_err() {
        return;
    }
    pin_library();
    // SAFETY: the function stays loaded and uses no argument. Without memory for it, the process
    // ends without the hook.
    unsafe { on_exit(run_hook, std::ptr::null_mut()) };
}

extern "C" fn run_hook(code: c_int, _: *mut c_void) {
    if let Some(hook) = HOOK.get() {
        // The process ends with its own code, whatever happens here.
        let _ = catch_unwind(|| hook(code));
    }
}

/// Keeps the library that contains this code loaded, because `exit` calls into it.
fn pin_library() {
    let mut info = libc::Dl_info {
        dli_fname: std::ptr::null(),
        dli_fbase: std::ptr::null_mut(),
        dli_sname: std::ptr::null(),
        dli_saddr: std::ptr::null_mut(),
    };
    // SAFETY: the address is that of a function, and `info` is valid for writes.
    let found = unsafe { libc::dladdr(run_hook as *const c_void, &raw mut info) };
    if found != 0 && !info.dli_fname.is_null() {
        let flags = libc::RTLD_NOW | libc::RTLD_NOLOAD | libc::RTLD_NODELETE;
        // SAFETY: the name is a string of the loader. It loads nothing, so it runs no code. An
        // executable, which is never unloaded, is not found.
        unsafe { libc::dlopen(info.dli_fname, flags) };
    }
}
