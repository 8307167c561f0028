//! Traffic as an observer on the network records it. Encrypted jobs: no byte of the bootstrap is
//! readable, and ranks that disagree about encryption get an error. Others: no secret is sent.

mod support;

use std::collections::{BTreeMap, BTreeSet};
use std::io::{Read, Write};
use std::net::{IpAddr, Ipv4Addr, Shutdown, TcpListener, TcpStream};
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};
use support::World;
use unisono::{BootstrapError, Communicator, Config, ErrorKind, Sum, Transport, UniqueId};
use unisono_transports::net::handshake::Secret;
use unisono_transports::testing::{HANG, NEVER};

fn config(encryption: bool) -> Config {
    let timeout = Duration::from_secs(10);
    Config::default()
        .with_encryption(encryption)
        .with_transport(Transport::Tcp)
        .with_timeout(timeout)
        .with_join_timeout(timeout)
}

fn id() -> UniqueId {
    UniqueId::new(IpAddr::V4(Ipv4Addr::LOCALHOST)).expect("an id")
}

/// Copies until the end; what it saw.
fn relay(mut source: TcpStream, mut target: TcpStream) -> Vec<u8> {
    let (mut seen, mut buffer) = (Vec::new(), [0; 4096]);
    while let Ok(count @ 1..) = source.read(&mut buffer) {
        seen.extend(&buffer[..count]);
        if target.write_all(&buffer[..count]).is_err() {
            break;
        }
    }
    let _ = target.shutdown(Shutdown::Write);
    seen
}

/// Returns the bytes of a successful bootstrap between rank 1 and rank 0, as an observer on the
/// network sees them.
fn capture_bootstrap(encryption: bool) -> Vec<u8> {
    let id = id();
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port");
    let text = id.to_string();
    let (_, secret) = text.split_once('/').expect("an address and a secret");
    let detour =
        format!("{}/{secret}", listener.local_addr().expect("one")).parse::<UniqueId>().expect("an id");
    let (seen_by, seen) = channel();
    let root = id.address();
    thread::spawn(move || {
        let (accepted, _) = listener.accept().expect("rank 1");
        let end = Instant::now() + Duration::from_secs(10);
        let far = loop {
            match TcpStream::connect(root) {
                Ok(far) => break far,
                Err(error) => assert!(Instant::now() < end, "{error}"),
            }
        };
        let (entry, exit) =
            (accepted.try_clone().expect("a descriptor"), far.try_clone().expect("a descriptor"));
        let way = thread::spawn(move || relay(entry, exit));
        let back = relay(far, accepted);
        let _ = seen_by.send([way.join().expect("no panic"), back].concat());
    });
    thread::scope(|scope| {
        for (rank, id) in [id, detour].into_iter().enumerate() {
            scope.spawn(move || {
                let config = config(encryption).with_host(format!("the host of rank {rank}"));
                let comm = Communicator::join(&id, rank, 2, &config).expect("they meet");
                let mut sum = [1.0f32];
                comm.all_reduce(&mut sum, Sum).expect("a sum");
                assert_eq!(sum, [2.0]);
            });
        }
    });
    seen.recv_timeout(Duration::from_secs(10)).expect("it was carried")
}

#[test]
fn encrypted_bootstrap_is_unreadable() {
    let is_in = |seen: &[u8], text: &[u8]| seen.windows(text.len()).any(|window| window == text);
    let (plain, sealed) = (capture_bootstrap(false), capture_bootstrap(true));
    for name in [&b"the host of rank 0"[..], b"the host of rank 1"] {
        assert!(is_in(&plain, name), "this test sees nothing at all");
        assert!(!is_in(&sealed, name));
    }
}

#[test]
fn encryption_mismatch_fails_all_ranks() {
    for root_encrypts in [false, true] {
        let (id, begun) = (id(), Instant::now());
        let join = |rank: usize| {
            let id = id.clone();
            // The one that differs comes when the others wait already.
            thread::sleep(Duration::from_millis(if rank == 2 { 200 } else { 0 }));
            let config = config(root_encrypts != (rank == 2)).with_join_timeout(NEVER);
            Communicator::join(&id, rank, 3, &config).map(drop).unwrap_err()
        };
        let join = &join;
        let errors = thread::scope(|scope| {
            [0, 1, 2].map(|rank| scope.spawn(move || join(rank))).map(|rank| rank.join().expect("no panic"))
        });
        assert!(begun.elapsed() < HANG, "{:?}", begun.elapsed());
        for error in errors {
            let ErrorKind::Bootstrap(BootstrapError::Settings { ranks, .. }) = error.kind() else {
                panic!("{error}")
            };
            assert!(ranks.contains(&0) && ranks.contains(&2), "{error}");
            let text = error.to_string();
            assert!(["encryption on", "encryption off"].iter().all(|told| text.contains(told)), "{text}");
        }
    }
}

#[test]
fn a_wrong_secret_is_refused() {
    let id = id();
    let other = UniqueId::from_parts(id.address(), Secret::random().expect("randomness"));
    thread::scope(|scope| {
        let refused = scope.spawn(|| Communicator::join(&other, 1, 2, &config(true)).map(drop).unwrap_err());
        let short = config(true).with_join_timeout(Duration::from_millis(700));
        Communicator::join(&id, 0, 2, &short).map(drop).unwrap_err();
        let refused = refused.join().expect("no panic");
        let kind = refused.kind();
        assert!(matches!(kind, ErrorKind::Bootstrap(BootstrapError::Secret { .. })), "{refused}");
    });
}

/// Ranks that are left, groups and newcomers meet anew, on the terms of the job.
#[test]
fn survivors_keep_encryption() {
    World::Encrypted.run(3, &config(true), |comm| {
        if comm.rank() == 1 {
            return;
        }
        assert!(comm.all_reduce(&mut [0.0f32; 3000], Sum).is_err());
        let comm = comm.shrink().expect("two are left");
        assert!(comm.config().encryption);
        let half = comm.split(Some(0), 0).expect("a group").expect("of both");
        let mut sum = vec![1.0f32; 100_000];
        half.all_reduce(&mut sum, Sum).expect("a sum");
        assert!(sum.iter().all(|&value| value == 2.0));
    });
}

/// A network of relays between ranks, which records all that they carry.
#[derive(Clone, Default)]
struct Recorder(Arc<Mutex<Recording>>);

#[derive(Default)]
struct Recording {
    bytes: Vec<u8>,
    /// The port of the relay to each port.
    relays: BTreeMap<u16, u16>,
}

impl Recorder {
    fn lock(&self) -> MutexGuard<'_, Recording> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Starts a relay to a port, with as many digits, and returns its port. It replaces the
    /// addresses of ranks in what it carries by those of relays, if told so.
    fn relay_to(&self, port: u16, replaces: bool) -> u16 {
        let listener = loop {
            let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port");
            let own_port = listener.local_addr().expect("one").port();
            if own_port.to_string().len() == port.to_string().len() {
                break listener;
            }
        };
        let own_port = listener.local_addr().expect("one").port();
        let recorder = self.clone();
        thread::spawn(move || {
            for accepted in listener.incoming().flatten() {
                let far = loop {
                    // Rank 0 may not listen yet.
                    match TcpStream::connect((Ipv4Addr::LOCALHOST, port)) {
                        Ok(far) => break far,
                        Err(_) => thread::sleep(Duration::from_millis(1)),
                    }
                };
                let ends = [(&accepted, &far), (&far, &accepted)].map(|(source, target)| {
                    (source.try_clone().expect("a descriptor"), target.try_clone().expect("a descriptor"))
                });
                for (source, target) in ends {
                    let recorder = recorder.clone();
                    thread::spawn(move || recorder.carry(source, target, replaces));
                }
            }
        });
        own_port
    }

    fn carry(&self, mut source: TcpStream, mut target: TcpStream, replaces: bool) {
        let mut buffer = [0; 1 << 16];
        while let Ok(count @ 1..) = source.read(&mut buffer) {
            let bytes = &mut buffer[..count];
            if replaces {
                self.replace_addresses(bytes);
            }
            self.lock().bytes.extend(&*bytes);
            if target.write_all(bytes).is_err() {
                break;
            }
        }
        let _ = target.shutdown(Shutdown::Write);
    }

    /// Replaces the addresses in descriptions of ranks by those of relays.
    fn replace_addresses(&self, bytes: &mut [u8]) {
        const BEFORE: &[u8] = b"\n127.0.0.1:";
        let starts: Vec<usize> = (0..bytes.len())
            .filter(|&offset| bytes[offset..].starts_with(BEFORE))
            .map(|offset| offset + BEFORE.len())
            .collect();
        for start in starts {
            let digits = bytes[start..].iter().take_while(|byte| byte.is_ascii_digit()).count();
            let text = std::str::from_utf8(&bytes[start..start + digits]).expect("digits");
            let port: u16 = text.parse().expect("a port");
            if self.lock().relays.values().any(|relay| *relay == port) {
                continue;
            }
            let known = self.lock().relays.get(&port).copied();
            let relay = known.unwrap_or_else(|| self.relay_to(port, false));
            self.lock().relays.insert(port, relay);
            bytes[start..start + digits].copy_from_slice(relay.to_string().as_bytes());
        }
    }
}

fn bytes_of(hex: &str) -> Vec<u8> {
    (0..hex.len())
        .step_by(2)
        .map(|offset| u8::from_str_radix(&hex[offset..offset + 2], 16).expect("digits"))
        .collect()
}

/// The observer reads what ranks send each other, and the invitations to groups. It learns neither
/// the secret of the job nor those of the groups.
#[test]
fn groups_of_a_plain_job_send_no_secret() {
    const TEXT: &[u8] = b"a text that everybody can read";
    let (id, recorder) = (id(), Recorder::default());
    let text = id.to_string();
    let (_, secret) = text.split_once('/').expect("an address and a secret");
    let relay = recorder.relay_to(id.address().port(), true);
    let detour: UniqueId = format!("127.0.0.1:{relay}/{secret}").parse().expect("an id");
    thread::scope(|scope| {
        for (rank, id) in [id, detour].into_iter().enumerate() {
            scope.spawn(move || {
                let comm = Communicator::join(&id, rank, 2, &config(false)).expect("they meet");
                let mut text = [0; TEXT.len()];
                if rank == 0 {
                    text.copy_from_slice(TEXT);
                }
                comm.broadcast(&mut text, 0).expect("a broadcast");
                let half = comm.split(Some(7), 1 - rank as i32).expect("a group").expect("of both");
                let second = comm.duplicate().expect("a second one");
                let group = comm.create_group(&[1, 0], 5).expect("a group");
                for (child, expected) in [(half, 1 - rank), (second, rank), (group, 1 - rank)] {
                    let mut sum = [1.0f32];
                    child.all_reduce(&mut sum, Sum).expect("a sum");
                    assert_eq!((sum, child.rank()), ([2.0], expected));
                }
            });
        }
    });
    let seen = std::mem::take(&mut recorder.lock().bytes);
    let is_in = |part: &[u8]| seen.windows(part.len()).any(|window| window == part);
    assert!(is_in(TEXT), "the recorder does not see what ranks send each other");
    let texts_after = |mark: u8| -> BTreeSet<String> {
        let is_hex = |bytes: &[u8]| bytes.iter().all(u8::is_ascii_hexdigit);
        let found = seen.windows(65).filter(|window| window[0] == mark && is_hex(&window[1..]));
        found.map(|window| String::from_utf8_lossy(&window[1..]).into_owned()).collect()
    };
    assert_eq!(texts_after(b'/'), BTreeSet::new(), "an address with a secret");
    let nonces = texts_after(b'#');
    assert_eq!(nonces.len(), 3, "an invitation to each group: {nonces:?}");
    let job = Secret::from_hex(secret).expect("64 digits");
    let members = [[0u64, 1], [1, 0]].map(|members| members.map(u64::to_le_bytes).concat());
    let label = |nonce: &String, members: &[u8]| [&b"meeting "[..], &bytes_of(nonce), members].concat();
    let keys = nonces.iter().flat_map(|nonce| members.iter().map(move |members| (nonce, members)));
    let keys = keys.map(|(nonce, members)| job.derive(&label(nonce, members)).to_hex());
    for hidden in keys.chain([secret.to_owned()]) {
        assert!(!is_in(hidden.as_bytes()) && !is_in(&bytes_of(&hidden)), "{hidden}");
    }
}
