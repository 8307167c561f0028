//! Options of single calls.

mod support;

use std::time::Duration;
use support::World;
use unisono::schedule::Collective;
use unisono::{CallOptions, Communicator, Config, Sum, WaitMode};
use unisono_transports::testing::NEVER;

#[test]
fn options_apply_to_their_calls_only() {
    for world in World::ALL {
        world.run(2, &Config::default(), |comm| {
            let mut values = vec![1.0f32; 100_000];
            let options = CallOptions::new()
                .label("bucket 3")
                .algorithm(Collective::AllReduce, "ring")
                .wait(WaitMode::Yield);
            comm.all_reduce(&mut values, Sum).unwrap();
            let usual = comm.last_algorithm().unwrap().unwrap().name;
            comm.with_options(&options, |comm| comm.all_reduce(&mut values, Sum)).unwrap();
            assert_eq!(comm.last_algorithm().unwrap().unwrap().name, "ring");
            let work = comm.spawn({
                let options = options.clone();
                move |comm| comm.with_options(&options, |comm| comm.barrier())
            });
            work.wait().unwrap();
            comm.all_reduce(&mut values, Sum).unwrap();
            assert_eq!(comm.last_algorithm().unwrap().unwrap().name, usual);
            assert_eq!(values[77], 8.0);
            let labels: Vec<_> = (comm.flight_record().operations.iter())
                .map(|record| record.label.as_deref().map(str::to_owned))
                .collect();
            let bucket = Some("bucket 3".to_owned());
            assert_eq!(labels, [None, bucket.clone(), bucket, None]);
        });
    }
}

#[test]
fn timeout_and_label_are_in_the_error() {
    let told = std::sync::Barrier::new(2);
    World::Shm.run(2, &Config::default().with_timeout(NEVER), |comm| {
        if comm.rank() == 1 {
            told.wait();
            return;
        }
        let options = CallOptions::new().timeout(Duration::from_millis(200)).label("step 7");
        let error = comm.with_options(&options, |comm| comm.barrier()).unwrap_err().to_string();
        told.wait();
        assert!(error.contains("\"step 7\"") && error.contains("nothing moved for 0.2 s"), "{error}");
        assert!(comm.flight_record().to_json().contains("\"label\":\"step 7\""));
    });
}

#[test]
fn algorithm_that_does_not_exist_is_refused() {
    let comm = Communicator::local(1).unwrap().remove(0);
    let run = |options: CallOptions| comm.with_options(&options, |comm| comm.barrier()).unwrap_err();
    let error = run(CallOptions::new().algorithm(Collective::AllReduce, "rign"));
    assert!(error.is_invalid_usage() && error.to_string().contains("no algorithm `rign`"), "{error}");
    assert!(run(CallOptions::new().timeout(Duration::ZERO)).is_invalid_usage());
    // Options within options, and calls on the outer handle, which would wait for themselves.
    comm.with_options(&CallOptions::new(), |inner| {
        inner.with_options(&CallOptions::new().label("inner"), |inner| inner.barrier())?;
        assert!(comm.barrier().unwrap_err().is_invalid_usage());
        Ok(())
    })
    .unwrap();
    comm.barrier().unwrap();
}
