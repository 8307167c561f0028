//! Status of a running job. `unisono status` connects to every process, and a thread of the process
//! answers with flight records.
//!
//! A process listens under a name within its host if `UNISONO_STATUS_SERVER=on` is set. `unisono
//! run` sets it. A client must belong to the same user and know the job's secret.

use crate::bootstrap::{UniqueId, recv_text, send_text};
use crate::error::{Error, Result};
use crate::flight::FlightRecord;
use std::sync::{Mutex, Once, PoisonError, Weak};
use std::time::{Duration, Instant};
use unisono_transports::net::handshake::{self, HandshakeConfig, Hello, Purpose, Secret};
use unisono_transports::net::listener::Listener;
use unisono_transports::net::unix;
use unisono_transports::tcp::connect::handshake_pool::{HandshakePool, PoolEvent};

/// A source of a flight record.
pub(crate) trait FlightRecordSource: Send + Sync {
    /// Returns the flight record.
    fn flight_record(&self) -> FlightRecord;
}

/// The communicators of this process.
static COMMUNICATORS: Mutex<Vec<Weak<dyn FlightRecordSource>>> = Mutex::new(Vec::new());

/// Includes `communicator` in the status as long as it exists. The first communicator with a secret
/// starts the listener, which answers only clients that know this `secret`.
pub(crate) fn register(communicator: Weak<dyn FlightRecordSource>, secret: Option<&Secret>) {
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
    let listener = Listener::unix_named(&format!("{SOCKET_PREFIX}{}", std::process::id()))?;
    let pool = HandshakePool::new(vec![listener], handshake_config(secret));
    let thread = std::thread::Builder::new().name("unisono status".to_owned()).stack_size(STACK_BYTES);
    let failed = |error| Error::system("cannot start the status thread", error);
    thread.spawn(|| serve(pool)).map(drop).map_err(failed)
}

/// Returns the handshake settings. Encryption is off, because the connection does not leave the
/// host.
fn handshake_config(secret: &Secret) -> HandshakeConfig {
    HandshakeConfig { secret: secret.clone(), encrypt: false }
}

fn serve(mut pool: HandshakePool) {
    while let Ok(events) = pool.wait(&[], Instant::now() + WAIT_ROUND) {
        for event in events {
            if let PoolEvent::Authenticated(mut stream, Hello { purpose: Purpose::Status, .. }) = event {
                // A client that has disconnected needs no answer.
                let _ = send_text(&mut stream, &flight_records_json(), Instant::now() + ANSWER_TIMEOUT);
            }
        }
    }
}

/// Returns the flight records of all communicators, as a list in JSON.
fn flight_records_json() -> String {
    let communicators = COMMUNICATORS.lock().unwrap_or_else(PoisonError::into_inner).clone();
    let alive = communicators.iter().filter_map(Weak::upgrade);
    let records: Vec<String> = alive.map(|communicator| communicator.flight_record().to_json()).collect();
    format!("[{}]", records.join(","))
}

/// Returns the ids of the processes of this host that listen. Some may belong to other users.
pub fn list_processes() -> Vec<u32> {
    let table = std::fs::read_to_string("/proc/net/unix").unwrap_or_default();
    let name = |line: &str| line.split_once(&format!("@unisono-{SOCKET_PREFIX}"))?.1.trim().parse().ok();
    let mut processes: Vec<u32> = table.lines().filter_map(name).collect();
    processes.sort_unstable();
    processes.dedup();
    processes
}

/// Gets the flight records of a process, which belongs to the job with this id. The answer is a
/// list in JSON, with one record for each communicator.
///
/// # Errors
/// Fails if the process is gone, belongs to another user or job, or does not answer in time.
pub fn query(process: u32, id: &UniqueId) -> Result<String> {
    let deadline = Instant::now() + ANSWER_TIMEOUT;
    let mut stream = unix::connect(&format!("{SOCKET_PREFIX}{process}"))?;
    let claims = Hello { purpose: Purpose::Status, rank: 0, ranks: 0, index: 0, session: 0 };
    handshake::connect(&mut stream, &handshake_config(id.secret()), &claims, deadline)?;
    Ok(recv_text(&mut stream, deadline)?)
}

const SOCKET_PREFIX: &str = "status-";
const ANSWER_TIMEOUT: Duration = Duration::from_secs(2);
/// Length of one wait for connections. The wait is repeated forever.
const WAIT_ROUND: Duration = Duration::from_secs(3600);
const STACK_BYTES: usize = 256 << 10;
