//! Buffers: what is written is read, and memory goes round.

use unisono_cuda::device::GpuError;

#[test]
fn what_is_written_is_read() {
    let Some(gpu) = crate::gpu() else { return };
    assert!(gpu.is_software(), "{gpu:?}");
    let stream = gpu.stream().unwrap();
    let mut buffer = gpu.alloc::<f32>(1000).unwrap();
    assert_eq!(buffer.to_vec(&stream).unwrap(), [0.0; 1000]);
    let elements: Vec<f32> = (0..1000).map(|index| index as f32).collect();
    buffer.write(&stream, &elements).unwrap();
    assert_eq!(buffer.view(10..20).to_vec(&stream).unwrap(), elements[10..20]);
    buffer.view_mut(..).split_at_mut(500).1.view_mut(..2).write(&stream, &[-1.0, -2.0]).unwrap();
    assert_eq!(buffer.view(499..503).to_vec(&stream).unwrap(), [499.0, -1.0, -2.0, 502.0]);
    assert_eq!(gpu.upload(&elements).unwrap().to_vec(&stream).unwrap(), elements);
    let short = buffer.write(&stream, &elements[1..]).unwrap_err();
    assert_eq!(short, GpuError::Length { found: 999, wanted: 1000 });
}
