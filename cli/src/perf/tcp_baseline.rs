//! TCP baseline, which measures raw loopback sockets between two threads without any library.

use crate::bind::bind_thread;
use std::io::{ErrorKind, Read, Result, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::time::{Duration, Instant};
use unisono_bench_support::stats::median;

/// Returns the GB/s in each direction when both directions are used at once, as the median of some
/// rounds.
///
/// The bytes travel over `sockets` connections between two cores, in pieces of `piece_bytes`.
pub(super) fn bandwidth(sockets: usize, piece_bytes: usize) -> Result<f64> {
    let ends = connect(sockets)?;
    let seconds = run_both_ends(ends, |core, mut streams| {
        bind_thread(core, 2);
        let each = STREAM_BYTES / sockets;
        let (sent, mut received) = (vec![1; STREAM_BYTES], vec![0; STREAM_BYTES]);
        let mut times = Vec::new();
        for _ in 0..ROUNDS {
            let begun = Instant::now();
            let buffers = sent.chunks(each).zip(received.chunks_mut(each));
            let flows = streams.iter_mut().zip(buffers);
            let flows = flows.map(|(stream, (to_send, to_receive))| Flow { stream, to_send, to_receive });
            let mut flows: Vec<_> = flows.collect();
            let mut open = true;
            while std::mem::take(&mut open) {
                for flow in &mut flows {
                    open |= flow.step(piece_bytes)?;
                }
                check_deadline(begun)?;
            }
            times.push(begun.elapsed().as_secs_f64());
        }
        Ok(median(times).unwrap_or_default())
    })?;
    Ok(STREAM_BYTES as f64 / seconds / 1e9)
}

/// Returns the one-way latency of 8 bytes between two cores in microseconds, when both ends poll.
pub(super) fn pingpong() -> Result<f64> {
    run_both_ends(connect(1)?, |core, mut streams| {
        bind_thread(core, 2);
        let [stream] = &mut streams[..] else { return Ok(0.0) };
        let mut rounds = Vec::new();
        for _ in 0..ROUNDS {
            let begun = Instant::now();
            for _ in 0..ROUND_TRIPS {
                if core == 0 {
                    stream.write_all(&[1; 8])?;
                }
                read_exact(stream, &mut [0; 8])?;
                if core == 1 {
                    stream.write_all(&[1; 8])?;
                }
            }
            rounds.push(begun.elapsed().as_secs_f64() * 1e6 / ROUND_TRIPS as f64 / 2.0);
        }
        Ok(median(rounds).unwrap_or_default())
    })
}

/// Creates both ends of `count` nonblocking connections.
fn connect(count: usize) -> Result<[Vec<TcpStream>; 2]> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    let mut ends = [Vec::new(), Vec::new()];
    for _ in 0..count {
        let dialed = TcpStream::connect(listener.local_addr()?)?;
        let (accepted, _) = listener.accept()?;
        for (end, stream) in ends.iter_mut().zip([dialed, accepted]) {
            // As ranks set them: small messages do not wait for acknowledgments, and a thread that
            // waited in one direction could not serve the other.
            stream.set_nodelay(true)?;
            stream.set_nonblocking(true)?;
            end.push(stream);
        }
    }
    Ok(ends)
}

/// Returns the seconds of the slower of two threads, each with its ends of the connections. A
/// thread that fails closes its ends.
fn run_both_ends(
    ends: [Vec<TcpStream>; 2],
    work: impl Fn(usize, Vec<TcpStream>) -> Result<f64> + Sync,
) -> Result<f64> {
    let work = &work;
    std::thread::scope(|scope| {
        let threads: Vec<_> =
            ends.into_iter().enumerate().map(|(core, end)| scope.spawn(move || work(core, end))).collect();
        let failed = || Err(ErrorKind::Other.into());
        let results = threads.into_iter().map(|thread| thread.join().unwrap_or_else(|_| failed()));
        results.collect::<Result<Vec<f64>>>().map(|figures| figures.into_iter().fold(0.0, f64::max))
    })
}

/// Bytes still to transfer over one connection.
struct Flow<'f> {
    stream: &'f mut TcpStream,
    to_send: &'f [u8],
    to_receive: &'f mut [u8],
}

impl Flow<'_> {
    /// Makes one system call in each direction; returns whether bytes are left.
    fn step(&mut self, piece_bytes: usize) -> Result<bool> {
        let piece = |left: usize| (left - 1) % piece_bytes + 1;
        if !self.to_send.is_empty() {
            let sent = nonblocking(self.stream.write(&self.to_send[..piece(self.to_send.len())]))?;
            self.to_send = &self.to_send[sent..];
        }
        if !self.to_receive.is_empty() {
            let end = piece(self.to_receive.len());
            let received = nonblocking(self.stream.read(&mut self.to_receive[..end]))?;
            self.to_receive = &mut std::mem::take(&mut self.to_receive)[received..];
        }
        Ok(!self.to_send.is_empty() || !self.to_receive.is_empty())
    }
}

/// Reads all bytes, and polls while none are available.
fn read_exact(stream: &mut TcpStream, bytes: &mut [u8]) -> Result<()> {
    let begun = Instant::now();
    let mut filled = 0;
    while filled < bytes.len() {
        filled += nonblocking(stream.read(&mut bytes[filled..]))?;
        check_deadline(begun)?;
    }
    Ok(())
}

/// Bytes that could be moved without waiting.
fn nonblocking(moved: Result<usize>) -> Result<usize> {
    match moved {
        Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => Ok(0),
        // The other thread has failed.
        Ok(0) => Err(ErrorKind::UnexpectedEof.into()),
        moved => moved,
    }
}

fn check_deadline(begun: Instant) -> Result<()> {
    if begun.elapsed() > ROUND_TIME_MAX { Err(ErrorKind::TimedOut.into()) } else { Ok(()) }
}

/// Sent in each direction in a round.
const STREAM_BYTES: usize = 32 << 20;
const ROUNDS: usize = 7;
const ROUND_TRIPS: usize = 1000;
/// A round that takes so long is given up.
const ROUND_TIME_MAX: Duration = Duration::from_secs(5);
