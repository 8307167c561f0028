//! Functions of newer drivers: launches with attributes, virtual memory, multicast, batches, and
//! words that streams write and wait for.

use super::world::{Note, each_way, kernel, with, words};
use crate::emulator::Device;
use crate::libcuda::*;
use std::ffi::{c_int, c_void};
use std::ptr::{from_ref, null_mut};
use std::sync::atomic::Ordering;

const INVALID_VALUE: c_int = 1;
const INVALID_HANDLE: c_int = 400;
const NOT_READY: c_int = 600;
const NOT_SUPPORTED: c_int = 801;
const GRANULARITY: usize = 2 << 20;

/// `CUlaunchAttribute`.
#[repr(C)]
struct Attribute {
    id: c_int,
    unused: c_int,
    value: [u32; 16],
}

/// `CUlaunchConfig`.
#[repr(C)]
struct Config {
    shape: [u32; 7],
    stream: Handle,
    attributes: *const Attribute,
    count: u32,
}

fn launch_with(device: &Device, blocks: u32, attributes: &[(c_int, [u32; 3])]) -> (c_int, u32) {
    let (words, stream) = (words(device, 2), stream(device));
    let arguments = Note { from: &raw const words[0], to: &raw const words[1], add: 1, unused: 0 };
    let attributes: Vec<Attribute> = attributes
        .iter()
        .map(|&(id, value)| {
            let mut padded = [0; 16];
            padded[..3].copy_from_slice(&value);
            Attribute { id, unused: 0, value: padded }
        })
        .collect();
    let count = attributes.len() as u32;
    let config =
        Config { shape: [blocks, 1, 1, 32, 1, 1, 0], stream, attributes: attributes.as_ptr(), count };
    let mut parameters = [from_ref(&arguments).cast_mut().cast::<c_void>()];
    let launched = call!(device, cuLaunchKernelEx(
        &config => *const Config, kernel(device, "note") => Handle,
        parameters.as_mut_ptr() => *mut Handle, null_mut() => *mut Handle
    ));
    assert_eq!(synchronize(device, stream), 0);
    (launched, words[1].load(Ordering::SeqCst))
}

#[test]
fn launch_attributes_are_taken_or_refused() {
    let capability = [("CUDA_EMULATOR_CAPABILITY", "90")];
    with("newer::launch_attributes_are_taken_or_refused", &capability, |device| {
        let (cooperative, cluster, serialization, domain) = (2, 4, 6, 10);
        assert_eq!(launch_with(device, 4, &[]), (0, 1));
        let attributes =
            [(cooperative, [1; 3]), (cluster, [2, 1, 1]), (serialization, [1; 3]), (domain, [1; 3])];
        assert_eq!(launch_with(device, 4, &attributes), (0, 1));
        assert_eq!(launch_with(device, 4, &[(99, [0; 3])]), (INVALID_VALUE, 0), "unknown");
        assert_eq!(launch_with(device, 4, &[(domain, [2; 3])]), (INVALID_VALUE, 0), "no such domain");
        assert_eq!(launch_with(device, 4, &[(cluster, [3, 1, 1])]), (INVALID_VALUE, 0), "not divisible");
        assert_eq!(launch_with(device, 32, &[(cluster, [16, 1, 1])]), (912, 0), "too large");
        assert_eq!(launch_with(device, 65, &[(cooperative, [1; 3])]), (720, 0), "not resident");
    });
}

/// `CUmemAllocationProp`.
#[repr(C)]
struct Properties {
    kind: [c_int; 4],
    unused: [u64; 2],
}

fn create(device: &Device, gpu: c_int, bytes: usize) -> Result<u64, c_int> {
    let (mut handle, properties) = (0, Properties { kind: [1, 1, 1, gpu], unused: [0; 2] });
    let call = call!(device, cuMemCreate(
        &mut handle => *mut u64, bytes => usize, &properties => *const Properties, 0 => u64
    ));
    if call == 0 { Ok(handle) } else { Err(call) }
}

fn reserve(device: &Device, bytes: usize) -> u64 {
    let mut start = 0;
    let call = call!(device, cuMemAddressReserve(
        &mut start => *mut u64, bytes => usize, 0 => usize, 0 => u64, 0 => u64
    ));
    assert_eq!((call, start % GRANULARITY as u64), (0, 0));
    start
}

fn map(device: &Device, address: u64, handle: u64) -> c_int {
    call!(device, cuMemMap(address => u64, GRANULARITY => usize, 0 => usize, handle => u64, 0 => u64))
}

fn set_access(device: &Device, address: u64, bytes: usize, gpu: c_int) -> c_int {
    let access = [1, gpu, 3];
    call!(device, cuMemSetAccess(address => u64, bytes => usize, access.as_ptr() => *const c_int, 1 => usize))
}

#[test]
fn virtual_memory_is_mapped_and_shared() {
    with("newer::virtual_memory_is_mapped_and_shared", &[], |device| {
        let stream = stream(device);
        assert_eq!(create(device, 0, 4096), Err(INVALID_VALUE), "not a multiple of the granularity");
        let handle = create(device, 0, GRANULARITY).unwrap();
        let [range, again] = [(); 2].map(|()| reserve(device, 2 * GRANULARITY));
        assert_eq!((map(device, range, handle), set_access(device, range, GRANULARITY, 0)), (0, 0));
        assert_eq!(map(device, range, handle), INVALID_VALUE, "mapped already");
        let mut file: c_int = -1;
        let exported = call!(device, cuMemExportToShareableHandle(
            &mut file => *mut c_int, handle => u64, 1 => c_int, 0 => u64
        ));
        let mut imported = 0;
        let import = call!(device, cuMemImportFromShareableHandle(
            &mut imported => *mut u64, file as usize => usize, 1 => c_int
        ));
        assert_eq!((exported, import, map(device, again, imported)), (0, 0, 0));
        assert_eq!(set_access(device, again, GRANULARITY, 0), 0);
        upload(device, range + 100, &[5u8, 6, 7], stream);
        assert_eq!(download(device, again + 100, &0u8, 3, stream), [5, 6, 7], "one memory at two addresses");
        assert_eq!(call!(device, cuMemRelease(handle => u64)), 0);
        assert_eq!(download(device, range + 100, &0u8, 3, stream), [5, 6, 7], "the mapping keeps it");
        let free = |range: u64| call!(device, cuMemAddressFree(range => u64, 2 * GRANULARITY => usize));
        assert_eq!(free(range), INVALID_VALUE, "still mapped");
        assert_eq!(call!(device, cuMemUnmap(range => u64, GRANULARITY => usize)), 0);
        assert_eq!(free(range), 0);
    });
}

#[test]
fn multicast_binds_memory_of_all_gpus() {
    let gpus = [("CUDA_EMULATOR_GPUS", "2")];
    each_way("newer::multicast_binds_memory_of_all_gpus", "multicast", &gpus, |device, kept| {
        let (mut object, properties) = (0, [2u64, GRANULARITY as u64, 1, 0]);
        let made =
            call!(device, cuMulticastCreate(&mut object => *mut u64, properties.as_ptr() => *const u64));
        assert_eq!(made, if kept { 0 } else { NOT_SUPPORTED });
        if !kept {
            return;
        }
        let add = |gpu: c_int| call!(device, cuMulticastAddDevice(object => u64, gpu => c_int));
        let bind = |memory: u64| {
            call!(device, cuMulticastBindMem(
                object => u64, 0 => usize, memory => u64, 0 => usize, GRANULARITY => usize, 0 => u64
            ))
        };
        let memory = [0, 1].map(|gpu| create(device, gpu, GRANULARITY).unwrap());
        assert_eq!((add(0), bind(memory[0])), (0, INVALID_VALUE), "a GPU is missing");
        assert_eq!((add(0), add(1)), (INVALID_VALUE, 0), "added already");
        assert_eq!([bind(memory[0]), bind(memory[1]), bind(memory[1])], [0, 0, INVALID_VALUE]);
        let address = reserve(device, GRANULARITY);
        assert_eq!((map(device, address, object), set_access(device, address, GRANULARITY, 0)), (0, 0));
        let mut copies = [null_mut::<c_void>(); 8];
        type Copies = unsafe extern "C" fn(*const c_void, *mut [*mut c_void; 8]) -> u32;
        let name = "_ZN8emulator16multicast_copiesEPKvRA8_Pv";
        // SAFETY: the type is that of `device.hpp`.
        let count = unsafe { device.symbol::<Copies>(name)((address + 64) as *const c_void, &mut copies) };
        assert_eq!(count, 2);
        // A store to each copy is seen by the memory of each GPU.
        for (gpu, memory) in memory.into_iter().enumerate() {
            let memory_address = reserve(device, GRANULARITY);
            assert_eq!(
                (map(device, memory_address, memory), set_access(device, memory_address, GRANULARITY, 0)),
                (0, 0)
            );
            // SAFETY: the memory is mapped.
            unsafe { copies[gpu].cast::<u8>().write(gpu as u8 + 1) };
            assert_eq!(download(device, memory_address + 64, &0u8, 1, stream(device)), [gpu as u8 + 1]);
        }
    });
}

#[test]
fn batch_copies_all_or_says_why_not() {
    with("newer::batch_copies_all_or_says_why_not", &[], |device| {
        let (stream, source) = (stream(device), allocate(device, 64));
        let targets = [(); 3].map(|()| allocate(device, 64));
        upload(device, source, &[9u8; 64], stream);
        let batch = |bytes: [usize; 3]| {
            let mut failed = 0usize;
            call!(device, cuMemcpyBatchAsync(
                targets.as_ptr() => *const u64, [source; 3].as_ptr() => *const u64,
                bytes.as_ptr() => *const usize, 3 => usize, null_mut() => Handle, null_mut() => Handle,
                0 => usize, &mut failed => *mut usize, stream => Handle
            ))
        };
        assert_eq!((batch([64, 0, 64]), batch([64, 32, 1])), (INVALID_VALUE, 0));
        let found = targets.map(|target| download(device, target, &0u8, 64, stream));
        assert_eq!(found[0], [9; 64]);
        assert_eq!((found[1][31], found[2][0]), (9, 9));
        assert!(found[1][32] != 9 && found[2][1] != 9, "more than was asked for");
    });
}

#[test]
fn streams_write_and_wait_for_words() {
    with("newer::streams_write_and_wait_for_words", &[], |device| {
        let (first, second, words) = (stream(device), stream(device), words(device, 4));
        let word_address = |index: usize| (&raw const words[index]).addr() as u64;
        let (note, equal) = (kernel(device, "note"), 1);
        let arguments = Note { from: &raw const words[0], to: &raw const words[1], add: 10, unused: 0 };
        let wait = call!(device, cuStreamWaitValue32_v2(
            first => Handle, word_address(0) => u64, 3 => u32, equal => u32
        ));
        assert_eq!((wait, launch(device, note, &arguments, first)), (0, 0));
        let write = |value: u32| {
            let written = call!(device, cuStreamWriteValue32_v2(
                second => Handle, word_address(0) => u64, value => u32, 0 => u32
            ));
            assert_eq!((written, synchronize(device, second)), (0, 0));
        };
        write(2);
        assert_eq!(call!(device, cuStreamQuery(first => Handle)), NOT_READY);
        write(3);
        assert_eq!((synchronize(device, first), words[1].load(Ordering::SeqCst)), (0, 13));
        let misaligned = word_address(0) + 4;
        let wide = |address: u64| {
            call!(device, cuStreamWriteValue64_v2(
                first => Handle, address => u64, u64::MAX => u64, 0 => u32
            ))
        };
        assert_eq!(
            (wide(misaligned), wide(word_address(2)), synchronize(device, first)),
            (INVALID_VALUE, 0, 0)
        );
        assert_eq!(words[3].load(Ordering::SeqCst), u32::MAX);
    });
}

#[test]
fn event_without_timing_has_no_time() {
    with("newer::event_without_timing_has_no_time", &[], |device| {
        let (stream, mut events) = (stream(device), [null_mut(); 2]);
        for (event, flags) in events.iter_mut().zip([0, 2]) {
            assert_eq!(call!(device, cuEventCreate(event => *mut Handle, flags => u32)), 0);
            assert_eq!(call!(device, cuEventRecord(*event => Handle, stream => Handle)), 0);
        }
        assert_eq!(synchronize(device, stream), 0);
        let elapsed = |start: Handle, end: Handle| {
            let mut milliseconds = 0.0f32;
            call!(device, cuEventElapsedTime(&mut milliseconds => *mut f32, start => Handle, end => Handle))
        };
        let [timed, untimed] = events;
        assert_eq!([elapsed(timed, timed), elapsed(timed, untimed)], [0, INVALID_HANDLE]);
    });
}

#[test]
fn gpus_have_distinct_numbers() {
    with("newer::gpus_have_distinct_numbers", &[("CUDA_EMULATOR_GPUS", "2")], |device| {
        let uuid = |gpu: c_int| {
            let mut uuid = [0u8; 16];
            assert_eq!(call!(device, cuDeviceGetUuid_v2(uuid.as_mut_ptr() => *mut u8, gpu => c_int)), 0);
            uuid
        };
        assert_ne!(uuid(0), uuid(1));
        assert_eq!(uuid(1)[..8], *b"unisono ", "the same in every process");
        let (mut function, mut status) = (null_mut(), -1);
        let found = call!(device, cuGetProcAddress_v2(
            c"cuMemAlloc".as_ptr() => *const i8, &mut function => *mut Handle, 12000 => c_int, 0 => u64,
            &mut status => *mut c_int
        ));
        assert!(found == 0 && status == 0 && !function.is_null());
    });
}
