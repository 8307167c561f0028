//! The record layer, in which an encrypted connection carries its bytes in sealed records.
//!
//! A record is two bytes of length, little-endian, and up to 32 KiB that are encrypted and
//! authenticated. The key belongs to the connection and the direction, and the nonce is the number
//! of the record. A record that is forged, damaged, repeated, left out or out of order does not
//! open. The layer then reads nothing more, and closes the connection for both ends.
//!
//! There is one buffer in each direction between the caller and the kernel. No call waits. If the
//! kernel has accepted only a part of a record, the rest stays in the buffer, and the next record
//! is sealed after the rest was sent.

use crate::secure::noise::{SessionKeys, TAG_BYTES};
use crate::sys::socket_calls::{recv_now, send_now};
use rustix::net::{Shutdown, shutdown};
use std::io::{Error, ErrorKind, IoSlice, Result};
use std::net::TcpStream;

/// Keys and buffers of one encrypted connection.
#[derive(Debug)]
pub struct RecordLayer {
    keys: SessionKeys,
    /// The sealed record that the kernel has not taken completely.
    outgoing: ByteQueue,
    /// Received bytes: at most one incomplete record, unless the layer may read ahead.
    incoming: ByteQueue,
    /// Opened bytes that the caller has not read.
    plaintext: ByteQueue,
    /// Buffer that joins small slices to one record.
    scratch: Vec<u8>,
    reads_ahead: bool,
    /// True after a record that did not open.
    broken: bool,
}

/// A queue of bytes: `bytes[start..end]`.
#[derive(Debug, Default)]
struct ByteQueue {
    bytes: Vec<u8>,
    start: usize,
    end: usize,
}

impl RecordLayer {
    pub(crate) fn new(keys: SessionKeys) -> Self {
        let queue = ByteQueue::default;
        let (outgoing, incoming, plain) = (queue(), queue(), queue());
        Self {
            keys,
            outgoing,
            incoming,
            plaintext: plain,
            scratch: Vec::new(),
            reads_ahead: false,
            broken: false,
        }
    }

    pub(crate) fn enable_read_ahead(&mut self) {
        self.reads_ahead = true;
        self.incoming.spare(2 * (LENGTH_BYTES + PLAINTEXT_BYTES_MAX + TAG_BYTES));
    }

    /// Returns true if the kernel has taken all that was written.
    pub(crate) fn is_flushed(&self) -> bool {
        self.outgoing.filled().is_empty()
    }

    /// Returns the keys, for another layer.
    #[cfg(any(test, feature = "fuzzing"))]
    pub(crate) fn into_keys(self) -> SessionKeys {
        self.keys
    }

    /// Returns the bytes of the buffers.
    pub(crate) fn buffer_bytes(&self) -> usize {
        let queues = [&self.outgoing, &self.incoming, &self.plaintext];
        queues.iter().map(|queue| queue.bytes.capacity()).sum::<usize>() + self.scratch.capacity()
    }

    /// Seals as many bytes as fit, and returns their number. The last record may still be buffered.
    pub(crate) fn write(&mut self, socket: &TcpStream, slices: &[IoSlice<'_>]) -> Result<usize> {
        let bytes: usize = slices.iter().map(|slice| slice.len()).sum();
        let mut sealed = 0;
        while self.flush(socket)? && sealed < bytes {
            let plain = gather(slices, sealed, &mut self.scratch);
            let record = self.outgoing.spare(LENGTH_BYTES + plain.len() + TAG_BYTES);
            let (length, record) = record.split_at_mut(LENGTH_BYTES);
            let count = self.keys.seal(plain, record)?;
            length.copy_from_slice(&(count as u16).to_le_bytes());
            sealed += plain.len();
            self.outgoing.end += LENGTH_BYTES + count;
        }
        Ok(sealed)
    }

    /// Hands sealed bytes to the kernel, and returns true if it has taken all of them.
    pub(crate) fn flush(&mut self, socket: &TcpStream) -> Result<bool> {
        while !self.is_flushed() {
            match send_now(socket, self.outgoing.filled())? {
                0 => return Ok(false),
                sent => self.outgoing.consume(sent),
            }
        }
        Ok(true)
    }

    /// Reads available bytes. The result is `None` if there are none, and zero at the end of the
    /// connection.
    pub(crate) fn read(&mut self, socket: &TcpStream, target: &mut [u8]) -> Result<Option<usize>> {
        loop {
            if !self.plaintext.filled().is_empty() {
                return Ok(Some(self.plaintext.read_into(target)));
            }
            // Nothing that follows a forged record can be trusted, so the stream ends here.
            if self.broken {
                return Ok(Some(0));
            }
            match self.missing_bytes() {
                Some(0) => match self.open(target) {
                    Some(0) => {}
                    Some(count) => return Ok(Some(count)),
                    None => return Err(self.abort(socket)),
                },
                Some(missing) => match self.receive(socket, missing)? {
                    Some(1..) => {}
                    ended => return Ok(ended),
                },
                None => return Err(self.abort(socket)),
            }
        }
    }

    /// Returns the number of missing bytes of the next record, as far as it is known; `None` if its
    /// length is invalid.
    fn missing_bytes(&self) -> Option<usize> {
        let held = self.incoming.filled();
        let Some((length, body)) = held.split_first_chunk() else { return Some(LENGTH_BYTES - held.len()) };
        let length = usize::from(u16::from_le_bytes(*length));
        let possible = TAG_BYTES + 1..=TAG_BYTES + PLAINTEXT_BYTES_MAX;
        possible.contains(&length).then(|| length.saturating_sub(body.len()))
    }

    /// Opens the record that has arrived, and returns the number of bytes in `target`.
    ///
    /// If `target` is too small, the bytes go into `plaintext` and the result is zero. The result
    /// is `None` if the peer did not seal this record next.
    fn open(&mut self, target: &mut [u8]) -> Option<usize> {
        let (length, body) = self.incoming.filled().split_first_chunk()?;
        let record = &body[..usize::from(u16::from_le_bytes(*length))];
        let (bytes, taken) = (record.len() - TAG_BYTES, LENGTH_BYTES + record.len());
        // A record is authentic only as a whole, so it is opened into memory that has room for all
        // of it.
        let fits = bytes <= target.len();
        let place = if fits { target } else { self.plaintext.spare(bytes) };
        self.keys.open(record, &mut place[..bytes])?;
        self.incoming.consume(taken);
        if fits {
            return Some(bytes);
        }
        self.plaintext.end += bytes;
        Some(0)
    }

    /// Stops reading, and closes the connection so that the peer notices.
    fn abort(&mut self, socket: &TcpStream) -> Error {
        self.broken = true;
        let _ = shutdown(socket, Shutdown::Both);
        Error::new(ErrorKind::InvalidData, TAMPERED)
    }

    fn receive(&mut self, socket: &TcpStream, missing: usize) -> Result<Option<usize>> {
        let room = self.incoming.spare(missing);
        let wanted = if self.reads_ahead { room.len() } else { missing };
        let received = recv_now(socket, &mut room[..wanted])?;
        self.incoming.end += received.unwrap_or(0);
        Ok(received)
    }
}

impl ByteQueue {
    fn filled(&self) -> &[u8] {
        &self.bytes[self.start..self.end]
    }

    /// Returns the free bytes after the held ones, at least `least`.
    fn spare(&mut self, least: usize) -> &mut [u8] {
        if self.end + least > self.bytes.len() {
            self.bytes.copy_within(self.start..self.end, 0);
            (self.start, self.end) = (0, self.end - self.start);
            let wanted = self.bytes.len().max(self.end + least);
            self.bytes.resize(wanted, 0);
        }
        &mut self.bytes[self.end..]
    }

    fn consume(&mut self, count: usize) {
        self.start += count;
        if self.start == self.end {
            (self.start, self.end) = (0, 0);
        }
    }

    fn read_into(&mut self, target: &mut [u8]) -> usize {
        let count = target.len().min(self.end - self.start);
        target[..count].copy_from_slice(&self.filled()[..count]);
        self.consume(count);
        count
    }
}

/// Returns the bytes of the next record, which begins `skip` bytes into `slices`.
///
/// The bytes stay in place if one slice holds them, and else are joined in `pieces`.
fn gather<'s>(slices: &'s [IoSlice<'_>], mut skip: usize, pieces: &'s mut Vec<u8>) -> &'s [u8] {
    pieces.clear();
    for (index, slice) in slices.iter().enumerate() {
        let skipped = skip.min(slice.len());
        skip -= skipped;
        let slice = &slice[skipped..];
        let is_last = index + 1 == slices.len();
        if pieces.is_empty() && (is_last || slice.len() >= PLAINTEXT_BYTES_MAX) {
            return &slice[..slice.len().min(PLAINTEXT_BYTES_MAX)];
        }
        pieces.extend_from_slice(&slice[..slice.len().min(PLAINTEXT_BYTES_MAX - pieces.len())]);
        if pieces.len() == PLAINTEXT_BYTES_MAX {
            break;
        }
    }
    pieces
}

/// Largest number of bytes in one record. It fits the first-level cache, and is large enough to
/// hide the cost of a system call.
const PLAINTEXT_BYTES_MAX: usize = 32 << 10;
const LENGTH_BYTES: usize = 2;
const TAMPERED: &str =
    "a record of an encrypted connection was damaged, repeated, left out, out of order, or forged";
