//! The sources of the software device and of the kernels, part of the program.

/// Files below `cuda`, with their text.
macro_rules! sources {
    ($($path:literal)*) => {
        pub(crate) const SOURCES: &[(&str, &str)] = &[$(($path, include_str!(concat!("../../", $path)))),*];
    };
}

sources! {
    "emulator/block.cpp"
    "emulator/block.hpp"
    "emulator/cublas.cpp"
    "emulator/device.hpp"
    "emulator/driver.cpp"
    "emulator/driver.hpp"
    "emulator/driver_graph.cpp"
    "emulator/driver_memory.cpp"
    "emulator/emulator.h"
    "emulator/error.hpp"
    "emulator/fiber.cpp"
    "emulator/fiber.hpp"
    "emulator/launch.cpp"
    "emulator/launch.hpp"
    "emulator/memory.cpp"
    "emulator/memory.hpp"
    "emulator/race.hpp"
    "emulator/stream.cpp"
    "emulator/stream.hpp"
    "kernels/abi_offsets.cuh"
    "kernels/arguments.cuh"
    "kernels/build_work.cuh"
    "kernels/chunks.cuh"
    "kernels/copy.cuh"
    "kernels/dtypes.cuh"
    "kernels/exchange.cu"
    "kernels/fifo.cuh"
    "kernels/group.cuh"
    "kernels/interpret.cuh"
    "kernels/ll.cuh"
    "kernels/ll_reduce.cuh"
    "kernels/mailbox.cuh"
    "kernels/message.cuh"
    "kernels/model_abi_offsets.cuh"
    "kernels/model_arguments.cuh"
    "kernels/model_attention.cu"
    "kernels/model_elements.cu"
    "kernels/model_gradients.cu"
    "kernels/model_lanes.cuh"
    "kernels/model_loss.cu"
    "kernels/model_math.cuh"
    "kernels/model_matmul.cu"
    "kernels/model_optimizer.cu"
    "kernels/model_pack.cu"
    "kernels/model_rows.cu"
    "kernels/msg_header.cuh"
    "kernels/multi_copy.cuh"
    "kernels/narrow_float.cuh"
    "kernels/one_shot.cu"
    "kernels/one_shot.cuh"
    "kernels/ops.cuh"
    "kernels/packed64.cuh"
    "kernels/ping.cu"
    "kernels/reduce.cuh"
    "kernels/reduce_copy.cu"
    "kernels/schedule.cu"
    "kernels/schedule_abi_offsets.cuh"
    "kernels/schedule_arguments.cuh"
    "kernels/slots.cuh"
    "kernels/target.cuh"
    "kernels/target_host.cuh"
    "kernels/target_ptx.cuh"
    "kernels/types.cuh"
    "kernels/vec16.cuh"
    "kernels/wait.cuh"
    "kernels/wait_context.cuh"
    "kernels/windows.cuh"
    "kernels/work.cuh"
}

#[cfg(test)]
mod tests {
    use super::SOURCES;

    #[test]
    fn every_file_has_its_row() {
        let mut files = Vec::new();
        for folder in ["emulator", "kernels"] {
            for entry in std::fs::read_dir(format!("{}/{folder}", env!("CARGO_MANIFEST_DIR"))).unwrap() {
                let name = entry.unwrap().file_name().into_string().unwrap();
                files.extend((name != "compile").then(|| format!("{folder}/{name}")));
            }
        }
        files.sort();
        assert_eq!(SOURCES.iter().map(|(path, _)| *path).collect::<Vec<_>>(), files);
    }
}
