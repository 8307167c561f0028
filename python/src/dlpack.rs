//! The memory of an array that speaks DLPack.

use crate::error::argument;
use pyo3::prelude::*;
use pyo3::types::PyCapsule;
use std::ffi::c_void;

/// An address, a number of bytes, and the NumPy name of the element type.
type Memory = (usize, usize, &'static str);

#[repr(C)]
struct Device {
    kind: i32,
    _id: i32,
}

#[repr(C)]
#[derive(Clone, Copy)]
struct DataType {
    code: u8,
    bits: u8,
    lanes: u16,
}

/// `DLTensor` of `dlpack.h`, with which a `DLManagedTensor` begins.
#[repr(C)]
struct Tensor {
    data: *mut c_void,
    device: Device,
    dimensions: i32,
    dtype: DataType,
    shape: *const i64,
    strides: *const i64,
    byte_offset: u64,
}

/// Returns the memory of a capsule of DLPack, whose array must be contiguous and in host memory.
#[pyfunction]
pub(crate) fn dlpack_memory(py: Python<'_>, capsule: &Bound<'_, PyCapsule>) -> PyResult<Memory> {
    let pointer = capsule.pointer_checked(Some(c"dltensor"))?;
    // SAFETY: a capsule of this name holds a `DLManagedTensor`, which lives as long as the capsule.
    let tensor = unsafe { pointer.cast::<Tensor>().as_ref() };
    if !matches!(tensor.device.kind, 1 | 3 | 11) {
        return Err(argument(py, format!("the array is on device {}, not on the host", tensor.device.kind)));
    }
    let Some((name, size)) = type_of(tensor.dtype) else {
        let DataType { code, bits, lanes } = tensor.dtype;
        return Err(argument(
            py,
            format!("no element type has DLPack's code {code}, {bits} bits, {lanes} lanes"),
        ));
    };
    let dimensions = tensor.dimensions.max(0) as usize;
    // SAFETY: `dlpack.h` says that shape, and strides unless null, have one number a dimension.
    let (shape, strides) =
        unsafe { (numbers(tensor.shape, dimensions), numbers(tensor.strides, dimensions)) };
    let bytes = shape.iter().try_fold(size as i64, |bytes, &length| {
        Some(length).filter(|&length| length >= 0).and_then(|length| bytes.checked_mul(length))
    });
    let Some(bytes) = bytes else {
        return Err(argument(py, format!("the array has the shape {shape:?}, which no memory has")));
    };
    let count = bytes as usize / size;
    if !strides.is_empty() && count > 1 && !is_contiguous(shape, strides) {
        return Err(argument(py, "the array is not contiguous"));
    }
    // An offset alone is no address, as where the memory has been freed.
    let offset = if tensor.data.is_null() { 0 } else { tensor.byte_offset as usize };
    Ok((tensor.data.addr().wrapping_add(offset), bytes as usize, name))
}

/// # Safety
/// `pointer` is null or has `count` numbers, for the life of the result.
unsafe fn numbers<'a>(pointer: *const i64, count: usize) -> &'a [i64] {
    if pointer.is_null() || count == 0 {
        return &[];
    }
    // SAFETY: by the contract.
    unsafe { std::slice::from_raw_parts(pointer, count) }
}

fn is_contiguous(shape: &[i64], strides: &[i64]) -> bool {
    let mut expected = 1;
    shape.iter().zip(strides).rev().all(|(&length, &stride)| {
        let fits = length == 1 || stride == expected;
        expected *= length;
        fits
    })
}

/// Returns the NumPy name and the size of a type, by the codes of `DLDataTypeCode`.
fn type_of(DataType { code, bits, lanes }: DataType) -> Option<(&'static str, usize)> {
    let name = match (code, bits, lanes) {
        (0, 8, 1) => "int8",
        (0, 16, 1) => "int16",
        (0, 32, 1) => "int32",
        (0, 64, 1) => "int64",
        (1, 8, 1) => "uint8",
        (1, 16, 1) => "uint16",
        (1, 32, 1) => "uint32",
        (1, 64, 1) => "uint64",
        (2, 16, 1) => "float16",
        (2, 32, 1) => "float32",
        (2, 64, 1) => "float64",
        (4, 16, 1) => "bfloat16",
        (5, 64, 1) => "complex64",
        (5, 128, 1) => "complex128",
        (6, 8, 1) => "bool",
        (10, 8, 1) => "float8_e4m3fn",
        (12, 8, 1) => "float8_e5m2",
        _ => return None,
    };
    Some((name, usize::from(bits) / 8))
}
