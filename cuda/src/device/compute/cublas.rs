//! cuBLAS, loaded at run time: products of `f32`.

use crate::device::{GpuError, Stream};
use cudarc::driver::sys::CUstream;
use libloading::os::unix::{Library, RTLD_NOW};
use std::ffi::{c_int, c_void};
use std::ptr::null_mut;
use std::sync::{Mutex, OnceLock};

type Handle = *mut c_void;
type Create = unsafe extern "C" fn(*mut Handle) -> c_int;
type Destroy = unsafe extern "C" fn(Handle) -> c_int;
type SetStream = unsafe extern "C" fn(Handle, CUstream) -> c_int;
type Multiply = unsafe extern "C" fn(
    Handle,
    c_int,
    c_int,
    c_int,
    c_int,
    c_int,
    *const f32,
    *const f32,
    c_int,
    *const f32,
    c_int,
    *const f32,
    *mut f32,
    c_int,
) -> c_int;

/// Names of the library, the newest first.
const NAMES: [&str; 4] = ["libcublas.so.13", "libcublas.so.12", "libcublas.so.11", "libcublas.so"];

/// The functions that are called.
struct Functions {
    create: Create,
    destroy: Destroy,
    set_stream: SetStream,
    multiply: Multiply,
}

/// cuBLAS for one stream.
pub(super) struct Cublas {
    functions: &'static Functions,
    handle: Mutex<Handle>,
}

// SAFETY: any thread may use the handle, one at a time.
unsafe impl Send for Cublas {}
// SAFETY: as above; a lock sees to it.
unsafe impl Sync for Cublas {}

/// The extents of a product.
#[derive(Clone, Copy)]
pub(super) struct Extents {
    /// Rows of the left factor and of the product.
    pub(super) rows: c_int,
    /// Columns of the right factor and of the product.
    pub(super) columns: c_int,
    /// Columns of the left factor and rows of the right one.
    pub(super) inner: c_int,
}

/// A factor, column after column.
#[derive(Clone, Copy)]
pub(super) struct Factor {
    pub(super) address: *const f32,
    /// True if the transpose is meant.
    pub(super) transposed: bool,
    /// Distance of columns.
    pub(super) leading: c_int,
}

impl Cublas {
    /// Opens cuBLAS for this stream. Returns `None` where there is no library.
    pub(super) fn new(stream: &Stream) -> Result<Option<Self>, GpuError> {
        let Some(functions) = functions(stream.gpu().is_emulated()) else { return Ok(None) };
        stream.gpu().bind()?;
        let mut handle = null_mut();
        // SAFETY: the GPU's context is current.
        expect("cublasCreate", unsafe { (functions.create)(&mut handle) })?;
        let made = Self { functions, handle: Mutex::new(handle) };
        // SAFETY: handle and stream are alive. The owner of this keeps the stream.
        expect("cublasSetStream", unsafe { (functions.set_stream)(handle, stream.cudarc().cu_stream()) })?;
        Ok(Some(made))
    }

    /// Enqueues product = alpha · left · right + beta · product. All are stored column by column.
    ///
    /// # Safety
    /// The GPU's context is current. The factors have these extents, and so has `product`, whose
    /// columns are contiguous.
    pub(super) unsafe fn multiply(
        &self,
        extents: Extents,
        alpha: f32,
        beta: f32,
        left: Factor,
        right: Factor,
        product: *mut f32,
    ) -> Result<(), GpuError> {
        let Extents { rows, columns, inner } = extents;
        let handle = crate::device::gpu::lock(&self.handle);
        let [left_operation, right_operation] = [left, right].map(|factor| factor.transposed.into());
        // SAFETY: the caller's word; factors are read before the call returns.
        let status = unsafe {
            (self.functions.multiply)(
                *handle,
                left_operation,
                right_operation,
                rows,
                columns,
                inner,
                &alpha,
                left.address,
                left.leading,
                right.address,
                right.leading,
                &beta,
                product,
                rows,
            )
        };
        expect("cublasSgemm", status)
    }
}

impl Drop for Cublas {
    fn drop(&mut self) {
        let handle = crate::device::gpu::lock(&self.handle);
        // SAFETY: this is the last use of the handle.
        unsafe { (self.functions.destroy)(*handle) };
    }
}

/// The functions of the library, or those of the emulator of the same names.
fn functions(is_software: bool) -> Option<&'static Functions> {
    static FUNCTIONS: OnceLock<Option<Functions>> = OnceLock::new();
    let load = || if is_software { find(&Library::this()) } else { NAMES.iter().find_map(|name| open(name)) };
    FUNCTIONS.get_or_init(load).as_ref()
}

fn open(name: &str) -> Option<Functions> {
    // SAFETY: the initializers of cuBLAS have no preconditions.
    let library = unsafe { Library::open(Some(name), RTLD_NOW) }.ok()?;
    let functions = find(&library)?;
    // The functions are used until the process ends.
    std::mem::forget(library);
    Some(functions)
}

fn find(library: &Library) -> Option<Functions> {
    // SAFETY: the types are those of the library's header.
    unsafe {
        Some(Functions {
            create: *library.get::<Create>(b"cublasCreate_v2").ok()?,
            destroy: *library.get::<Destroy>(b"cublasDestroy_v2").ok()?,
            set_stream: *library.get::<SetStream>(b"cublasSetStream_v2").ok()?,
            multiply: *library.get::<Multiply>(b"cublasSgemm_v2").ok()?,
        })
    }
}

fn expect(call: &'static str, status: c_int) -> Result<(), GpuError> {
    if status == 0 { Ok(()) } else { Err(GpuError::Cublas { call, status }) }
}
