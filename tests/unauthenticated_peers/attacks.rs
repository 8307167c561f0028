//! Attacks of unauthenticated peers.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use unisono::UniqueId;
use unisono_transports::net::handshake::{self, HandshakeConfig, Hello, Purpose, Secret};
use unisono_transports::net::stream::Stream;
use unisono_transports::sys::random::random;

/// An attack over one connection, which stays open if the function returns it.
pub(crate) type Attack = fn(TcpStream, &CapturedHandshake) -> Option<TcpStream>;

/// All attacks, the silent one first.
pub(crate) const ALL: &[Attack] = &[
    silence,
    close,
    reset,
    http,
    tls,
    huge_length,
    random_bytes,
    slow_loris,
    replay_first_frame,
    replay,
    secret,
];

/// Bytes that the attackers have recorded.
pub(crate) struct CapturedHandshake {
    /// All bytes of the client in a valid handshake.
    handshake: Vec<u8>,
}

/// Threads that attack one address.
pub(crate) struct Flood {
    stop: Arc<AtomicBool>,
    connected: Arc<AtomicUsize>,
    threads: Vec<JoinHandle<()>>,
}

impl Flood {
    /// Starts `count` attacks on `address`, of these kinds and with a recorded handshake of the job
    /// `id`.
    ///
    /// Connections that stay open do so until [`Flood::end`].
    pub(crate) fn begin(address: SocketAddr, id: &UniqueId, kinds: &'static [Attack], count: usize) -> Self {
        let (stop, came) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
        let captured = Arc::new(capture_handshake(id));
        let start = |&kind: &Attack| {
            let (stop, came, captured) = (Arc::clone(&stop), Arc::clone(&came), Arc::clone(&captured));
            std::thread::spawn(move || {
                let mut staying = Vec::new();
                for _ in 0..count / kinds.len() {
                    let Ok(stream) = TcpStream::connect_timeout(&address, Duration::from_secs(1)) else {
                        break;
                    };
                    came.fetch_add(1, Ordering::Relaxed);
                    staying.extend(kind(stream, &captured));
                }
                hold_open(&mut staying, &stop);
            })
        };
        let threads = kinds.iter().map(start).collect();
        // The attackers must be there before the ranks.
        let begun = Instant::now();
        while came.load(Ordering::Relaxed) < count / 3 && begun.elapsed() < Duration::from_secs(20) {
            std::thread::sleep(Duration::from_millis(1));
        }
        Self { stop, connected: came, threads }
    }

    /// Ends the attacks, and returns the number of connections.
    pub(crate) fn end(self) -> usize {
        self.stop.store(true, Ordering::Relaxed);
        self.threads.into_iter().for_each(|thread| thread.join().expect("no panic"));
        self.connected.load(Ordering::Relaxed)
    }
}

/// Keeps connections open until `stop` is set.
fn hold_open(staying: &mut Vec<TcpStream>, stop: &AtomicBool) {
    while !stop.load(Ordering::Relaxed) {
        std::thread::sleep(Duration::from_millis(20));
    }
    staying.clear();
}

/// Records a valid handshake as an eavesdropper.
fn capture_handshake(id: &UniqueId) -> CapturedHandshake {
    let text = id.to_string();
    let secret = Secret::from_hex(text.split_once('/').expect("an id").1).expect("a secret");
    let terms = HandshakeConfig { secret, encrypt: false };
    let soon = || Instant::now() + Duration::from_secs(5);
    let ways = [(); 2].map(|()| TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port"));
    let [to_us, to_server] = [0, 1].map(|way| ways[way].local_addr().expect("an address"));
    let own_terms = terms.clone();
    std::thread::scope(|scope| {
        scope.spawn(move || {
            let claims = Hello { purpose: Purpose::Join, rank: 1, ranks: 2, index: 0, session: 0 };
            handshake::connect(
                &mut Stream::connect(to_us, soon()).expect("dialed"),
                &own_terms,
                &claims,
                soon(),
            )
            .expect("authenticated");
        });
        scope.spawn(|| {
            let (stream, _) = ways[1].accept().expect("accepted");
            handshake::accept(&mut stream.into(), &terms, soon()).expect("authenticated");
        });
        let (mut client, _) = ways[0].accept().expect("accepted");
        let mut server = TcpStream::connect(to_server).expect("connected");
        let mut handshake = Vec::new();
        for (theirs, ours) in [(FIRST_BYTES, REPLY_BYTES), (CONFIRMATION_BYTES, CONFIRMATION_BYTES)] {
            let mut said = vec![0; theirs];
            client.read_exact(&mut said).expect("said");
            server.write_all(&said).expect("passed on");
            handshake.extend(said);
            let mut answer = vec![0; ours];
            server.read_exact(&mut answer).expect("answered");
            client.write_all(&answer).expect("passed on");
        }
        CapturedHandshake { handshake }
    })
}

/// Bytes of the client's first frame.
const FIRST_BYTES: usize = 84;
const REPLY_BYTES: usize = 61;
/// Bytes of the confirmation with which either side ends.
const CONFIRMATION_BYTES: usize = 17;

fn silence(stream: TcpStream, _: &CapturedHandshake) -> Option<TcpStream> {
    Some(stream)
}

fn close(_: TcpStream, _: &CapturedHandshake) -> Option<TcpStream> {
    None
}

/// Resets the connection, by closing it with an unread reply.
fn reset(mut stream: TcpStream, captured: &CapturedHandshake) -> Option<TcpStream> {
    let _ = stream.write_all(&captured.handshake[..FIRST_BYTES]);
    let _ = stream.peek(&mut [0]);
    None
}

fn say(mut stream: TcpStream, bytes: &[u8]) -> Option<TcpStream> {
    let _ = stream.write_all(bytes);
    Some(stream)
}

fn http(stream: TcpStream, _: &CapturedHandshake) -> Option<TcpStream> {
    say(stream, b"GET / HTTP/1.1\r\nHost: localhost\r\nConnection: keep-alive\r\n\r\n")
}

fn tls(stream: TcpStream, _: &CapturedHandshake) -> Option<TcpStream> {
    let hello = [0x16, 3, 1, 2, 0, 1, 0, 1, 0xfc, 3, 3].into_iter().chain(0..=255);
    say(stream, &hello.collect::<Vec<u8>>())
}

/// Announces a gigabyte, and sends a little of it.
fn huge_length(stream: TcpStream, _: &CapturedHandshake) -> Option<TcpStream> {
    let prefix = (1u32 << 30).to_le_bytes().into_iter().chain([7; 4000]);
    say(stream, &prefix.collect::<Vec<u8>>())
}

fn random_bytes(stream: TcpStream, _: &CapturedHandshake) -> Option<TcpStream> {
    say(stream, &random::<400>().expect("randomness"))
}

/// Sends the beginning of a valid first frame slowly, and never all of it.
fn slow_loris(mut stream: TcpStream, captured: &CapturedHandshake) -> Option<TcpStream> {
    for byte in &captured.handshake[..30] {
        let _ = stream.write_all(&[*byte]);
        std::thread::sleep(Duration::from_micros(300));
    }
    Some(stream)
}

/// Sends the first frame of a recorded handshake, which the server answers, and nothing more.
fn replay_first_frame(stream: TcpStream, captured: &CapturedHandshake) -> Option<TcpStream> {
    say(stream, &captured.handshake[..FIRST_BYTES])
}

/// Sends all that the client of a recorded handshake sent.
fn replay(stream: TcpStream, captured: &CapturedHandshake) -> Option<TcpStream> {
    say(stream, &captured.handshake)
}

fn secret(stream: TcpStream, _: &CapturedHandshake) -> Option<TcpStream> {
    let claims = Hello { purpose: Purpose::Join, rank: 1, ranks: 2, index: 0, session: 0 };
    let soon = Instant::now() + Duration::from_secs(2);
    let wrong = HandshakeConfig { secret: Secret::random().expect("randomness"), encrypt: false };
    assert!(
        handshake::connect(&mut stream.into(), &wrong, &claims, soon).is_err(),
        "the wrong secret is refused"
    );
    None
}
