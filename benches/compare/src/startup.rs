//! Startup: the time of many ranks from launch to end, with one barrier.

use crate::library::{InstalledLibrary, Library};
use crate::process;
use crate::results::Results;
use crate::rounds::Plan;
use crate::rows::Metric;
use crate::settings::launch;
use crate::unisono;
use crate::unisono::Unisono;
use std::time::Duration;

/// Ranks, as many as a small cluster has.
pub(crate) const RANKS: usize = 64;
const LIMIT: Duration = Duration::from_secs(60);

impl Plan {
    /// Measures `times` times, unisono and every MPI in turn.
    pub(crate) fn startup(
        &self,
        times: usize,
        unisono: &Unisono,
        peers: &[InstalledLibrary],
        results: &mut Results,
    ) -> Result<(), String> {
        let what = Metric::Startup(RANKS);
        let mpi = |peer: &&InstalledLibrary| peer.library.is_mpi() && peer.library != Library::OneCcl;
        let mpis: Vec<&InstalledLibrary> =
            peers.iter().filter(mpi).filter(|peer| self.includes(peer.library.name())).collect();
        for round in 1..=times {
            if self.includes(unisono::NAME) && !results.has_startup(round, unisono::NAME) {
                let outcome = outcome(&unisono.startup(RANKS, LIMIT));
                results.add(round, (unisono::NAME, "auto"), [(what, outcome)])?;
            }
            for peer in &mpis {
                let name = peer.library.name();
                if !results.has_startup(round, name) {
                    let mut command = launch(peer, RANKS, RANKS > self.cores);
                    let ended = process::run(command.arg(&peer.program).arg("startup"), LIMIT);
                    results.add(round, (name, "oversubscribed"), [(what, outcome(&ended))])?;
                }
            }
            eprintln!("startup of {RANKS} ranks: round {round} of {times}");
        }
        Ok(())
    }
}

fn outcome(ended: &process::ProcessOutcome) -> Result<f64, String> {
    ended.failure.clone().map_or(Ok(micros(ended.wall)), Err)
}

fn micros(wall: Duration) -> f64 {
    wall.as_secs_f64() * 1e6
}
