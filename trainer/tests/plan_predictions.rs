//! Predictions for meshes of eight ranks, against runs.

#[path = "support/hosts.rs"]
mod hosts;
#[path = "support/ten_meshes.rs"]
mod ten_meshes;

use std::sync::Mutex;
use ten_meshes::{MESHES, RANKS, candidate, config};
use unisono_plan::cost::{Hardware, Link};
use unisono_trainer::plan_command::{measure, measure_candidate};

/// Serializes the tests, so that they do not disturb each other.
static ALONE: Mutex<()> = Mutex::new(());

#[test]
fn predicted_memory_of_ten_meshes_is_measured() {
    let _alone = ALONE.lock();
    let folder = tempfile::tempdir().unwrap();
    let config = config(folder.path(), 8, 64, 64);
    let here = Hardware::named("h100-80", RANKS).unwrap();
    for mesh in MESHES {
        let candidate = candidate(mesh, &config, &here);
        let measured = measure_candidate(&candidate, &config, 1).unwrap();
        let ratio = candidate.needed / measured.bytes;
        println!("{mesh:?}: {} predicted, {} measured, {ratio:.3}", candidate.needed, measured.bytes);
        assert!((ratio - 1.0).abs() < 0.05, "{mesh:?}: {} predicted, {measured:?}", candidate.needed);
    }
}

/// Ranks of two hosts gather weights over links so slow that computing takes next to nothing.
#[test]
fn step_over_slow_links_takes_as_long_as_its_messages() {
    let _alone = ALONE.lock();
    let folder = tempfile::tempdir().unwrap();
    let config = config(folder.path(), 8, 64, 32);
    let mut hardware = Hardware::named("h100-80", RANKS).unwrap();
    hardware.set_per_host(RANKS / 2);
    hardware.inter_host = Link { alpha: 1e-2, beta: 1e9 };
    let [_, _, zero3, ..] = MESHES;
    let candidate = candidate(zero3, &config, &hardware);
    let planned = config.with_candidate(&candidate).unwrap();
    let once = || {
        let link = hardware.inter_host;
        let worlds = hosts::communicators(RANKS, hardware.per_host, link).unwrap();
        candidate.seconds() / measure(&planned, worlds, 1).unwrap().seconds - 1.0
    };
    // Other programs can only add time.
    let met = (0..3).map(|_| once()).inspect(|error| println!("{error}")).find(|error| error.abs() < 0.15);
    assert!(met.is_some(), "{} s predicted", candidate.seconds());
}
