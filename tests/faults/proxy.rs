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
    let [(local, first), (second, remote)] = [pair(), pair()];
    let record = Record::default();
    let (source, target) = (first.clone_of(), second.clone_of());
    let kept = Arc::clone(&record);
    std::thread::spawn(move || relay(source, target, fault, &kept));
    std::thread::spawn(move || relay(second, first, None, &Record::default()));
    ([local, remote], record)
}

/// Returns both ends of a connection without faults.
pub(crate) fn pair() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port");
    let local = TcpStream::connect(listener.local_addr().expect("an address")).expect("it listens");
    let (remote, _) = listener.accept().expect("a connection");
    [&local, &remote].iter().for_each(|end| end.set_nodelay(true).expect("a socket"));
    (local, remote)
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
fn relay(mut source: TcpStream, mut target: TcpStream, fault: Option<(usize, Fault)>, record: &Record) {
    let mut buffer = [0; 4096];
    let mut passed = 0;
    let mut swallows = false;
    while let Ok(count @ 1..) = source.read(&mut buffer) {
        let bytes = &mut buffer[..count];
        if swallows {
            continue;
        }
        let here = fault.filter(|(offset, _)| (passed..passed + count).contains(offset));
        let written = match here {
            None => target.write_all(bytes),
            Some((offset, fault)) => {
                let (head, tail) = bytes.split_at_mut(offset - passed);
                record.lock().expect("no panic").extend(&*head);
                swallows = fault == Fault::Swallow;
                let ended = target.write_all(head).and_then(|()| apply(fault, tail, &mut target, record));
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
    let _ = (target.shutdown(Shutdown::Write), source.shutdown(Shutdown::Read));
}

/// Applies the fault to the first of `bytes` and writes the remaining bytes; an error ends the
/// connection.
fn apply(fault: Fault, bytes: &mut [u8], target: &mut TcpStream, record: &Record) -> std::io::Result<()> {
    match fault {
        Fault::Stall(time) => sleep(time),
        Fault::Swallow => return Ok(()),
        Fault::Cut => return Err(std::io::ErrorKind::ConnectionReset.into()),
        Fault::Flip(bits) => bytes[0] ^= bits,
        Fault::Repeat(length) => {
            let passed = record.lock().expect("no panic");
            target.write_all(&passed[passed.len() - length.min(passed.len())..])?;
        }
    }
    target.write_all(bytes)
}
