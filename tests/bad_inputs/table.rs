//! Rows of the table: how an input is tried, and how its result is printed.

use crate::support::World;
use std::fmt::Write;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};
use unisono::{Communicator, Config, Error, Result, Sum};
use unisono_transports::testing::{HANG, NEVER};

/// One bad input.
#[derive(Clone, Copy)]
pub(crate) struct Row {
    pub(crate) number: u8,
    pub(crate) input: &'static str,
    pub(crate) evidence: Evidence,
}

/// Evidence of the answer to an input.
#[derive(Clone, Copy)]
pub(crate) enum Evidence {
    /// This, which panics if it is not.
    Here(fn() -> Report),
    /// Something that has to be there: files, and words in them.
    There(&'static [(&'static str, &'static str)]),
}

/// Error of every rank, or success, and the time until the last rank had it.
pub(crate) struct Report {
    pub(crate) messages: Vec<String>,
    pub(crate) time: Duration,
}

impl Row {
    /// Answer to an input, or the reason why it is not good enough.
    pub(crate) fn run(&self) -> std::result::Result<Report, String> {
        let Evidence::Here(attempt) = self.evidence else {
            return Ok(Report { messages: Vec::new(), time: Duration::ZERO });
        };
        let told = catch_unwind(AssertUnwindSafe(attempt)).map_err(|panic| {
            let text = panic.downcast_ref::<String>().map(String::as_str);
            text.or(panic.downcast_ref::<&str>().copied()).unwrap_or("a panic").to_owned()
        })?;
        match told.time > HANG {
            true => Err(format!("told after {:?}: {:?}", told.time, told.messages)),
            false => Ok(told),
        }
    }
}

/// Formats the table: row, input, errors of the ranks, milliseconds.
pub(crate) fn report(rows: &[Row], answers: &[std::result::Result<Report, String>]) -> String {
    let mut text = "| row | input | what every rank was told | ms |\n|--:|---|---|--:|\n".to_owned();
    for (row, answer) in rows.iter().zip(answers) {
        let (told, time) = match (row.evidence, answer) {
            (Evidence::There(proofs), _) => {
                let proofs: Vec<_> = proofs.iter().map(|(file, mark)| format!("{file}: {mark}")).collect();
                (format!("see {}", proofs.join(", ")), String::new())
            }
            (_, Ok(told)) => (told.messages.join(" ‖ "), told.time.as_millis().to_string()),
            (_, Err(why)) => (format!("**failed**: {why}"), String::new()),
        };
        let _ = writeln!(
            text,
            "| {} | {} | {} | {time} |",
            row.number,
            row.input,
            told.replace(['|', '\n'], " ")
        );
    }
    text
}

/// Nothing that is waited for in vain here lasts longer.
pub(crate) fn long_timeout() -> Config {
    Config::default().with_timeout(NEVER).with_join_timeout(NEVER)
}

pub(crate) type Body = fn(&Communicator) -> Result<()>;

/// Runs the ranks of a world as threads, which stop waiting when one of them panics.
pub(crate) struct Gate {
    ranks: usize,
    arrived: AtomicUsize,
}

impl Gate {
    /// Returns when every rank has come here as often as this one.
    pub(crate) fn wait(&self) {
        let (begun, turn) = (Instant::now(), self.arrived.fetch_add(1, Ordering::SeqCst) / self.ranks + 1);
        while self.arrived.load(Ordering::SeqCst) < turn * self.ranks && begun.elapsed() < HANG {
            std::thread::sleep(Duration::from_micros(100));
        }
    }
}

/// Checks over each transport that `body`, or the operation after it, fails on every rank after one
/// good operation.
///
/// The error names the rank and contains all `parts`. The communicator repeats it from then on.
pub(crate) fn poisoned(ranks: usize, config: &Config, parts: &[&str], body: Body) -> Report {
    every_world(ranks, config, |comm, together| {
        comm.all_reduce(&mut [1.0f32; 3], Sum).expect("nothing is wrong yet");
        together.wait();
        let begun = Instant::now();
        let error = body(comm).err().or_else(|| comm.barrier().err());
        let time = begun.elapsed();
        let error = error
            .unwrap_or_else(|| panic!("rank {} was told nothing over {}", comm.rank(), comm.transport()));
        together.wait();
        names(&error, comm.rank(), parts);
        let again = comm.barrier().expect_err("poisoned");
        assert_eq!(again.kind(), error.kind());
        (error.to_string(), time)
    })
}

/// Checks over each transport that every rank refuses `body` with an error that contains all
/// `parts`.
///
/// Nothing is sent, and the communicator stays usable.
pub(crate) fn refused(ranks: usize, parts: &[&str], body: Body) -> Report {
    every_world(ranks, &long_timeout(), |comm, _| {
        comm.all_reduce(&mut [1.0f32; 3], Sum).expect("nothing is wrong yet");
        let begun = Instant::now();
        let error = body(comm).expect_err("it is refused");
        let time = begun.elapsed();
        names(&error, comm.rank(), parts);
        assert!(error.is_invalid_usage(), "{error}");
        sums(comm);
        (error.to_string(), time)
    })
}

/// Over each transport, `body` works.
pub(crate) fn works(ranks: usize, body: fn(&Communicator)) -> Report {
    every_world(ranks, &long_timeout(), |comm, _| {
        let begun = Instant::now();
        body(comm);
        sums(comm);
        ("works".to_owned(), begun.elapsed())
    })
}

/// The communicator is good.
pub(crate) fn sums(comm: &Communicator) {
    let mut sum = [comm.rank() as u64];
    comm.all_reduce(&mut sum, Sum).expect("it is good");
    assert_eq!(sum[0] as usize, comm.size() * (comm.size() - 1) / 2);
}

fn names(error: &Error, rank: usize, parts: &[&str]) {
    let text = error.to_string();
    assert!(text.starts_with(&format!("rank {rank} on ")), "{text}");
    for part in parts {
        assert!(text.contains(part), "`{part}` is not in: {text}");
    }
}

/// Runs `body` on every rank of a world of each transport.
///
/// Returns the errors of the last world, each once, and the longest time.
pub(crate) fn every_world(
    ranks: usize,
    config: &Config,
    body: impl Fn(&Communicator, &Gate) -> (String, Duration) + Sync,
) -> Report {
    let mut told = Report { messages: Vec::new(), time: Duration::ZERO };
    for world in World::ALL {
        let together = Gate { ranks, arrived: AtomicUsize::new(0) };
        let results = world.run(ranks, config, |comm| body(&comm, &together));
        let (mut stories, times): (Vec<String>, Vec<Duration>) = results.into_iter().unzip();
        stories.dedup();
        told.time = times.into_iter().fold(told.time, Duration::max);
        told.messages = stories;
    }
    told
}
