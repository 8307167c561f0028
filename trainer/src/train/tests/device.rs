//! Runs whose modules compute on a GPU: the software device stands in for one.

use super::{config, folder};
use crate::error::Error;
use crate::train::{Outcome, on_threads};

const SMALL: [&str; 4] =
    ["data.global_batch=4", "model.context=16", "model.width=16", "log.validation_batches=1"];

fn run(ranks: usize, changes: &[&str], device: &str) -> Outcome {
    let folder = folder();
    let device = format!("device={device}");
    let changes = [&SMALL[..], changes, &[&device]].concat();
    on_threads(ranks, &config(folder.path(), &changes)).unwrap()
}

/// Losses of the software device are those of the CPU within 1e-4 of them.
fn agrees(ranks: usize, changes: &[&str]) {
    let (host, found) = (run(ranks, changes, "cpu"), run(ranks, changes, "software"));
    assert_eq!(found.losses.len(), host.losses.len());
    let pairs = found.losses.iter().zip(&host.losses).chain(found.validation.iter().zip(&host.validation));
    for (step, (found, host)) in pairs.enumerate() {
        assert!((found - host).abs() <= 1e-4 * host, "{changes:?}, step {step}: {found}, not {host}");
    }
    assert!(host.losses.last() < host.losses.first(), "it learns");
}

#[test]
fn twenty_steps_have_the_losses_of_the_cpu() {
    agrees(1, &["schedule.steps=20"]);
}

#[test]
fn ranks_share_the_work_by_any_strategy() {
    agrees(2, &["schedule.steps=4"]);
    agrees(2, &["schedule.steps=4", "strategy.kind=zero3", "data.micro_batch=1", "data.breadth_first=2"]);
}

#[test]
fn options_of_models_are_those_of_the_cpu() {
    let modern = ["model.norm=rms", "model.feed_forward=swiglu", "model.tied=false", "model.dropout=0.1"];
    agrees(
        1,
        &[&modern[..], &["schedule.steps=4", "model.checkpointing=true", "optimiser.kind=muon"]].concat(),
    );
}

#[test]
fn what_only_the_cpu_does_is_refused_before_the_first_step() {
    let folder = folder();
    let config = config(folder.path(), &["device=software", "model.cross_entropy_splits=2"]);
    match on_threads(1, &config) {
        Err(Error::Unavailable(what)) => assert_eq!(
            what,
            "model.cross_entropy_splits = 2 with a device that is not the CPU: not part of this build; set \
             model.cross_entropy_splits to 1, or device to \"cpu\""
        ),
        other => panic!("{other:?}"),
    }
}
