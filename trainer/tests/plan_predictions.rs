//! Predicted memory of ten meshes of eight ranks, against runs.

#[path = "support/ten_meshes.rs"]
mod ten_meshes;

use ten_meshes::{MESHES, RANKS, candidate, config};
use unisono_trainer::cost::Hardware;

#[test]
fn predicted_memory_of_ten_meshes_is_measured() {
    let folder = tempfile::tempdir().unwrap();
    let config = config(folder.path(), 8, 64, 64);
    let here = Hardware::named("h100-80", RANKS).unwrap();
    for mesh in MESHES {
        let candidate = candidate(mesh, &config, &here);
        let measured = candidate.measure(&config, 1).unwrap();
        let ratio = candidate.needed / measured.bytes;
        println!("{mesh:?}: {} predicted, {} measured, {ratio:.3}", candidate.needed, measured.bytes);
        assert!((ratio - 1.0).abs() < 0.05, "{mesh:?}: {} predicted, {measured:?}", candidate.needed);
    }
}
