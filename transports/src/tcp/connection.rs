//! One connection that reads with a small look-ahead, writes without staging, and never blocks.

use crate::Result;
use crate::net::stream::Stream;
use crate::secure::record::RecordLayer;
use crate::sync::Instant;
use crate::sys::close_on_fork::CloseOnFork;
use crate::tcp::frame::HEADER_BYTES;
use std::io::{ErrorKind, IoSlice};
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;
use unisono_reducers::{Source, Store, Target, copy_to};

/// A connection that has been set not to block.
pub(super) struct Connection {
    _close_on_fork: CloseOnFork,
    stream: Stream,
    /// Bytes read and not yet used: `read_ahead[start..end]`.
    read_ahead: Box<[u8]>,
    start: usize,
    end: usize,
    /// Number of bytes to read with the next header.
    read_ahead_bytes: usize,
    /// Complete small frames that wait to be written between messages.
    queued: Vec<u8>,
    /// Buffer in which the parts of a short frame are put together.
    coalesced: Vec<u8>,
    closed_at: Option<Instant>,
    /// True if received data was not authentic.
    tampered: bool,
}

impl Connection {
    pub(super) fn new(mut stream: Stream) -> Result<Self> {
        stream.set_nonblocking()?;
        stream.enable_read_ahead();
        let ahead = vec![0; READ_AHEAD_BYTES].into_boxed_slice();
        let waiting = Vec::with_capacity(QUEUE_BYTES);
        let (reach, coalesced) = (READ_AHEAD_BYTES, Vec::with_capacity(COALESCE_BYTES));
        Ok(Self {
            _close_on_fork: CloseOnFork::new(stream.as_fd()),
            stream,
            read_ahead: ahead,
            start: 0,
            end: 0,
            read_ahead_bytes: reach,
            queued: waiting,
            coalesced,
            closed_at: None,
            tampered: false,
        })
    }

    pub(super) fn duplicate_fd(&self) -> Result<OwnedFd> {
        self.stream.duplicate()
    }

    /// Returns the bytes of the connection's buffers.
    pub(super) fn buffer_bytes(&self) -> usize {
        self.read_ahead.len()
            + self.queued.capacity()
            + self.coalesced.capacity()
            + self.stream.record_layer().map_or(0, RecordLayer::buffer_bytes)
    }

    /// Returns `true` if the kernel has all sent data.
    pub(super) fn is_flushed(&self) -> bool {
        self.stream.record_layer().is_none_or(RecordLayer::is_flushed)
    }

    /// Returns `true` if the received data was not the data that the peer sent.
    pub(super) fn is_tampered(&self) -> bool {
        self.tampered
    }

    /// Returns the time since the connection ended, if it has ended.
    pub(super) fn closed_for(&self) -> Option<Duration> {
        self.closed_at.map(|closed_at| closed_at.elapsed())
    }

    /// Returns the header of the next frame, once all of it has arrived.
    pub(super) fn read_header(&mut self) -> Option<[u8; HEADER_BYTES]> {
        if self.end - self.start < HEADER_BYTES {
            // A part of a header moves to the front, so that the buffer has room for the rest.
            self.read_ahead.copy_within(self.start..self.end, 0);
            (self.start, self.end) = (0, self.end - self.start);
            self.fill_read_ahead(self.read_ahead_bytes);
        }
        let head = *self.read_ahead[self.start..self.end].first_chunk::<HEADER_BYTES>()?;
        self.start += HEADER_BYTES;
        Some(head)
    }

    /// Begins a body of `bytes` bytes, and adapts the look-ahead to it.
    ///
    /// The next bodies most often have the same length. With long bodies the look-ahead should be
    /// small, because its data has to be copied.
    pub(super) fn begin_body(&mut self, bytes: usize) {
        self.read_ahead_bytes =
            if bytes < READ_AHEAD_BYTES { READ_AHEAD_BYTES } else { READ_AHEAD_LONG_BYTES };
    }

    /// Reads as much of a body as has arrived, and returns the number of bytes.
    pub(super) fn read_body(&mut self, mut target: Target<'_>) -> usize {
        let mut filled = 0;
        while filled < target.len() {
            let wanted = target.len() - filled;
            let ahead = wanted.min(self.end - self.start);
            if ahead > 0 {
                let source = Source::from(&self.read_ahead[self.start..self.start + ahead]);
                copy_to(Store::Cached, target.slice(filled..filled + ahead), source);
                self.start += ahead;
                filled += ahead;
                continue;
            }
            // The record layer reads ahead by itself if the stream is encrypted.
            let got = if wanted < TAIL_BYTES && self.stream.record_layer().is_none() {
                (self.start, self.end) = (0, 0);
                self.fill_read_ahead(TAIL_BYTES)
            } else {
                let got = self.read_into(target.slice(filled..filled + wanted));
                filled += got;
                got
            };
            if got == 0 {
                break;
            }
        }
        filled
    }

    /// Writes a frame from byte `skip` on. Returns the number of bytes that were written, or
    /// encrypted for writing.
    pub(super) fn send<'a>(
        &mut self,
        head: &[u8],
        parts: &mut dyn Iterator<Item = Source<'a>>,
        skip: usize,
    ) -> usize {
        let mut skip = skip;
        let mut sent = 0;
        // SAFETY: a source is valid for reads while it lives, which is longer than this call. Here
        // it is memory of this process's caller, and the kernel only reads it.
        let bytes_of = |part: Source<'a>| unsafe { std::slice::from_raw_parts(part.as_ptr(), part.len()) };
        let mut next = Some(head);
        while next.is_some() {
            let mut slices = [IoSlice::new(&[]); SLICES_MAX];
            let (mut count, mut bytes) = (0, 0);
            while let Some(part) = next.filter(|_| count < SLICES_MAX) {
                let skipped = skip.min(part.len());
                skip -= skipped;
                slices[count] = IoSlice::new(&part[skipped..]);
                (count, bytes) = (count + 1, bytes + part.len() - skipped);
                next = parts.next().map(bytes_of);
            }
            let went = self.send_slices(&slices[..count], bytes);
            sent += went;
            if went < bytes {
                break;
            }
        }
        sent
    }

    /// Queues a small frame, to be written when no message is half written.
    pub(super) fn queue(&mut self, frame: &[u8]) {
        self.queued.extend_from_slice(frame);
    }

    /// Writes the queued frames. Returns `true` if none is left.
    pub(super) fn flush(&mut self) -> bool {
        while !self.queued.is_empty() && self.closed_at.is_none() {
            match self.stream.write(&self.queued) {
                Ok(0) => break,
                Ok(sent) => drop(self.queued.drain(..sent)),
                Err(error) => self.end(&error),
            }
        }
        if let Err(error) = self.stream.flush() {
            self.end(&error);
        }
        self.queued.is_empty()
    }

    /// Waits until the peer's kernel has received the written data. Returns false if the deadline
    /// passes first.
    pub(super) fn drain(&self, deadline: Instant) -> bool {
        self.stream.drain(deadline)
    }

    fn fill_read_ahead(&mut self, bytes: usize) -> usize {
        // The record layer of an encrypted stream reads ahead itself. More than the header would
        // only be copied once more here.
        let end =
            if self.stream.record_layer().is_some() { self.start + HEADER_BYTES } else { self.end + bytes };
        let end = end.min(self.read_ahead.len());
        let read = self.stream.read(&mut self.read_ahead[self.end..end]);
        let count = self.on_read(read);
        self.end += count;
        count
    }

    fn read_into(&mut self, mut target: Target<'_>) -> usize {
        // SAFETY: a target is valid and exclusive while it lives; bytes of any value are
        // initialized.
        let bytes = unsafe { std::slice::from_raw_parts_mut(target.as_mut_ptr(), target.len()) };
        let read = self.stream.read(bytes);
        self.on_read(read)
    }

    /// Returns the number of bytes read. After the end of the stream or an error, the connection
    /// counts as ended.
    fn on_read(&mut self, read: std::io::Result<Option<usize>>) -> usize {
        match read {
            Ok(Some(count)) if count > 0 => return count,
            Ok(None) => {}
            Ok(Some(_)) => self.end(&ErrorKind::UnexpectedEof.into()),
            Err(error) => self.end(&error),
        }
        0
    }

    /// Writes `slices`, `bytes` bytes in all, and returns the number of bytes written. If there are
    /// few bytes, they are copied together, because the kernel takes longer for several slices.
    fn send_slices(&mut self, slices: &[IoSlice<'_>], bytes: usize) -> usize {
        let written = if bytes <= COALESCE_BYTES {
            self.coalesced.clear();
            slices.iter().for_each(|slice| self.coalesced.extend_from_slice(slice));
            self.stream.write(&self.coalesced)
        } else {
            self.stream.write_slices(slices)
        };
        written.unwrap_or_else(|error| {
            self.end(&error);
            0
        })
    }

    fn end(&mut self, error: &std::io::Error) {
        self.tampered |= error.kind() == ErrorKind::InvalidData;
        // Later errors do not move the time, because the grace period of the link begins at the
        // first.
        self.closed_at.get_or_insert_with(Instant::now);
    }
}

/// Look-ahead for short bodies. One call reads a message of up to 32 KiB, or many small ones.
const READ_AHEAD_BYTES: usize = 40 << 10;
/// Look-ahead for longer bodies, which otherwise go straight to their place.
const READ_AHEAD_LONG_BYTES: usize = 4 << 10;
/// Rest of a body that is short enough to be read together with the following data.
const TAIL_BYTES: usize = 16 << 10;
/// Room for credit frames without allocation.
const QUEUE_BYTES: usize = 4 << 10;
/// Length of the longest frame that is copied together before it is written.
const COALESCE_BYTES: usize = 2 << 10;
/// Parts of a message that go into one system call.
const SLICES_MAX: usize = 64;
