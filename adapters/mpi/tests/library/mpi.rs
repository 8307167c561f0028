//! The functions of the library, found by name.

use libloading::Library;
use std::ffi::{c_char, c_int, c_void};
use std::mem::ManuallyDrop;
use std::path::PathBuf;
use std::sync::OnceLock;
use unisono_transports::testing::nested_cargo::build_shared_library;

/// Names the library for the processes that a test starts.
pub(crate) const PATH: &str = "TEST_LIBRARY_PATH";

/// Builds the library in the profile of this test, and returns its path. Cargo builds no shared
/// library for a test.
pub(crate) fn path() -> PathBuf {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    let build = || match std::env::var_os(PATH) {
        Some(path) => path.into(),
        None => build_shared_library(env!("CARGO"), "unisono-mpi").join("libunisono_mpi.so"),
    };
    BUILT.get_or_init(build).clone()
}

/// Opens the library.
pub(crate) fn library() -> Library {
    // SAFETY: the library runs no code when it is opened.
    unsafe { Library::new(path()) }.expect("the library opens")
}

/// The library, with the functions that tests call often.
///
/// Like MPItrampoline it never closes the library, which has threads of its own.
pub(crate) struct Mpi(ManuallyDrop<Library>);

impl Mpi {
    pub(crate) fn open() -> Self {
        Self(ManuallyDrop::new(library()))
    }

    /// Opens the library and connects the ranks.
    pub(crate) fn init() -> Self {
        let mpi = Self::open();
        let mut provided = -1;
        // SAFETY: the signature is that of the standard.
        let code = unsafe {
            let init = mpi.function::<extern "C" fn(*mut c_void, *mut c_void, c_int, *mut c_int) -> c_int>(
                "MPIABI_Init_thread",
            );
            init(std::ptr::null_mut(), std::ptr::null_mut(), mpi.int("MPIABI_THREAD_FUNNELED"), &mut provided)
        };
        mpi.check(code);
        assert_eq!(provided, mpi.int("MPIABI_THREAD_MULTIPLE"));
        mpi
    }

    /// Returns a function of the library.
    ///
    /// # Safety
    /// `F` is the type of the function in C.
    pub(crate) unsafe fn function<F: Copy>(&self, name: &str) -> F {
        // SAFETY: by the contract.
        *unsafe { self.0.get::<F>(name.as_bytes()) }.unwrap_or_else(|error| panic!("{name}: {error}"))
    }

    /// Returns the value of a constant that is a handle or an address.
    pub(crate) fn handle(&self, name: &str) -> usize {
        // SAFETY: constants of this kind are as large as addresses.
        unsafe { **self.0.get::<*const usize>(name.as_bytes()).expect("a constant") }
    }

    /// Returns the value of a constant that is an `int`.
    pub(crate) fn int(&self, name: &str) -> c_int {
        // SAFETY: constants of this kind are of this type.
        unsafe { **self.0.get::<*const c_int>(name.as_bytes()).expect("a constant") }
    }

    /// Returns the text of an error of this thread.
    pub(crate) fn error_text(&self, code: c_int) -> String {
        let (mut text, mut length) = ([0u8; 1024], 0);
        // SAFETY: the signature is that of the standard, and the text has the room.
        let outcome = unsafe {
            let describe = self.function::<Describe>("MPIABI_Error_string");
            describe(code, text.as_mut_ptr().cast(), &mut length)
        };
        assert_eq!(outcome, 0);
        String::from_utf8_lossy(&text[..length as usize]).into_owned()
    }

    /// Panics with its text if a call has failed.
    pub(crate) fn check(&self, code: c_int) {
        assert_eq!(code, self.int("MPIABI_SUCCESS"), "{}", self.error_text(code));
    }

    /// Returns the rank and the number of ranks of a communicator.
    pub(crate) fn place(&self, comm: usize) -> (usize, usize) {
        let (mut rank, mut size) = (-1, -1);
        // SAFETY: the signatures are those of the standard.
        unsafe {
            self.check(self.function::<Ask>("MPIABI_Comm_rank")(comm, &mut rank));
            self.check(self.function::<Ask>("MPIABI_Comm_size")(comm, &mut size));
        }
        (rank as usize, size as usize)
    }

    /// Returns a communicator of the ranks with the same color.
    pub(crate) fn split(&self, comm: usize, color: c_int, key: c_int) -> usize {
        let mut made = usize::MAX;
        // SAFETY: the signature is that of the standard.
        self.check(unsafe { self.function::<Split>("MPIABI_Comm_split")(comm, color, key, &mut made) });
        made
    }

    /// Sums or otherwise reduces values of all ranks.
    pub(crate) fn all_reduce<T: Clone>(
        &self,
        input: &[T],
        kind: &str,
        op: &str,
        comm: usize,
    ) -> Result<Vec<T>, c_int> {
        let mut output = input.to_vec();
        // SAFETY: the signature is that of the standard; the caller names the type of the elements.
        let code = unsafe {
            self.function::<Reduce>("MPIABI_Allreduce")(
                input.as_ptr().cast(),
                output.as_mut_ptr().cast(),
                input.len() as c_int,
                self.handle(kind),
                self.handle(op),
                comm,
            )
        };
        if code == 0 { Ok(output) } else { Err(code) }
    }
}

type Describe = extern "C" fn(c_int, *mut c_char, *mut c_int) -> c_int;
type Ask = extern "C" fn(usize, *mut c_int) -> c_int;
type Split = extern "C" fn(usize, c_int, c_int, *mut usize) -> c_int;
pub(crate) type Reduce = extern "C" fn(*const c_void, *mut c_void, c_int, usize, usize, usize) -> c_int;
