//! Codes and texts of errors.

use crate::abi::{SUCCESS, class};
use std::cell::RefCell;
use std::ffi::c_int;
use std::panic::{AssertUnwindSafe, catch_unwind};
use unisono_transports::sys::stderr::print_line;

/// The reason why a call failed: a class of MPI, and a text.
#[derive(Clone, Debug)]
pub(crate) struct Failure {
    pub(crate) class: c_int,
    pub(crate) text: String,
}

pub(crate) type Outcome<T = ()> = Result<T, Failure>;

impl From<unisono::Error> for Failure {
    fn from(error: unisono::Error) -> Self {
        let class = if error.is_invalid_usage() { class::ARG } else { class::OTHER };
        Self { class, text: error.to_string() }
    }
}

/// Returns a failure of a class.
pub(crate) fn fail<T>(class: c_int, text: impl Into<String>) -> Outcome<T> {
    Err(Failure { class, text: text.into() })
}

/// Runs a call of the interface and returns its code. The text of an error is kept for the thread.
pub(crate) fn guard(function: &str, call: impl FnOnce() -> Outcome) -> c_int {
    let failure = match catch_unwind(AssertUnwindSafe(call)) {
        Ok(Ok(())) => return SUCCESS,
        Ok(Err(failure)) => failure,
        Err(_) => {
            Failure { class: class::INTERN, text: "the library panicked; please report this".to_owned() }
        }
    };
    let text = format!("{function}: {}", failure.text);
    LAST_ERROR.with(|last| *last.borrow_mut() = (failure.class, text));
    failure.class
}

/// Returns the text of a code: that of the thread's last error if it has this code.
pub(crate) fn text_of(code: c_int) -> String {
    let last = LAST_ERROR.with(|last| last.borrow().clone());
    if code != SUCCESS && last.0 == code {
        return last.1;
    }
    let name = match code {
        SUCCESS => "no error",
        class::BUFFER => "invalid buffer",
        class::COUNT => "invalid count",
        class::TYPE => "invalid datatype",
        class::TAG => "invalid tag",
        class::COMM => "invalid communicator",
        class::RANK => "invalid rank",
        class::REQUEST => "invalid request",
        class::ROOT => "invalid root",
        class::OP => "invalid operation",
        class::ARG => "invalid argument",
        class::TRUNCATE => "message longer than the buffer",
        class::OTHER => "the operation failed",
        class::INTERN => "internal error",
        class::UNSUPPORTED_OPERATION => "not implemented by unisono",
        _ => "unknown error code",
    };
    name.to_owned()
}

/// Prints a failure that the caller is known not to look at.
pub(crate) fn print(text: &str) {
    print_line(&format!("unisono-mpi: {text}"));
}

thread_local! {
    static LAST_ERROR: RefCell<(c_int, String)> = const { RefCell::new((SUCCESS, String::new())) };
}
