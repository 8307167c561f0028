//! A connection that garbles what it carries: from a byte on, in one direction.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, Shutdown, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::thread::sleep;
use std::time::Duration;

/// Fault at a byte, or from a byte on.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Fault {
    /// The byte comes late.
    Stall(Duration),
    /// This byte and all bytes after it are dropped, and the sender is not told.
    Swallow,
    /// The connection ends before it.
    Cut,
    /// These of its bits are others.
    Flip(u8),
    /// So many bytes before this one come again.
    Repeat(usize),
}

/// Bytes that have passed.
pub(crate) type Record = Arc<Mutex<Vec<u8>>>;

/// Returns both ends of a connection with `fault` at a byte from the first end to the second one,
/// and the counter of bytes that have passed in that direction.
pub(crate) fn connection(fault: Option<(usize, Fault)>) -> ([TcpStream; 2], Record) {
    let [(near, first), (second, far)] = [pair(), pair()];
    let record = Record::default();
    let (there, back) = ([first.clone_of(), second.clone_of()], [second, first]);
    let kept = Arc::clone(&record);
    std::thread::spawn(move || relay(there, fault, &kept));
    std::thread::spawn(move || relay(back, None, &Record::default()));
    ([near, far], record)
}

/// Returns both ends of a connection without faults.
pub(crate) fn pair() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port");
    let near = TcpStream::connect(listener.local_addr().expect("an address")).expect("it listens");
    let (far, _) = listener.accept().expect("a connection");
    [&near, &far].iter().for_each(|end| end.set_nodelay(true).expect("a socket"));
    (near, far)
}

trait CloneOf {
    fn clone_of(&self) -> Self;
}

impl CloneOf for TcpStream {
    fn clone_of(&self) -> Self {
        self.try_clone().expect("a descriptor")
    }
}

/// Carries bytes until either end is closed.
fn relay([mut from, mut to]: [TcpStream; 2], fault: Option<(usize, Fault)>, record: &Record) {
    let mut buffer = [0; 4096];
    let mut passed = 0;
    let mut swallows = false;
    while let Ok(count @ 1..) = from.read(&mut buffer) {
        let bytes = &mut buffer[..count];
        if swallows {
            continue;
        }
        let here = fault.filter(|(at, _)| (passed..passed + count).contains(at));
        let written = match here {
            None => to.write_all(bytes),
            Some((at, fault)) => {
                let (before, after) = bytes.split_at_mut(at - passed);
                record.lock().expect("no panic").extend(&*before);
                swallows = fault == Fault::Swallow;
                let ended = to.write_all(before).and_then(|()| apply(fault, after, &mut to, record));
                record.lock().expect("no panic").truncate(passed);
                ended
            }
        };
        if written.is_err() {
            break;
        }
        record.lock().expect("no panic").extend(&*bytes);
        passed += count;
    }
    let _ = (to.shutdown(Shutdown::Write), from.shutdown(Shutdown::Read));
}

/// Applies the fault to the first of `bytes` and writes the remaining bytes; an error ends the
/// connection.
fn apply(fault: Fault, bytes: &mut [u8], to: &mut TcpStream, record: &Record) -> std::io::Result<()> {
    match fault {
        Fault::Stall(time) => sleep(time),
        Fault::Swallow => return Ok(()),
        Fault::Cut => return Err(std::io::ErrorKind::ConnectionReset.into()),
        Fault::Flip(bits) => bytes[0] ^= bits,
        Fault::Repeat(length) => {
            let passed = record.lock().expect("no panic");
            to.write_all(&passed[passed.len() - length.min(passed.len())..])?;
        }
    }
    to.write_all(bytes)
}
