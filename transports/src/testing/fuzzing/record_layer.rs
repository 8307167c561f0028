//! Fuzzing of an encrypted connection by an attacker in between, who changes the handshake or the
//! records.

use crate::secure::Secret;
use crate::secure::noise::{MESSAGE_BYTES, NoiseHandshake, SessionKeys, TAG_BYTES, respond};
use crate::secure::record::RecordLayer;
use crate::sys::random::random;
use crate::sys::socket_calls::send_now;
use std::cell::Cell;
use std::io::ErrorKind;
use std::net::TcpStream;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;

/// Parses bytes as an attack on the client's Noise message, the server's, or the records after
/// them.
///
/// A connection works exactly if the attack changes nothing.
pub(super) fn record_layer(bytes: &[u8]) {
    match bytes.split_first() {
        None => {}
        Some((&CLIENT, changes)) => client(changes),
        Some((&SERVER, changes)) => server(changes),
        Some((_, script)) => {
            let Pair { writer, reader, uses } =
                PAIR.take().filter(|pair| pair.uses < USES_MAX).unwrap_or_else(Pair::new);
            let (writer, mut reader) = Connection::new(writer, reader).run(script);
            reader.skip_to(&writer);
            PAIR.set(Some(Pair { writer, reader, uses: uses + 1 }));
        }
    }
}

/// Changes or replaces the client's message on its way to the server. The prologue differs in each
/// run.
fn client(changes: &[u8]) {
    let secret = Secret::from_public(SECRET);
    let said = random::<NONCE_BYTES>().expect("a nonce");
    let (_, message) = NoiseHandshake::start(&secret, &said).expect("a client's message");
    let changed = changed(&message, changes);
    assert_eq!(matches!(respond(&secret, &said, &changed), Ok(Some(_))), changed == message);
}

/// Changes the server's message on its way to the client.
fn server(changes: &[u8]) {
    let secret = Secret::from_public(SECRET);
    let (client, message) = NoiseHandshake::start(&secret, b"").expect("a client's message");
    let (_, answer) = respond(&secret, b"", &message).expect("an answer").expect("the same secret");
    let mut changed = answer;
    changed.iter_mut().zip(changes).for_each(|(byte, change)| *byte ^= change);
    assert_eq!(client.finish(&changed).is_some(), changed == answer);
}

/// Keys of both ends, which several inputs share because the handshake takes longer than an input.
struct Pair {
    writer: SessionKeys,
    reader: SessionKeys,
    uses: usize,
}

impl Pair {
    fn new() -> Self {
        let secret = Secret::from_public(SECRET);
        let (client, message) = NoiseHandshake::start(&secret, b"").expect("a client's message");
        let (reader, answer) = respond(&secret, b"", &message).expect("an answer").expect("the same secret");
        Self { writer: client.finish(&answer).expect("the same secret"), reader, uses: 0 }
    }
}

thread_local! {
    static PAIR: Cell<Option<Pair>> = const { Cell::new(None) };
}

/// Returns `message` shortened by the first byte of `changes`, with the next ones XORed into it and
/// the rest appended.
fn changed(message: &[u8; MESSAGE_BYTES], changes: &[u8]) -> Vec<u8> {
    let (&cut, changes) = changes.split_first().unwrap_or((&0, &[]));
    let mut changed = message[..MESSAGE_BYTES.saturating_sub(cut.into())].to_vec();
    let (flips, tail) = changes.split_at(changes.len().min(changed.len()));
    changed.iter_mut().zip(flips).for_each(|(byte, change)| *byte ^= change);
    changed.extend(tail);
    changed
}

/// One direction of a connection, through the attacker.
struct Connection {
    writer: SessionKeys,
    near: UnixStream,
    /// Bytes for which the socket had no room yet.
    waiting: Vec<u8>,
    /// The last record that was sealed.
    last: Vec<u8>,
    /// Bytes that were written before the first attack.
    written: Vec<u8>,
    attacked: bool,
    reader: RecordLayer,
    reads_ahead: bool,
    far: TcpStream,
    read: Vec<u8>,
    broken: bool,
}

impl Connection {
    fn new(writer: SessionKeys, reader: SessionKeys) -> Self {
        let (local, remote) = UnixStream::pair().expect("a pair of sockets");
        // The record layer only receives from a socket and shuts it down, which a cheaper Unix
        // socket does as well.
        let remote = TcpStream::from(OwnedFd::from(remote));
        let (waiting, last, written, read) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        let (attacked, reads_ahead, broken) = (false, false, false);
        let reader = RecordLayer::new(reader);
        Self {
            writer,
            near: local,
            waiting,
            last,
            written,
            attacked,
            reader,
            reads_ahead,
            far: remote,
            read,
            broken,
        }
    }

    /// Executes `script`, two bytes for each step, reads all that is left, and returns the keys.
    fn run(mut self, mut script: &[u8]) -> (SessionKeys, SessionKeys) {
        while let [step, amount, tail @ ..] = script
            && self.written.len().max(self.waiting.len()) < WRITTEN_BYTES_MAX
        {
            let length = tail.len().min(if step % STEPS == OWN { usize::from(*amount) } else { 0 });
            script = &tail[length..];
            self.step(step % STEPS, usize::from(*amount), &tail[..length]);
        }
        while self.read(READ_BYTES) || !(self.waiting.is_empty() || self.broken) {}
        assert!(self.attacked || self.read == self.written, "untouched records are read");
        (self.writer, self.reader.into_keys())
    }

    fn step(&mut self, step: u8, amount: usize, bytes: &[u8]) {
        match step {
            WRITE => self.write(1 + amount),
            WRITE_MUCH => self.write(1 + amount * MUCH),
            READ => _ = self.read(1 + amount),
            READ_MUCH => _ = self.read(1 + amount * MUCH),
            // The reader of a link enables the read-ahead once, too.
            READ_AHEAD if self.reads_ahead => {}
            READ_AHEAD => {
                self.reader.enable_read_ahead();
                self.reads_ahead = true;
            }
            OWN => self.inject(bytes),
            REPEAT => self.inject(&self.last.clone()),
            LEAVE_OUT => {
                self.seal(&[0]);
                self.attacked = true;
            }
            CUT => {
                // More is cut than a tag, so that the next bytes cannot complete the record by
                // chance.
                let record = self.seal(&[0; PIECE_BYTES]);
                self.inject(&record[..amount % (record.len() - TAG_BYTES)]);
                self.attacked = true;
            }
            _ => {
                let mut record = self.seal(&[0; PIECE_BYTES]);
                let place = amount % record.len();
                record[place] ^= 1;
                self.inject(&record);
            }
        }
    }

    fn seal(&mut self, plain: &[u8]) -> Vec<u8> {
        let mut record = vec![0; plain.len() + TAG_BYTES];
        self.writer.seal(plain, &mut record).expect("a record");
        [&(record.len() as u16).to_le_bytes()[..], &record].concat()
    }

    fn write(&mut self, bytes: usize) {
        let plain = vec![bytes as u8; bytes];
        self.last = self.seal(&plain);
        self.waiting.extend(&self.last);
        if !self.attacked {
            self.written.extend(plain);
        }
    }

    fn inject(&mut self, bytes: &[u8]) {
        self.waiting.extend(bytes);
        self.attacked |= !bytes.is_empty();
    }

    /// Reads once, and returns true if bytes were available.
    fn read(&mut self, bytes: usize) -> bool {
        // A socket that was shut down takes no bytes.
        let sent = send_now(&self.near, &self.waiting).unwrap_or(self.waiting.len());
        self.waiting.drain(..sent);
        let mut target = vec![0; bytes];
        let got = match self.reader.read(&self.far, &mut target) {
            Ok(got) => {
                assert!(got != Some(0) || self.broken, "the connection ended without an attack");
                got.unwrap_or(0)
            }
            Err(error) => {
                assert!(error.kind() == ErrorKind::InvalidData && self.attacked && !self.broken, "{error}");
                self.broken = true;
                0
            }
        };
        self.read.extend(&target[..got]);
        assert!(self.written.starts_with(&self.read), "attacked records are not read");
        assert!(self.reader.buffer_bytes() <= STAGING_BYTES_MAX);
        got > 0
    }
}

const SECRET: &str = "fuzzing";
const NONCE_BYTES: usize = 32;
/// Inputs that share keys: few enough that no end changes its key.
const USES_MAX: usize = 256;
/// Target of the attack: the client's message, the server's, or records for any other number.
const CLIENT: u8 = 0;
const SERVER: u8 = 1;
/// Steps of the writer, the reader and the attacker. A number past the last one damages a record.
const WRITE: u8 = 0;
const WRITE_MUCH: u8 = 1;
const READ: u8 = 2;
const READ_MUCH: u8 = 3;
const READ_AHEAD: u8 = 4;
const OWN: u8 = 5;
const REPEAT: u8 = 6;
const LEAVE_OUT: u8 = 7;
const CUT: u8 = 8;
const STEPS: u8 = 10;
/// Factor that makes the largest amount nearly the longest record.
const MUCH: usize = 128;
const PIECE_BYTES: usize = 20;
const READ_BYTES: usize = 8 << 10;
const WRITTEN_BYTES_MAX: usize = 128 << 10;
/// Limit of the buffers: two received records, one opened record, and the growth of vectors.
const STAGING_BYTES_MAX: usize = 256 << 10;
