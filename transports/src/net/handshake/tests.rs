//! Handshakes with authenticated peers, unauthenticated peers, and an attacker in between.

use crate::Error;
use crate::net::handshake::frames::{
    CONFIRMATION_BYTES, FIRST_BYTES, PREAMBLE_BYTES, REPLY_BYTES, STATUS_BYTES, encode_prologue, preamble,
};
use crate::net::handshake::*;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, Shutdown, TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::time::Duration;

fn soon() -> Instant {
    Instant::now() + Duration::from_millis(300)
}

fn pair() -> (Stream, Stream) {
    let (first, second) = UnixStream::pair().unwrap();
    (Stream::Unix(first), Stream::Unix(second))
}

fn tcp_pair() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let local = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    (local, listener.accept().unwrap().0)
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
        let (local, remote) = tcp_pair();
        let terms = || HandshakeConfig { encrypt: encrypted, ..other_secret() };
        let (client, server) = run_handshake((local.into(), remote.into()), &terms(), terms());
        assert!(matches!(client.unwrap_err(), Error::AuthFailed { .. }));
        assert!(server.is_err());
    }
}

#[test]
fn tcp_is_encrypted_and_unix_is_not() {
    let terms = HandshakeConfig { encrypt: true, ..other_secret() };
    let (local, remote) = tcp_pair();
    for ((local, remote), sealed) in [((local.into(), remote.into()), true), (pair(), false)] {
        let (client, server) = run_handshake((local, remote), &terms, terms.clone());
        let (mut local, (mut remote, _)) = (client.unwrap(), server.unwrap());
        assert_eq!([&local, &remote].map(|end| end.record_layer().is_some()), [sealed; 2]);
        local.write_all(b"there", soon()).unwrap();
        remote.write_all(b"and back", soon()).unwrap();
        let (mut there, mut back) = ([0; 5], [0; 8]);
        remote.read_exact(&mut there, soon()).unwrap();
        local.read_exact(&mut back, soon()).unwrap();
        assert_eq!((&there, &back), (b"there", b"and back"));
    }
}

#[test]
fn encryption_mismatch_is_reported_on_both_sides() {
    for encrypted in [false, true] {
        let (local, remote) = tcp_pair();
        let client = HandshakeConfig { encrypt: encrypted, ..other_secret() };
        let server = HandshakeConfig { encrypt: !encrypted, ..client.clone() };
        let (client, server) = run_handshake((local.into(), remote.into()), &client, server);
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
fn relay(mut source: TcpStream, mut target: TcpStream, damaged: Option<usize>) {
    let (mut buffer, mut carried) = ([0; 256], 0);
    while let Ok(count @ 1..) = source.read(&mut buffer) {
        if let Some(place) =
            damaged.and_then(|index| index.checked_sub(carried)).filter(|&place| place < count)
        {
            buffer[place] ^= 1;
        }
        carried += count;
        if target.write_all(&buffer[..count]).is_err() {
            break;
        }
    }
    let _ = target.shutdown(Shutdown::Both);
}

/// Two ends with somebody in between, who changes this byte on the way to the server or back.
fn run_tampered(to_server: Option<usize>, to_client: Option<usize>) -> (Stream, Stream) {
    let ((local, relay_near), (relay_far, remote)) = (tcp_pair(), tcp_pair());
    let (source, target) = (relay_near.try_clone().unwrap(), relay_far.try_clone().unwrap());
    std::thread::spawn(move || relay(source, target, to_server));
    std::thread::spawn(move || relay(relay_far, relay_near, to_client));
    (local.into(), remote.into())
}

#[test]
fn any_flipped_handshake_bit_is_detected() {
    for encrypt in [false, true] {
        let config = HandshakeConfig { encrypt, ..other_secret() };
        let (client, server) = run_handshake(run_tampered(None, None), &config, config.clone());
        assert!(client.is_ok() && server.is_ok(), "it works undisturbed");
        let to_server = (0..FIRST_BYTES + CONFIRMATION_BYTES).map(|index| (Some(index), None));
        let to_client = (0..REPLY_BYTES + CONFIRMATION_BYTES).map(|index| (None, Some(index)));
        for (to_server, to_client) in to_server.chain(to_client) {
            let tampered = run_tampered(to_server, to_client);
            let (client, server) = run_handshake(tampered, &config, config.clone());
            let place = (to_server, to_client);
            assert!(client.is_err(), "{place:?}");
            // The server expects no answer to its confirmation.
            assert!(server.is_err() || to_client.is_some_and(|index| index >= REPLY_BYTES), "{place:?}");
        }
    }
}

#[test]
fn version_mismatch_is_reported() {
    let (mut local, mut remote) = pair();
    let thread = std::thread::spawn(move || accept(&mut remote, &other_secret(), soon()));
    let mut first = encode_prologue(&HELLO);
    first[8] = 99;
    local.write_all(&first, soon()).unwrap();
    let mut heard = [0; PREAMBLE_BYTES];
    local.read_exact(&mut heard, soon()).unwrap();
    assert_eq!(heard, preamble(), "the client learns the server's version");
    assert!(matches!(
        thread.join().unwrap().unwrap_err(),
        Error::VersionMismatch { theirs: 99, ours: VERSION, .. }
    ));
}

#[test]
fn silent_and_garbage_peers_time_out() {
    for bytes in [&b""[..], b"GET / HTTP/1.1\r\nHost: nobody at all, really\r\n\r\n", &[0xff; 400]] {
        let (mut local, mut remote) = pair();
        let thread = std::thread::spawn(move || accept(&mut remote, &other_secret(), soon()));
        local.write_all(bytes, soon()).unwrap();
        assert!(thread.join().unwrap().is_err());
    }
}

/// Runs a handshake to its end, and returns the first frame and the confirmation of the client.
fn record_client(config: &HandshakeConfig) -> (Vec<u8>, Vec<u8>) {
    let ((mut client, mut entry), (mut relay, mut server)) = (pair(), pair());
    let mut client_side = ClientHandshake::start(&mut client, config, &HELLO).unwrap();
    let mut server_side = ServerHandshake::default();
    let pass = |source: &mut Stream, target: &mut Stream, bytes: usize| {
        let mut frame = vec![0; bytes];
        source.read_exact(&mut frame, soon()).unwrap();
        target.write_all(&frame, soon()).unwrap();
        frame
    };
    let first = pass(&mut entry, &mut relay, FIRST_BYTES);
    assert_eq!(server_side.advance(&mut server, config).unwrap(), None);
    pass(&mut relay, &mut entry, REPLY_BYTES);
    assert!(!client_side.advance(&mut client, config).unwrap());
    let confirmation = pass(&mut entry, &mut relay, CONFIRMATION_BYTES);
    assert_eq!(server_side.advance(&mut server, config).unwrap(), Some(HELLO));
    pass(&mut relay, &mut entry, CONFIRMATION_BYTES);
    assert!(client_side.advance(&mut client, config).unwrap());
    (first, confirmation)
}

#[test]
fn replayed_first_frame_gets_a_reply_and_no_belief() {
    let config = other_secret();
    let (first, _) = record_client(&config);
    let ((mut local, mut remote), mut server) = (pair(), ServerHandshake::default());
    local.write_all(&first, soon()).unwrap();
    assert_eq!(server.advance(&mut remote, &config).unwrap(), None);
    let mut reply = Vec::new();
    assert!(local.read_some(&mut reply, REPLY_BYTES).unwrap());
    // However long the recording stays, the server says nothing more, and believes nothing.
    assert_eq!(server.advance(&mut remote, &config).unwrap(), None);
    assert!(!local.read_some(&mut reply, REPLY_BYTES + 1).unwrap());
    assert!(accept(&mut remote, &config, soon()).is_err());
}

#[test]
fn replayed_handshake_is_refused() {
    let config = other_secret();
    let (first, confirmation) = record_client(&config);
    for recorded in [[&first[..], &confirmation].concat(), [&first[..], &[0; CONFIRMATION_BYTES]].concat()] {
        let ((mut local, mut remote), mut server) = (pair(), ServerHandshake::default());
        local.write_all(&recorded, soon()).unwrap();
        let refused = server.advance(&mut remote, &config);
        assert!(matches!(refused, Err(Error::AuthFailed { .. })), "{refused:?}");
        drop(remote);
        let mut heard = Vec::new();
        assert!(local.read_some(&mut heard, REPLY_BYTES).unwrap());
        assert!(local.read_some(&mut heard, REPLY_BYTES + 1).is_err(), "the server confirms nothing");
    }
}

#[test]
fn reflected_server_frames_are_refused() {
    let config = other_secret();
    // The server's message 2 as a confirmation, and as a first message.
    let (first, _) = record_client(&config);
    let ((mut local, mut remote), mut server) = (pair(), ServerHandshake::default());
    local.write_all(&first, soon()).unwrap();
    assert_eq!(server.advance(&mut remote, &config).unwrap(), None);
    let mut reply = [0; REPLY_BYTES];
    local.read_exact(&mut reply, soon()).unwrap();
    local.write_all(&reply[REPLY_BYTES - CONFIRMATION_BYTES..], soon()).unwrap();
    assert!(matches!(server.advance(&mut remote, &config), Err(Error::AuthFailed { .. })));
    let ((mut local, mut remote), mut server) = (pair(), ServerHandshake::default());
    local.write_all(&[&encode_prologue(&HELLO)[..], &reply[STATUS_BYTES..]].concat(), soon()).unwrap();
    assert!(matches!(server.advance(&mut remote, &config), Err(Error::AuthFailed { .. })));
}
