//! Handshakes with friends, strangers, and somebody in between.

use crate::secure::handshake::*;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, Shutdown, TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::time::Duration;

fn soon() -> Instant {
    Instant::now() + Duration::from_millis(300)
}

fn pair() -> (Stream, Stream) {
    let (one, other) = UnixStream::pair().unwrap();
    (Stream::Unix(one), Stream::Unix(other))
}

fn tcp_pair() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    (near, listener.accept().unwrap().0)
}

const HELLO: Hello = Hello { purpose: Purpose::Data, rank: 3, ranks: 4, index: 1, session: 99 };

fn unencrypted(secret: Secret) -> HandshakeConfig {
    HandshakeConfig { secret, encrypt: false }
}

fn other_secret() -> HandshakeConfig {
    unencrypted(Secret::random().unwrap())
}

fn run_handshake(
    (mut near, mut far): (Stream, Stream),
    client: &HandshakeConfig,
    server: HandshakeConfig,
) -> HandshakeResults {
    let thread = std::thread::spawn(move || accept(&mut far, &server, soon()).map(|claims| (far, claims)));
    let ended = connect(&mut near, client, &HELLO, soon()).map(|()| near);
    (ended, thread.join().unwrap())
}

type HandshakeResults = (Result<Stream>, Result<(Stream, Hello)>);

#[test]
fn right_secret_is_accepted() {
    let secret = Secret::random().unwrap();
    let again = Secret::from_hex(&secret.to_hex()).unwrap();
    let (client, server) = run_handshake(pair(), &unencrypted(secret), unencrypted(again));
    client.unwrap();
    assert_eq!(server.unwrap().1, HELLO);
}

#[test]
fn wrong_secret_fails_on_both_sides() {
    for encrypted in [false, true] {
        let begun = Instant::now();
        let (near, far) = tcp_pair();
        let terms = || HandshakeConfig { encrypt: encrypted, ..other_secret() };
        let (client, server) = run_handshake((near.into(), far.into()), &terms(), terms());
        assert!(matches!(client.unwrap_err(), Error::AuthFailed { .. }));
        assert!(server.is_err());
        assert!(begun.elapsed() < Duration::from_millis(100));
    }
}

#[test]
fn tcp_is_encrypted_and_unix_is_not() {
    let terms = HandshakeConfig { encrypt: true, ..other_secret() };
    let (near, far) = tcp_pair();
    for ((near, far), sealed) in [((near.into(), far.into()), true), (pair(), false)] {
        let (client, server) = run_handshake((near, far), &terms, terms.clone());
        let (mut near, (mut far, _)) = (client.unwrap(), server.unwrap());
        assert_eq!([&near, &far].map(|end| end.record_layer().is_some()), [sealed; 2]);
        near.write_all(b"there", soon()).unwrap();
        far.write_all(b"and back", soon()).unwrap();
        let (mut there, mut back) = ([0; 5], [0; 8]);
        far.read_exact(&mut there, soon()).unwrap();
        near.read_exact(&mut back, soon()).unwrap();
        assert_eq!((&there, &back), (b"there", b"and back"));
    }
}

#[test]
fn encryption_mismatch_is_reported_on_both_sides() {
    for encrypted in [false, true] {
        let (near, far) = tcp_pair();
        let client = HandshakeConfig { encrypt: encrypted, ..other_secret() };
        let server = HandshakeConfig { encrypt: !encrypted, ..client.clone() };
        let (client, server) = run_handshake((near.into(), far.into()), &client, server);
        let (client, server) = (client.unwrap_err(), server.unwrap_err());
        assert!(
            matches!(client, Error::EncryptionMismatch { rank: None, encrypts, .. } if encrypts != encrypted)
        );
        assert!(
            matches!(server, Error::EncryptionMismatch { rank: Some(3), encrypts, .. } if encrypts == encrypted)
        );
    }
}

/// Copies from one to the other until the end, with a bit of one byte changed.
fn relay(mut from: TcpStream, mut to: TcpStream, damaged: Option<usize>) {
    let (mut buffer, mut carried) = ([0; 256], 0);
    while let Ok(count @ 1..) = from.read(&mut buffer) {
        if let Some(place) = damaged.and_then(|at| at.checked_sub(carried)).filter(|&place| place < count) {
            buffer[place] ^= 1;
        }
        carried += count;
        if to.write_all(&buffer[..count]).is_err() {
            break;
        }
    }
    let _ = to.shutdown(Shutdown::Both);
}

/// Two ends with somebody in between, who changes this byte on the way to the server or back.
fn run_tampered(to_server: Option<usize>, to_client: Option<usize>) -> (Stream, Stream) {
    let ((near, near_far), (far_near, far)) = (tcp_pair(), tcp_pair());
    let (from, to) = (near_far.try_clone().unwrap(), far_near.try_clone().unwrap());
    std::thread::spawn(move || relay(from, to, to_server));
    std::thread::spawn(move || relay(far_near, near_far, to_client));
    (near.into(), far.into())
}

#[test]
fn any_flipped_handshake_bit_is_detected() {
    let terms = HandshakeConfig { encrypt: true, ..other_secret() };
    let (client, server) = run_handshake(run_tampered(None, None), &terms, terms.clone());
    assert!(client.is_ok() && server.is_ok(), "it works undisturbed");
    let to_server = (0..HELLO_BYTES + PROOF_BYTES + noise::MESSAGE_BYTES).map(|at| (Some(at), None));
    let to_client = (0..REPLY_BYTES + 1 + noise::MESSAGE_BYTES).map(|at| (None, Some(at)));
    for (to_server, to_client) in to_server.chain(to_client) {
        let (client, server) = run_handshake(run_tampered(to_server, to_client), &terms, terms.clone());
        let place = (to_server, to_client);
        assert!(client.is_err(), "{place:?}");
        // A server has no more to hear when its last word is changed.
        assert!(server.is_err() || to_client.is_some_and(|at| at >= REPLY_BYTES), "{place:?}");
    }
    // Nor can anybody tell both of them that the other does not encrypt.
    let terms_at = (Some(HELLO_BYTES - ENCRYPTION_FLAG_BYTES), Some(PREAMBLE_BYTES + NONCE_BYTES));
    let (client, server) = run_handshake(run_tampered(terms_at.0, terms_at.1), &terms, terms.clone());
    assert!(matches!(client.unwrap_err(), Error::AuthFailed { .. }) && server.is_err());
}

#[test]
fn version_mismatch_is_reported() {
    let (mut near, mut far) = pair();
    let thread = std::thread::spawn(move || accept(&mut far, &other_secret(), soon()));
    let mut hello = encode_hello(&[0; 32], &HELLO, false);
    hello[8] = 7;
    near.write_all(&hello, soon()).unwrap();
    assert!(matches!(
        thread.join().unwrap().unwrap_err(),
        Error::VersionMismatch { theirs: 7, ours: VERSION, .. }
    ));
}

#[test]
fn silent_and_garbage_peers_time_out() {
    for bytes in [&b""[..], b"GET / HTTP/1.1\r\nHost: nobody at all, really\r\n\r\n", &[0xff; 400]] {
        let (mut near, mut far) = pair();
        let thread = std::thread::spawn(move || accept(&mut far, &other_secret(), soon()));
        near.write_all(bytes, soon()).unwrap();
        assert!(thread.join().unwrap().is_err());
    }
}

#[test]
fn replayed_handshake_is_refused() {
    let secret = Secret::random().unwrap();
    let hello = encode_hello(&[5; 32], &HELLO, false);
    let recorded = secret.hmac(CLIENT_ROLE, &hello, &[9; 36]).finalize().into_bytes();
    let (mut near, mut far) = pair();
    let thread = std::thread::spawn(move || accept(&mut far, &unencrypted(secret), soon()));
    near.write_all(&hello, soon()).unwrap();
    near.write_all(&recorded, soon()).unwrap();
    assert!(matches!(thread.join().unwrap().unwrap_err(), Error::AuthFailed { .. }));
}

#[test]
fn reflected_server_proof_is_refused() {
    let secret = Secret::random().unwrap();
    let (mut near, mut far) = pair();
    let thread = std::thread::spawn(move || accept(&mut far, &unencrypted(secret), soon()));
    near.write_all(&encode_hello(&[5; 32], &HELLO, false), soon()).unwrap();
    let mut reply = [0; REPLY_BYTES];
    near.read_exact(&mut reply, soon()).unwrap();
    near.write_all(&reply[48..], soon()).unwrap();
    assert!(matches!(thread.join().unwrap().unwrap_err(), Error::AuthFailed { .. }));
}
