//! The functions of libcuda, and ranks that use them.

use crate::emulator::Device;
use std::ffi::{CString, c_int, c_void};
use std::ptr::{from_ref, null_mut};
use std::time::Duration;
use unisono_cuda::device::{Channel, Deadline, Exchange, Fifo, WaitReport};

/// A handle of the driver.
pub(crate) type Handle = *mut c_void;

/// Calls a function of the driver by its name and its types.
macro_rules! call {
    ($device:expr, $name:ident($($argument:expr => $type:ty),*)) => {{
        // SAFETY: the types are those of libcuda's header; memory is the test's affair.
        unsafe { $device.symbol::<unsafe extern "C" fn($($type),*) -> c_int>(stringify!($name))($($argument),*) }
    }};
}

pub(crate) fn stream(device: &Device) -> Handle {
    let mut stream = null_mut();
    assert_eq!(call!(device, cuStreamCreate(&mut stream => *mut Handle, 1 => u32)), 0);
    stream
}

pub(crate) fn synchronize(device: &Device, stream: Handle) -> c_int {
    call!(device, cuStreamSynchronize(stream => Handle))
}

pub(crate) fn destroy(device: &Device, stream: Handle) {
    assert_eq!(call!(device, cuStreamDestroy_v2(stream => Handle)), 0);
}

pub(crate) fn allocate(device: &Device, bytes: usize) -> u64 {
    let mut memory = 0;
    assert_eq!(call!(device, cuMemAlloc_v2(&mut memory => *mut u64, bytes => usize)), 0);
    memory
}

pub(crate) fn upload<T>(device: &Device, target: u64, source: &[T], stream: Handle) {
    let from_bytes = source.as_ptr().cast::<c_void>();
    let call = call!(device, cuMemcpyHtoDAsync_v2(
        target => u64, from_bytes => *const c_void, size_of_val(source) => usize, stream => Handle
    ));
    assert_eq!((call, synchronize(device, stream)), (0, 0));
}

pub(crate) fn download<T: Clone>(
    device: &Device,
    source: u64,
    like: &T,
    count: usize,
    stream: Handle,
) -> Vec<T> {
    let mut elements = vec![like.clone(); count];
    let call = call!(device, cuMemcpyDtoHAsync_v2(
        elements.as_mut_ptr().cast() => *mut c_void, source => u64, size_of_val(&elements[..]) => usize,
        stream => Handle
    ));
    assert_eq!((call, synchronize(device, stream)), (0, 0));
    elements
}

pub(crate) fn module(device: &Device, text: &str) -> Result<Handle, c_int> {
    let mut module = null_mut();
    let text = CString::new(text).expect("text without zeros");
    let image = text.as_ptr().cast::<c_void>();
    match call!(device, cuModuleLoadDataEx(
        &mut module => *mut Handle, image => *const c_void, 0 => u32, null_mut() => Handle, null_mut() => Handle
    )) {
        0 => Ok(module),
        error => Err(error),
    }
}

pub(crate) fn function(device: &Device, module: Handle, name: &str) -> Result<Handle, c_int> {
    let mut function = null_mut();
    let name = CString::new(name).expect("a name without zeros");
    let name = name.as_ptr().cast::<c_void>();
    let call = call!(device, cuModuleGetFunction(&mut function => *mut Handle, module => Handle, name => *const c_void));
    if call == 0 { Ok(function) } else { Err(call) }
}

pub(crate) fn launch<A>(device: &Device, kernel: Handle, arguments: &A, stream: Handle) -> c_int {
    let mut parameters = [from_ref(arguments).cast_mut().cast::<c_void>()];
    call!(device, cuLaunchKernel(
        kernel => Handle, 1 => u32, 1 => u32, 1 => u32, 32 => u32, 1 => u32, 1 => u32, 0 => u32,
        stream => Handle, parameters.as_mut_ptr() => *mut Handle, null_mut() => *mut Handle
    ))
}

pub(crate) use call;

/// One of two ranks, with a stream of its own.
pub(crate) struct Rank {
    pub(crate) stream: Handle,
    input: u64,
    pub(crate) output: u64,
    /// Memory that the peer accesses: tail and head of the FIFO to this rank, abort word, slots.
    pub(crate) shared: u64,
    status: u64,
    channel: u64,
}

/// Bytes that ranks exchange.
pub(crate) const BYTES: usize = 5000;
const SLOT_BYTES: usize = 512;
const SLOTS_AT: usize = 64;

/// The FIFO in what a rank shares.
fn fifo(shared: u64) -> Fifo {
    let (tail, head) = (shared as *mut u64, (shared + 8) as *mut u64);
    let slots = (shared + SLOTS_AT as u64) as *mut u8;
    Fifo { slots, tail, head, slot_count: 2, slot_bytes: SLOT_BYTES as u32 }
}

impl Rank {
    pub(crate) fn new(device: &Device, fill: u8) -> Self {
        let bytes = [BYTES, BYTES, SLOTS_AT + 2 * SLOT_BYTES, size_of::<WaitReport>(), size_of::<Channel>()];
        let [input, output, shared, status, channel] = bytes.map(|bytes| allocate(device, bytes));
        let rank = Self { stream: stream(device), input, output, shared, status, channel };
        upload(device, input, &[fill; BYTES], rank.stream);
        upload(device, shared, &[0u64; SLOTS_AT / 8], rank.stream);
        upload(device, status, &[WaitReport::OK], rank.stream);
        rank
    }

    pub(crate) fn start(&self, device: &Device, kernel: Handle, peer: u64, rank: u32, limit: Duration) {
        let channel = Channel {
            input: self.input as *const u8,
            output: self.output as *mut u8,
            bytes: BYTES as u64,
            out: fifo(peer),
            into: fifo(self.shared),
            step: 0,
            rank,
            peer: 1 - rank,
        };
        upload(device, self.channel, &[channel], self.stream);
        let (abort, status) = ((self.shared + 16) as *const u32, self.status as *mut WaitReport);
        let patience = Deadline {
            abort,
            report: status,
            timeout_ns: limit.as_nanos() as u64,
            failed: std::ptr::null_mut(),
        };
        let arguments = Exchange { channels: self.channel as *const Channel, deadline: patience };
        assert_eq!(launch(device, kernel, &arguments, self.stream), 0);
    }

    pub(crate) fn status(&self, device: &Device) -> WaitReport {
        download(device, self.status, &WaitReport::OK, 1, self.stream)[0].clone()
    }

    pub(crate) fn end(self, device: &Device) {
        for memory in [self.input, self.output, self.shared, self.status, self.channel] {
            assert_eq!(call!(device, cuMemFree_v2(memory => u64)), 0, "a guard was overwritten");
        }
        destroy(device, self.stream);
    }
}
