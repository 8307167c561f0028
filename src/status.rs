//! What the ranks of a running job are doing: asked by `unisono status`, answered by a thread of every process.
//!
//! A process listens under a name within its host, where `UNISONO_STATUS=on` says so, as it does under `unisono run`. Whoever
//! asks must be the same user and know the job's secret.

use crate::error::{Error, ErrorKind, Result};
use crate::flight::Flight;
use crate::rendezvous::{UniqueId, recv_text, send_text};
use std::sync::{Mutex, Once, PoisonError, Weak};
use std::time::{Duration, Instant};
use unisono_transports::auth::{self, Claims, Purpose, Secret, Terms};
use unisono_transports::listener::Listener;
use unisono_transports::porch::{News, Porch};
use unisono_transports::unix;

/// Something that has a flight record.
pub(crate) trait Reporter: Send + Sync {
    /// It.
    fn flight(&self) -> Flight;
}

/// The communicators of this process.
static COMMUNICATORS: Mutex<Vec<Weak<dyn Reporter>>> = Mutex::new(Vec::new());

/// Will tell of `communicator` as long as it is there, to those who know `secret` if it is the first.
pub(crate) fn tell_of(communicator: Weak<dyn Reporter>, secret: Option<&Secret>) {
    let mut communicators = COMMUNICATORS.lock().unwrap_or_else(PoisonError::into_inner);
    communicators.retain(|communicator| communicator.strong_count() > 0);
    communicators.push(communicator);
    drop(communicators);
    static LISTENING: Once = Once::new();
    if let Some(secret) = secret {
        LISTENING.call_once(|| {
            if let Err(error) = listen(secret) {
                tracing::warn!(%error, "`unisono status` will not see this process");
            }
        });
    }
}

fn listen(secret: &Secret) -> Result<()> {
    let listener = Listener::unix_as(&format!("{PREFIX}{}", std::process::id()))?;
    let porch = Porch::new(vec![listener], terms(secret));
    let thread = std::thread::Builder::new().name("unisono status".to_owned()).stack_size(STACK_BYTES);
    let failed = |error| Error::new(ErrorKind::System(format!("cannot start a thread: {error}")));
    thread.spawn(|| serve(porch)).map(drop).map_err(failed)
}

/// What is asked here does not leave the host.
fn terms(secret: &Secret) -> Terms {
    Terms { secret: secret.clone(), encrypted: false }
}

fn serve(mut porch: Porch) {
    while let Ok(news) = porch.wait(&[], Instant::now() + ROUND) {
        for piece in news {
            if let News::Guest(mut stream, Claims { purpose: Purpose::Status, .. }) = piece {
                // Whoever asked and went away needs no answer.
                let _ = send_text(&mut stream, &answer(), Instant::now() + ANSWER_TIME);
            }
        }
    }
}

/// The flight records of all communicators, as a list in JSON.
fn answer() -> String {
    let communicators = COMMUNICATORS.lock().unwrap_or_else(PoisonError::into_inner).clone();
    let alive = communicators.iter().filter_map(Weak::upgrade);
    let records: Vec<String> = alive.map(|communicator| communicator.flight().json()).collect();
    format!("[{}]", records.join(","))
}

/// The processes of this host that answer, by number; whether they are of this user's is not known yet.
pub fn processes() -> Vec<u32> {
    let table = std::fs::read_to_string("/proc/net/unix").unwrap_or_default();
    let name = |line: &str| line.split_once(&format!("@unisono-{PREFIX}"))?.1.trim().parse().ok();
    let mut processes: Vec<u32> = table.lines().filter_map(name).collect();
    processes.sort_unstable();
    processes.dedup();
    processes
}

/// Asks a process of the job with this id: a list of flight records, in JSON, one for each of its communicators.
///
/// # Errors
/// If it is gone, of another user or job, or does not answer in time.
pub fn ask(process: u32, id: &UniqueId) -> Result<String> {
    let deadline = Instant::now() + ANSWER_TIME;
    let mut stream = unix::dial(&format!("{PREFIX}{process}"))?;
    let claims = Claims { purpose: Purpose::Status, rank: 0, ranks: 0, index: 0, session: 0 };
    auth::connect(&mut stream, &terms(id.secret()), &claims, deadline)?;
    Ok(recv_text(&mut stream, deadline)?)
}

const PREFIX: &str = "status-";
const ANSWER_TIME: Duration = Duration::from_secs(2);
/// Only the end of a wait that has none.
const ROUND: Duration = Duration::from_secs(3600);
const STACK_BYTES: usize = 256 << 10;
