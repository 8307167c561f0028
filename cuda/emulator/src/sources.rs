//! The C++ sources of the emulator, part of the program.

/// Files of this crate's folder, with their text.
macro_rules! sources {
    ($($file:literal)*) => {
        pub(crate) const SOURCES: &[(&str, &str)] = &[$(($file, include_str!(concat!("../", $file)))),*];
    };
}

sources! {
    "block.cpp"
    "block.hpp"
    "calls.cpp"
    "calls.hpp"
    "capture.cpp"
    "capture.hpp"
    "cublas.cpp"
    "device.hpp"
    "driver.cpp"
    "driver.hpp"
    "driver_graph.cpp"
    "driver_launch.cpp"
    "driver_memory.cpp"
    "driver_stream.cpp"
    "driver_virtual.cpp"
    "emulator.h"
    "error.hpp"
    "fiber.cpp"
    "fiber.hpp"
    "image.cpp"
    "image.hpp"
    "launch.cpp"
    "launch.hpp"
    "memory.cpp"
    "memory.hpp"
    "occupancy.cpp"
    "queues.cpp"
    "queues.hpp"
    "race.hpp"
    "residency.hpp"
    "rules.cpp"
    "rules.hpp"
    "stream.cpp"
    "stream.hpp"
    "virtual_memory.hpp"
}

#[cfg(test)]
mod tests {
    use super::SOURCES;

    #[test]
    fn every_source_file_has_its_row() {
        let entries = std::fs::read_dir(env!("CARGO_MANIFEST_DIR")).unwrap();
        let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
        let is_source = |name: &String| [".cpp", ".hpp", ".h"].iter().any(|end| name.ends_with(end));
        let mut files: Vec<String> = names.filter(is_source).collect();
        files.sort();
        assert_eq!(SOURCES.iter().map(|(name, _)| *name).collect::<Vec<_>>(), files);
    }
}
