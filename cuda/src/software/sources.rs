//! The sources of the software device and of the kernels, part of the program.

/// Files below `cuda`, with their text.
macro_rules! sources {
    ($($path:literal)*) => {
        pub(super) const SOURCES: &[(&str, &str)] = &[$(($path, include_str!(concat!("../../", $path)))),*];
    };
}

sources! {
    "kernels/arguments.cuh"
    "kernels/copies.cuh"
    "kernels/copy.cuh"
    "kernels/desk.cuh"
    "kernels/doer.cuh"
    "kernels/each_type.cuh"
    "kernels/eight.cuh"
    "kernels/exchange.cu"
    "kernels/fifo.cuh"
    "kernels/heads.cuh"
    "kernels/host.cuh"
    "kernels/interpret.cuh"
    "kernels/lay_out.cuh"
    "kernels/layout.cuh"
    "kernels/line_passes.cuh"
    "kernels/lines.cuh"
    "kernels/machine.cuh"
    "kernels/mailbox.cuh"
    "kernels/message.cuh"
    "kernels/model_arguments.cuh"
    "kernels/model_attention.cu"
    "kernels/model_elements.cu"
    "kernels/model_gradients.cu"
    "kernels/model_lanes.cuh"
    "kernels/model_layout.cuh"
    "kernels/model_loss.cu"
    "kernels/model_math.cuh"
    "kernels/model_matmul.cu"
    "kernels/model_optimiser.cu"
    "kernels/model_pack.cu"
    "kernels/model_rows.cu"
    "kernels/one_shot.cu"
    "kernels/one_shot.cuh"
    "kernels/ops.cuh"
    "kernels/pack.cuh"
    "kernels/ping.cu"
    "kernels/places.cuh"
    "kernels/ptx.cuh"
    "kernels/reduce.cuh"
    "kernels/reduce_copy.cu"
    "kernels/schedule.cu"
    "kernels/schedule_arguments.cuh"
    "kernels/schedule_layout.cuh"
    "kernels/slots.cuh"
    "kernels/small.cuh"
    "kernels/together.cuh"
    "kernels/types.cuh"
    "kernels/wait.cuh"
    "kernels/windows.cuh"
    "software/block.cpp"
    "software/block.hpp"
    "software/cublas.cpp"
    "software/device.hpp"
    "software/driver.cpp"
    "software/driver.hpp"
    "software/driver_graph.cpp"
    "software/driver_memory.cpp"
    "software/error.hpp"
    "software/fiber.cpp"
    "software/fiber.hpp"
    "software/launch.cpp"
    "software/launch.hpp"
    "software/memory.cpp"
    "software/memory.hpp"
    "software/race.hpp"
    "software/software.h"
    "software/stream.cpp"
    "software/stream.hpp"
}

#[cfg(test)]
mod tests {
    use super::SOURCES;

    #[test]
    fn every_file_has_its_row() {
        let mut files = Vec::new();
        for folder in ["kernels", "software"] {
            for entry in std::fs::read_dir(format!("{}/{folder}", env!("CARGO_MANIFEST_DIR"))).unwrap() {
                let name = entry.unwrap().file_name().into_string().unwrap();
                files.extend((name != "compile").then(|| format!("{folder}/{name}")));
            }
        }
        files.sort();
        assert_eq!(SOURCES.iter().map(|(path, _)| *path).collect::<Vec<_>>(), files);
    }
}
