//! The CUDA C++ sources, part of the program.

/// Files of this crate's folder, with their text.
macro_rules! sources {
    ($($file:literal)*) => {
        /// Name and text of every source file, in order of their names.
        pub const SOURCES: &[(&str, &str)] = &[$(($file, include_str!(concat!("../", $file)))),*];
    };
}

sources! {
    "abi_offsets.cuh"
    "arguments.cuh"
    "build_work.cuh"
    "chunks.cuh"
    "copy.cuh"
    "dtypes.cuh"
    "exchange.cu"
    "fifo.cuh"
    "group.cuh"
    "interpret.cuh"
    "ll.cuh"
    "ll_reduce.cuh"
    "mailbox.cuh"
    "message.cuh"
    "model_abi_offsets.cuh"
    "model_arguments.cuh"
    "model_attention.cu"
    "model_elements.cu"
    "model_gradients.cu"
    "model_lanes.cuh"
    "model_loss.cu"
    "model_math.cuh"
    "model_matmul.cu"
    "model_optimizer.cu"
    "model_pack.cu"
    "model_rows.cu"
    "msg_header.cuh"
    "multi_copy.cuh"
    "narrow_float.cuh"
    "one_shot.cu"
    "one_shot.cuh"
    "ops.cuh"
    "packed64.cuh"
    "ping.cu"
    "reduce.cuh"
    "reduce_copy.cu"
    "schedule.cu"
    "schedule_abi_offsets.cuh"
    "schedule_arguments.cuh"
    "slots.cuh"
    "target.cuh"
    "target_host.cuh"
    "target_ptx.cuh"
    "types.cuh"
    "vec16.cuh"
    "wait.cuh"
    "wait_context.cuh"
    "windows.cuh"
    "work.cuh"
}

/// Returns the text of a source file, or `None` for an unknown name.
///
/// ```
/// assert!(unisono_kernels::source("ops.cuh").is_some());
/// ```
pub fn source(name: &str) -> Option<&'static str> {
    SOURCES.iter().find(|(known, _)| *known == name).map(|(_, text)| *text)
}

/// Returns name and text of every header.
pub fn headers() -> impl Iterator<Item = (&'static str, &'static str)> {
    SOURCES.iter().copied().filter(|(name, _)| name.ends_with(".cuh"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_source_file_has_its_row() {
        let entries = std::fs::read_dir(env!("CARGO_MANIFEST_DIR")).unwrap();
        let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
        let mut files: Vec<String> =
            names.filter(|name| name.ends_with(".cu") || name.ends_with(".cuh")).collect();
        files.sort();
        assert_eq!(SOURCES.iter().map(|(name, _)| *name).collect::<Vec<_>>(), files);
    }
}
