//! Somebody who carries an encrypted connection, and meddles with the agreement on its keys or with its records.

use crate::secure::noise::{MESSAGE_BYTES, NoiseHandshake, SessionKeys, TAG_BYTES, respond};
use crate::secure::record::RecordLayer;
use crate::secure::secret::{Secret, random};
use crate::sys::socket::send_now;
use std::cell::Cell;
use std::io::ErrorKind;
use std::net::TcpStream;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;

/// Parses bytes as what is done to the client's message, to the server's, or to the records after them; a connection
/// with which nobody meddles works, and no other.
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

/// Changes the client's message on its way to the server, or puts another in its place. As in a connection, both have
/// said before what they never say again.
fn client(changes: &[u8]) {
    let secret = Secret::from_public(SECRET);
    let said = random::<NONCE_BYTES>().expect("a nonce");
    let (_, message) = NoiseHandshake::start(&secret, &said).expect("a client's message");
    let changed = changed(&message, changes);
    assert_eq!(matches!(respond(&secret, &said, &changed), Ok(Some(_))), changed == message);
}

/// Changes the server's answer on its way to the client.
fn server(changes: &[u8]) {
    let secret = Secret::from_public(SECRET);
    let (client, message) = NoiseHandshake::start(&secret, b"").expect("a client's message");
    let (_, answer) = respond(&secret, b"", &message).expect("an answer").expect("the same secret");
    let mut changed = answer;
    changed.iter_mut().zip(changes).for_each(|(byte, change)| *byte ^= change);
    assert_eq!(client.finish(&changed).is_some(), changed == answer);
}

/// The keys of both ends, which take longer to agree on than to use: for one input after the other.
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

/// A message without as many bytes at its end as the first change says, the others changed, and what is over appended.
fn changed(message: &[u8; MESSAGE_BYTES], changes: &[u8]) -> Vec<u8> {
    let (&cut, changes) = changes.split_first().unwrap_or((&0, &[]));
    let mut changed = message[..MESSAGE_BYTES.saturating_sub(cut.into())].to_vec();
    let (inside, behind) = changes.split_at(changes.len().min(changed.len()));
    changed.iter_mut().zip(inside).for_each(|(byte, change)| *byte ^= change);
    changed.extend(behind);
    changed
}

/// One direction of a connection, through the hands of who carries it.
struct Connection {
    writer: SessionKeys,
    near: UnixStream,
    /// On its way, until the socket has room.
    waiting: Vec<u8>,
    /// The last record as it was sealed.
    last: Vec<u8>,
    /// What was written before anybody meddled.
    written: Vec<u8>,
    meddled: bool,
    reader: RecordLayer,
    looks_ahead: bool,
    far: TcpStream,
    read: Vec<u8>,
    broken: bool,
}

impl Connection {
    fn new(writer: SessionKeys, reader: SessionKeys) -> Self {
        let (near, far) = UnixStream::pair().expect("a pair of sockets");
        // A seal asks a socket only to receive and to end, which local ones do as well and cost less.
        let far = TcpStream::from(OwnedFd::from(far));
        let (waiting, last, written, read) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        let (meddled, looks_ahead, broken) = (false, false, false);
        let reader = RecordLayer::new(reader);
        Self { writer, near, waiting, last, written, meddled, reader, looks_ahead, far, read, broken }
    }

    /// Does what it says, two bytes for each step, and then reads all that is left; the keys.
    fn run(mut self, mut script: &[u8]) -> (SessionKeys, SessionKeys) {
        while let [step, amount, rest @ ..] = script
            && self.written.len().max(self.waiting.len()) < WRITTEN_BYTES_MAX
        {
            let own = rest.len().min(if step % STEPS == OWN { usize::from(*amount) } else { 0 });
            script = &rest[own..];
            self.step(step % STEPS, usize::from(*amount), &rest[..own]);
        }
        while self.read(READ_BYTES) || !(self.waiting.is_empty() || self.broken) {}
        assert!(self.meddled || self.read == self.written, "what nobody meddled with is read");
        (self.writer, self.reader.into_keys())
    }

    fn step(&mut self, step: u8, amount: usize, own: &[u8]) {
        match step {
            WRITE => self.write(1 + amount),
            WRITE_MUCH => self.write(1 + amount * MUCH),
            READ => _ = self.read(1 + amount),
            READ_MUCH => _ = self.read(1 + amount * MUCH),
            // Once, as who reads messages does.
            LOOK_AHEAD if self.looks_ahead => {}
            LOOK_AHEAD => {
                self.reader.enable_read_ahead();
                self.looks_ahead = true;
            }
            OWN => self.meddle(own),
            REPEAT => self.meddle(&self.last.clone()),
            LEAVE_OUT => {
                self.seal(&[0]);
                self.meddled = true;
            }
            CUT => {
                // By so much that what follows cannot happen to be what is missing.
                let record = self.seal(&[0; PIECE_BYTES]);
                self.meddle(&record[..amount % (record.len() - TAG_BYTES)]);
                self.meddled = true;
            }
            _ => {
                let mut record = self.seal(&[0; PIECE_BYTES]);
                let place = amount % record.len();
                record[place] ^= 1;
                self.meddle(&record);
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
        if !self.meddled {
            self.written.extend(plain);
        }
    }

    fn meddle(&mut self, bytes: &[u8]) {
        self.waiting.extend(bytes);
        self.meddled |= !bytes.is_empty();
    }

    /// Whether there was anything to read.
    fn read(&mut self, bytes: usize) -> bool {
        // An end that has been shut down takes nothing more.
        let sent = send_now(&self.near, &self.waiting).unwrap_or(self.waiting.len());
        self.waiting.drain(..sent);
        let mut target = vec![0; bytes];
        let got = match self.reader.read(&self.far, &mut target) {
            Ok(got) => {
                assert!(got != Some(0) || self.broken, "an end of nobody's making");
                got.unwrap_or(0)
            }
            Err(error) => {
                assert!(error.kind() == ErrorKind::InvalidData && self.meddled && !self.broken, "{error}");
                self.broken = true;
                0
            }
        };
        self.read.extend(&target[..got]);
        assert!(self.written.starts_with(&self.read), "what somebody meddled with is not read");
        assert!(self.reader.buffer_bytes() <= STAGING_BYTES_MAX);
        got > 0
    }
}

const SECRET: &str = "fuzzing";
const NONCE_BYTES: usize = 32;
/// Few enough that keys are not changed, which both ends must do at once.
const USES_MAX: usize = 256;
/// Whose message is meddled with; any other number: records.
const CLIENT: u8 = 0;
const SERVER: u8 = 1;
/// What the writer, the reader and who is between them can do. A number past the last of these damages a record.
const WRITE: u8 = 0;
const WRITE_MUCH: u8 = 1;
const READ: u8 = 2;
const READ_MUCH: u8 = 3;
const LOOK_AHEAD: u8 = 4;
const OWN: u8 = 5;
const REPEAT: u8 = 6;
const LEAVE_OUT: u8 = 7;
const CUT: u8 = 8;
const STEPS: u8 = 10;
/// So that the largest amount is nearly the longest record.
const MUCH: usize = 128;
const PIECE_BYTES: usize = 20;
const READ_BYTES: usize = 8 << 10;
const WRITTEN_BYTES_MAX: usize = 128 << 10;
/// Two records that have come, one that is open, and what a vector takes in advance.
const STAGING_BYTES_MAX: usize = 256 << 10;
