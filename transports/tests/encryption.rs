//! An attacker between two ranks can neither read their encrypted traffic nor change it unnoticed.

#![cfg(not(loom))]

use std::io::{Read, Write};
use std::net::{Ipv4Addr, Shutdown, TcpListener, TcpStream};
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::{Duration, Instant};
use unisono_transports::control::RemoteControl;
use unisono_transports::net::handshake::{self, HandshakeConfig, Hello, Purpose, Secret};
use unisono_transports::net::stream::Stream;
use unisono_transports::tcp::TcpLink;
use unisono_transports::{ControlChannel, Error, Geometry, Link, MAX_CONTROL_MSG_BYTES, PeerEvent, Tag};

const GEOMETRY: Geometry =
    Geometry { lanes: 1, slots: 4, slot_bytes: 100_000, signal_lanes: 1, window_bytes: 4096, heap_bytes: 0 };
const MESSAGES: u64 = 3;
/// Bytes of the frames that the client sends before its first record.
const HANDSHAKE: [usize; 2] = [84, 17];

/// The attack on the records of the client, which are counted from 0.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Tampering {
    Nothing,
    /// Flips a bit of this byte after the handshake.
    Flip(usize),
    Repeat(usize),
    Omit(usize),
    /// Swaps this record with the next one.
    Swap(usize),
    /// Closes the connection within this record.
    Cut(usize),
}

/// The two ends of a connection, and the bytes that the attacker has seen.
struct Tapped {
    near: Stream,
    far: Stream,
    seen: Receiver<Vec<u8>>,
}

fn soon() -> Instant {
    Instant::now() + Duration::from_secs(10)
}

fn tcp_pair() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("loopback");
    let local = TcpStream::connect(listener.local_addr().expect("one")).expect("loopback");
    (local, listener.accept().expect("loopback").0)
}

/// Connects two ranks through an attacker.
fn tapped(encrypted: bool, attack: Tampering) -> Tapped {
    let ((local, entry), (exit, remote)) = (tcp_pair(), tcp_pair());
    let (way, back) = ((entry.try_clone(), exit.try_clone()), (exit, entry));
    let (seen_by, seen) = channel();
    let way = (way.0.expect("a descriptor"), way.1.expect("a descriptor"));
    thread::spawn(move || {
        let carried = relay(way.0, way.1, attack);
        let _ = seen_by.send(carried);
    });
    thread::spawn(move || relay(back.0, back.1, Tampering::Nothing));
    let terms = HandshakeConfig { secret: Secret::random().expect("randomness"), encrypt: encrypted };
    let (mut local, mut remote) = (Stream::from(local), Stream::from(remote));
    let claims = Hello { purpose: Purpose::Data, rank: 0, ranks: 2, index: 0, session: 7 };
    thread::scope(|scope| {
        let accepted = scope.spawn(|| handshake::accept(&mut remote, &terms, soon()));
        handshake::connect(&mut local, &terms, &claims, soon()).expect("authenticated");
        assert_eq!(accepted.join().expect("no panic").expect("authenticated"), claims);
    });
    Tapped { near: local, far: remote, seen }
}

/// Copies bytes until the end, and returns all of them.
fn relay(mut source: TcpStream, mut target: TcpStream, attack: Tampering) -> Vec<u8> {
    let mut seen = Vec::new();
    let done = match attack {
        Tampering::Nothing => copy(&mut source, &mut target, &mut seen),
        attack => tamper_records(&mut source, &mut target, attack),
    };
    // Either end may close first.
    drop(done);
    let _ = target.shutdown(Shutdown::Both);
    let _ = source.shutdown(Shutdown::Both);
    seen
}

fn copy(source: &mut TcpStream, target: &mut TcpStream, seen: &mut Vec<u8>) -> std::io::Result<()> {
    let mut buffer = [0; 4096];
    loop {
        match source.read(&mut buffer)? {
            0 => return Ok(()),
            count => {
                seen.extend(&buffer[..count]);
                target.write_all(&buffer[..count])?;
            }
        }
    }
}

fn first(source: &mut TcpStream, bytes: usize) -> std::io::Result<Vec<u8>> {
    let mut first = vec![0; bytes];
    source.read_exact(&mut first).map(|()| first)
}

/// Reads one record. Its length is in the clear.
fn record(source: &mut TcpStream) -> std::io::Result<Vec<u8>> {
    let mut record = first(source, 2)?;
    let length = u16::from_le_bytes([record[0], record[1]]);
    record.extend(first(source, length.into())?);
    Ok(record)
}

fn tamper_records(source: &mut TcpStream, target: &mut TcpStream, attack: Tampering) -> std::io::Result<()> {
    for bytes in HANDSHAKE {
        target.write_all(&first(source, bytes)?)?;
    }
    let mut passed = 0;
    for number in 0.. {
        let mut bytes = record(source)?;
        match attack {
            Tampering::Flip(at) if (passed..passed + bytes.len()).contains(&at) => bytes[at - passed] ^= 1,
            Tampering::Repeat(which) if which == number => bytes.extend(bytes.clone()),
            Tampering::Omit(which) if which == number => continue,
            Tampering::Swap(which) if which == number => bytes = [record(source)?, bytes].concat(),
            Tampering::Cut(which) if which == number => return target.write_all(&bytes[..bytes.len() / 2]),
            _ => {}
        }
        passed += bytes.len();
        target.write_all(&bytes)?;
    }
    Ok(())
}

fn body(number: u64) -> Vec<u8> {
    (0..GEOMETRY.slot_bytes).map(|index| (index as u64 * 7 + number) as u8).collect()
}

/// Sends some messages, waits for an answer, and returns the error with which that ends.
fn send_all(mut link: TcpLink) -> Error {
    let end = soon();
    let mut sent = 0;
    loop {
        assert!(Instant::now() < end, "the sender never ends");
        let body = body(sent);
        let tried = match sent {
            MESSAGES => link.header(0).map(|head| assert!(head.is_none(), "there is no answer")),
            _ => link
                .try_send(0, &Tag([sent; 4]), body.len(), &mut std::iter::once((&body[..]).into()))
                .map(|done| sent += u64::from(done)),
        };
        match tried.and_then(|()| link.progress()) {
            Ok(()) => thread::yield_now(),
            Err(error) => return error,
        }
    }
}

/// Receives messages, and returns their number and the error that came before the last one.
fn receive_all(link: &mut TcpLink) -> (u64, Option<Error>) {
    let end = soon();
    for number in 0..MESSAGES {
        let mut found = vec![0; GEOMETRY.slot_bytes];
        let taken = loop {
            assert!(Instant::now() < end, "the receiver never ends");
            let tried = link.header(0).and_then(|head| match head {
                Some(head) => {
                    assert_eq!((head.tag, head.bytes), (Tag([number; 4]), GEOMETRY.slot_bytes));
                    link.recv_into(0, found[..].as_mut().into())
                }
                None => Ok(false),
            });
            match tried {
                Ok(true) => break Ok(()),
                Ok(false) => thread::yield_now(),
                Err(error) => break Err(error),
            }
        };
        match taken {
            Ok(()) => assert!(found == body(number), "message {number} differs"),
            Err(error) => return (number, Some(error)),
        }
    }
    (MESSAGES, None)
}

/// Sends messages through an attack, and returns the number received and the errors of the receiver
/// and the sender.
fn transfer(attack: Tampering) -> (u64, Option<Error>, Error) {
    let Tapped { near, far, .. } = tapped(true, attack);
    let link = |peer, stream| TcpLink::new(peer, &GEOMETRY, vec![stream]).expect("a link");
    let (local, remote) = (link(1, near), link(0, far));
    thread::scope(|scope| {
        let sender = scope.spawn(|| send_all(local));
        let mut remote = remote;
        let (received, ended) = receive_all(&mut remote);
        // The sender must learn of the error from the shutdown, not from the end of the receiver.
        let kept = ended.is_some().then_some(remote);
        let at_sender = sender.join().expect("no panic");
        drop(kept);
        (received, ended, at_sender)
    })
}

/// Checks all cases at once, because most of their time is waiting.
fn check_all_at_once<T: Send>(cases: impl IntoIterator<Item = T>, check: impl Fn(T) + Sync) {
    thread::scope(|scope| {
        for case in cases {
            let check = &check;
            scope.spawn(move || check(case));
        }
    });
}

#[test]
fn all_messages_arrive_untampered() {
    let (received, ended, _) = transfer(Tampering::Flip(usize::MAX));
    assert!(received == MESSAGES && ended.is_none(), "{received} messages, then {ended:?}");
}

#[test]
fn flipped_bit_fails_both_ends() {
    // Lengths, text and tags of the first two records, and some of the middle.
    let record = 2 + (32 << 10) + 16;
    let near_edges = [0, 1, 2, 3, 17, 41, 42, 43, record - 17, record - 16, record - 1];
    let places = near_edges
        .into_iter()
        .chain(near_edges.map(|offset| record + offset))
        .chain([40_000, 150_000, 250_000]);
    check_all_at_once(places, |offset| {
        let (received, ended, at_sender) = transfer(Tampering::Flip(offset));
        let Some(Error::ProtocolViolation { peer: 0, .. }) = ended else {
            panic!("byte {offset}: {ended:?}")
        };
        assert!(
            received <= (offset / GEOMETRY.slot_bytes) as u64,
            "byte {offset}: {received} messages before it"
        );
        assert!(matches!(at_sender, Error::ConnectionLost { peer: 1, .. }), "byte {offset}: {at_sender}");
    });
}

#[test]
fn replayed_dropped_or_swapped_records_are_errors() {
    let attacks = [
        Tampering::Repeat(0),
        Tampering::Repeat(3),
        Tampering::Omit(0),
        Tampering::Omit(2),
        Tampering::Swap(0),
        Tampering::Swap(4),
    ];
    check_all_at_once(attacks, |attack| {
        let (_, ended, at_sender) = transfer(attack);
        assert!(matches!(ended, Some(Error::ProtocolViolation { peer: 0, .. })), "{attack:?}: {ended:?}");
        assert!(matches!(at_sender, Error::ConnectionLost { peer: 1, .. }), "{attack:?}: {at_sender}");
    });
}

#[test]
fn cut_connection_is_lost() {
    check_all_at_once([0, 5], |which| {
        let (_, ended, at_sender) = transfer(Tampering::Cut(which));
        assert!(matches!(ended, Some(Error::ConnectionLost { peer: 0, .. })), "record {which}: {ended:?}");
        assert!(matches!(at_sender, Error::ConnectionLost { peer: 1, .. }), "record {which}: {at_sender}");
    });
}

/// Returns the next events of a control channel.
fn events(sockets: &mut RemoteControl, count: usize) -> Vec<PeerEvent> {
    let (mut heard, end) = (Vec::new(), soon());
    while heard.len() < count {
        assert!(Instant::now() < end, "only {heard:?}");
        match sockets.poll() {
            Some(event) => heard.push(event),
            None => thread::yield_now(),
        }
    }
    heard
}

#[test]
fn tampered_control_message_ends_connection() {
    for offset in [0, 2, 20] {
        let Tapped { near, far, .. } = tapped(true, Tampering::Flip(offset));
        let [mut local, mut remote] =
            [near, far].map(|stream| RemoteControl::new(vec![Some(stream)]).expect("a socket"));
        // The second and later ones are for a length that was changed.
        (0..4).for_each(|_| local.post(&[5; MAX_CONTROL_MSG_BYTES]));
        let unreadable = PeerEvent::Message { from: 0, bytes: Vec::new() };
        assert_eq!(events(&mut remote, 2), [unreadable, PeerEvent::Exited { from: 0 }], "byte {offset}");
        let end = soon();
        while local.poll() != Some(PeerEvent::Exited { from: 0 }) {
            assert!(Instant::now() < end, "the sender does not notice");
        }
    }
}

/// Returns true if the attacker sees a text that is in a data message or a control message.
fn is_seen(encrypted: bool, as_control: bool) -> bool {
    const TEXT: &[u8] = b"a text that must stay secret";
    let Tapped { near, far, seen } = tapped(encrypted, Tampering::Nothing);
    if as_control {
        let [mut local, mut remote] =
            [near, far].map(|stream| RemoteControl::new(vec![Some(stream)]).expect("a socket"));
        local.post(TEXT);
        assert_eq!(events(&mut remote, 1), [PeerEvent::Message { from: 0, bytes: TEXT.to_vec() }]);
    } else {
        let link = |peer, stream| TcpLink::new(peer, &GEOMETRY, vec![stream]).expect("a link");
        let (mut local, mut remote) = (link(1, near), link(0, far));
        let (body, mut found) = (TEXT.repeat(1000), vec![0; 1000 * TEXT.len()]);
        let (mut sent, mut received, end) = (false, false, soon());
        while !received {
            assert!(Instant::now() < end, "the message does not arrive");
            let mut parts = std::iter::once((&body[..]).into());
            sent = sent || local.try_send(0, &Tag([1; 4]), body.len(), &mut parts).expect("sound");
            received = remote.header(0).expect("sound").is_some()
                && remote.recv_into(0, found[..].as_mut().into()).expect("sound");
        }
        assert!(found == body);
    }
    let seen = seen.recv_timeout(Duration::from_secs(10)).expect("bytes were relayed");
    seen.windows(TEXT.len()).any(|window| window == TEXT)
}

#[test]
fn traffic_is_unreadable_on_the_wire() {
    for as_control in [false, true] {
        assert!(is_seen(false, as_control), "this test sees nothing at all");
        assert!(!is_seen(true, as_control), "control message: {as_control}");
    }
}
