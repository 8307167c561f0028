//! Memory of a GPU that other processes of the host open.

use super::buffer::Buffer;
use super::capture_mode::RelaxedCapture;
use super::error::{GpuError, IntoGpuResult};
use super::gpu::{Gpu, lock};
use super::memory::{Memory, MemoryRef};
use super::stream::{CaptureState, Stream};
use cudarc::driver::sys;
use std::collections::HashMap;
use std::ffi::c_char;
use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, Weak};
use unisono_reducers::Plain;

/// A handle by which another process opens a buffer: plain bytes, for any channel between them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IpcHandle {
    /// `CUipcMemHandle`.
    driver: [u8; 64],
    /// Exporting process, and the number of the export.
    process: u64,
    export: u64,
    /// Offset of the buffer in the allocation that the driver opens.
    offset: u64,
    bytes: u64,
}

impl IpcHandle {
    /// Bytes of a handle.
    pub const BYTES: usize = 96;

    /// Returns the handle as bytes.
    pub fn to_bytes(&self) -> [u8; Self::BYTES] {
        let mut bytes = [0; Self::BYTES];
        let (driver, words) = bytes.split_at_mut(64);
        driver.copy_from_slice(&self.driver);
        for (target, word) in
            words.chunks_exact_mut(8).zip([self.process, self.export, self.offset, self.bytes])
        {
            target.copy_from_slice(&word.to_le_bytes());
        }
        bytes
    }

    /// Restores a handle from the bytes of [`IpcHandle::to_bytes`].
    pub fn from_bytes(bytes: &[u8; Self::BYTES]) -> Self {
        let word =
            |index: usize| u64::from_le_bytes(std::array::from_fn(|byte| bytes[64 + 8 * index + byte]));
        let driver = std::array::from_fn(|index| bytes[index]);
        Self { driver, process: word(0), export: word(1), offset: word(2), bytes: word(3) }
    }
}

/// Memory that this process has exported, by the numbers in handles.
static EXPORTED: Mutex<Option<HashMap<u64, Weak<Memory>>>> = Mutex::new(None);

/// A number that no other process has.
fn own_process() -> u64 {
    static NUMBER: OnceLock<u64> = OnceLock::new();
    *NUMBER.get_or_init(|| RandomState::new().hash_one(std::process::id()))
}

impl<T: Plain> Buffer<T> {
    /// Exports the buffer, so that other processes can open it.
    ///
    /// If the buffer is dropped before the export is [withdrawn](Buffer::withdraw), its memory is
    /// neither reused nor freed until the context of the GPU ends, because another process may
    /// still use it.
    pub fn export(&self) -> Result<IpcHandle, GpuError> {
        let _exempt = RelaxedCapture::enter();
        self.gpu().bind()?;
        let mut handle = sys::CUipcMemHandle { reserved: [0; 64] };
        // SAFETY: the memory is alive, and of a kind that can be exported.
        unsafe { sys::cuIpcGetMemHandle(&mut handle, self.address()) }.or_gpu_error("cuIpcGetMemHandle")?;
        let (mut base, mut total) = (0, 0);
        // SAFETY: as above.
        unsafe { sys::cuMemGetAddressRange_v2(&mut base, &mut total, self.address()) }
            .or_gpu_error("cuMemGetAddressRange")?;
        self.memory.export();
        Ok(IpcHandle {
            driver: handle.reserved.map(|byte| byte as u8),
            process: own_process(),
            export: remember(&self.memory),
            offset: self.address() - base,
            bytes: (self.len() * size_of::<T>()) as u64,
        })
    }

    /// Ends the export. The caller ensures that no other process accesses the memory afterwards:
    /// once the buffer is dropped, its memory can be reused and freed.
    pub fn withdraw(&self) {
        self.memory.withdraw();
    }
}

/// Adds memory to the table of exports, and returns its number.
fn remember(memory: &Arc<Memory>) -> u64 {
    let mut exports = lock(&EXPORTED);
    let exports = exports.get_or_insert_default();
    exports.retain(|_, memory| memory.strong_count() > 0);
    static LAST: AtomicU64 = AtomicU64::new(0);
    let number = LAST.fetch_add(1, Ordering::Relaxed);
    exports.insert(number, Arc::downgrade(memory));
    number
}

/// Memory of another process, or of this one, opened by its handle. It is closed when dropped,
/// after the work that uses it.
pub struct ImportedMemory {
    memory: Arc<Memory>,
    address: u64,
    bytes: usize,
    elsewhere: bool,
}

/// Unit in which the driver shares memory. Two smaller allocations can be in one unit, and a handle
/// of either opens the whole of it.
pub const EXPORT_UNIT_BYTES: usize = 2 << 20;

impl Gpu {
    /// Allocates `count` elements for export, all bytes 0. The allocation fills whole units of
    /// [`EXPORT_UNIT_BYTES`], so that its handle names no other memory.
    ///
    /// # Errors
    /// The GPU has not enough memory.
    pub fn alloc_exportable<T: Plain>(&self, count: usize) -> Result<Buffer<T>, GpuError> {
        self.alloc_in_units(count, EXPORT_UNIT_BYTES)
    }

    /// Opens what a process of this host has exported, this one included.
    pub fn import(&self, handle: &IpcHandle) -> Result<ImportedMemory, GpuError> {
        let bytes = handle.bytes as usize;
        if handle.process == own_process() {
            let known = lock(&EXPORTED).as_ref().and_then(|exports| exports.get(&handle.export)?.upgrade());
            let memory = known.ok_or(GpuError::ExportFreed)?;
            within(0, handle.bytes, memory.bytes() as u64)?;
            return Ok(ImportedMemory::of(memory.address(), memory, bytes, false));
        }
        let _exempt = RelaxedCapture::enter();
        self.bind()?;
        let driver = sys::CUipcMemHandle { reserved: handle.driver.map(|byte| byte as c_char) };
        let mut base = 0;
        let lazily = sys::CUipcMem_flags::CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS as u32;
        // SAFETY: the driver looks whether the handle is one.
        unsafe { sys::cuIpcOpenMemHandle_v2(&mut base, driver, lazily) }
            .or_gpu_error("cuIpcOpenMemHandle")?;
        let memory = Memory::imported(self, base, bytes);
        let (mut start, mut total) = (0, 0);
        // SAFETY: the memory is open.
        unsafe { sys::cuMemGetAddressRange_v2(&mut start, &mut total, base) }
            .or_gpu_error("cuMemGetAddressRange")?;
        within(handle.offset, handle.bytes, total as u64)?;
        Ok(ImportedMemory::of(base + handle.offset, memory, bytes, true))
    }
}

/// Checks that memory of `total` bytes has `bytes` bytes from `offset` on. The numbers come from
/// another process.
fn within(offset: u64, bytes: u64, total: u64) -> Result<(), GpuError> {
    let end = offset.checked_add(bytes);
    if end.is_some_and(|end| end <= total) {
        return Ok(());
    }
    Err(GpuError::LengthMismatch { found: total as usize, wanted: end.unwrap_or(u64::MAX) as usize })
}

impl ImportedMemory {
    fn of(address: u64, memory: Arc<Memory>, bytes: usize, elsewhere: bool) -> Self {
        memory.add_import();
        Self { memory, address, bytes, elsewhere }
    }

    /// Returns true if nothing else in this process holds the memory, other openings aside. The
    /// buffer, if it is of this process, has been dropped, and no graph keeps it.
    pub fn is_abandoned(&self) -> bool {
        Arc::strong_count(&self.memory) <= self.memory.imports()
    }

    /// Returns true if all work of this process that used the memory is done.
    pub fn is_idle(&self) -> bool {
        self.memory.is_idle()
    }

    /// Ends the export of a buffer of this process: see [`Buffer::withdraw`].
    pub fn withdraw(&self) {
        if !self.elsewhere {
            self.memory.withdraw();
        }
    }

    /// Returns the address for kernels of the GPU that opened the memory.
    pub fn address(&self) -> u64 {
        self.address
    }

    /// Returns the length in bytes.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Returns true if the memory is of another process, and goes away with it.
    pub fn is_other_process(&self) -> bool {
        self.elsewhere
    }

    /// Returns the GPU that holds the memory, or `None` for memory of another process.
    pub fn owner(&self) -> Option<&Gpu> {
        (!self.elsewhere).then_some(&self.memory.gpu)
    }

    /// Records that work in this stream uses the memory: see [`Buffer::record_stream`].
    pub fn record_stream(&self, stream: &Stream) {
        stream.record_use(&self.memory);
    }

    /// The same, where `capture` is known to be what captures the stream.
    pub fn record_use(&self, stream: &Stream, capture: CaptureState) {
        stream.record_use_in(capture, &self.memory);
    }

    /// Returns a handle to the memory. While there is one, the memory is not abandoned.
    pub fn memory_ref(&self) -> MemoryRef {
        MemoryRef::new(&self.memory)
    }
}

impl Drop for ImportedMemory {
    fn drop(&mut self) {
        self.memory.remove_import();
    }
}
