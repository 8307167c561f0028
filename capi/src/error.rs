//! Codes and texts of errors.

use std::cell::RefCell;
use std::ffi::{CString, c_char, c_int};
use std::panic::{AssertUnwindSafe, catch_unwind};

/// The reason why a call failed.
pub(crate) enum Failure {
    /// The library refused or failed.
    Library(unisono_core::Error),
    /// An argument makes no sense, so the library was not called.
    Argument(String),
    /// A code with its text.
    Code(u32, String),
}

impl From<unisono_core::Error> for Failure {
    fn from(error: unisono_core::Error) -> Self {
        Failure::Library(error)
    }
}

/// Returns the failure of an argument.
pub(crate) fn argument<T>(what: impl Into<String>) -> Result<T, Failure> {
    Err(Failure::Argument(what.into()))
}

impl Failure {
    /// Returns the code and the facts.
    fn into_facts(self) -> (u32, LastError) {
        let facts = |text: String| LastError {
            text: CString::new(text.replace('\0', " ")).unwrap_or_default(),
            ..LastError::default()
        };
        match self {
            Failure::Library(error) => {
                let (is_recoverable, peer) = (error.is_recoverable(), error.peer());
                (error.code(), LastError { is_recoverable, peer, ..facts(error.to_string()) })
            }
            Failure::Argument(what) => (INVALID_USAGE, facts(format!("{what}; correct the call"))),
            Failure::Code(code, text) => (code, facts(text)),
        }
    }
}

/// The last error of a thread.
#[derive(Default)]
struct LastError {
    text: CString,
    is_recoverable: bool,
    peer: Option<usize>,
}

/// Runs a call of the interface and returns its code. The text of an error is kept for the thread.
pub(crate) fn guard(call: impl FnOnce() -> Result<(), Failure>) -> u32 {
    match catch_unwind(AssertUnwindSafe(call)) {
        Ok(Ok(())) => 0,
        Ok(Err(failure)) => keep(failure),
        Err(_) => keep(Failure::Code(BUG, "the library panicked; please report this".to_owned())),
    }
}

/// Keeps the facts of a failure for this thread, and returns its code.
pub(crate) fn keep(failure: Failure) -> u32 {
    let (code, facts) = failure.into_facts();
    LAST_ERROR.with(|last| *last.borrow_mut() = facts);
    code
}

/// Returns the text of the last error of this thread, empty before the first. It is valid until the
/// next call of this thread that fails.
#[unsafe(no_mangle)]
pub extern "C" fn unisono_last_error() -> *const c_char {
    LAST_ERROR.with(|last| last.borrow().text.as_ptr())
}

/// Returns 1 if the ranks that are left can go on with `unisono_comm_shrink` after the last error
/// of this thread, else 0.
#[unsafe(no_mangle)]
pub extern "C" fn unisono_last_error_is_recoverable() -> c_int {
    LAST_ERROR.with(|last| c_int::from(last.borrow().is_recoverable))
}

/// Returns the other rank that the last error of this thread is about, or `SIZE_MAX`.
#[unsafe(no_mangle)]
pub extern "C" fn unisono_last_error_peer() -> usize {
    LAST_ERROR.with(|last| last.borrow().peer.unwrap_or(usize::MAX))
}

thread_local! {
    static LAST_ERROR: RefCell<LastError> = RefCell::default();
}

/// As [`unisono_core::Error::code`] of the same kinds.
const INVALID_USAGE: u32 = 1;
const BUG: u32 = 15;
/// The limit of a wait has passed. Codes of the library are below 100.
pub(crate) const NOT_DONE: u32 = 100;
