//! Rank 0's second task: to collect everybody, and to tell everybody.

use crate::bootstrap::peer_info::{JoinRequest, PeerInfo, RootReply, recv_text, send_text};
use crate::bootstrap::{RankInfo, encryption_mismatch};
use crate::config::Config;
use crate::error::bootstrap::BootstrapError as Failure;
use crate::schedule::Rank;
use std::os::fd::AsFd;
use std::time::{Duration, Instant};
use unisono_transports::Error as TransportError;
use unisono_transports::secure::handshake::{self, Purpose};
use unisono_transports::sys::listener::Listener;
use unisono_transports::sys::socket::Stream;
use unisono_transports::tcp::connect::pending::{HandshakePool, PoolEvent};

type Result<T> = std::result::Result<T, Failure>;

/// Listens where the ranks meet.
pub(crate) struct Root<'r> {
    pool: HandshakePool,
    ranks: usize,
    deadline: Instant,
    /// How long a failed meeting tells late comers so.
    linger: Duration,
    /// Who has proved the secret and not yet said who it is.
    unidentified: Vec<Stream>,
    /// Who has come, by rank.
    joined: Vec<Option<(Stream, PeerInfo)>>,
    /// What went wrong without ending the meeting.
    rejected: Vec<String>,
    /// A rank that encrypts where this one does not, or the other way about.
    encryption_mismatch: Option<Failure>,
    config: &'r Config,
}

/// Who has news for the root.
enum Readable {
    Unidentified(usize),
    Joined(Rank),
}

impl<'r> Root<'r> {
    pub(crate) fn listen(
        identity: &RankInfo,
        config: &'r Config,
        (deadline, linger): (Instant, Duration),
    ) -> Result<Self> {
        let address = identity.id.address();
        let listener = Listener::tcp(address).map_err(|error| {
            let what = format!("{error}; is another job using the port?");
            Failure::Listen { address: address.to_string(), what }
        })?;
        tracing::info!(%address, host = config.host, "waiting for {} ranks", identity.ranks);
        Ok(Self {
            pool: HandshakePool::new(vec![listener], identity.handshake_config(config)),
            ranks: identity.ranks,
            deadline,
            linger,
            unidentified: Vec::new(),
            joined: (0..identity.ranks).map(|_| None).collect(),
            rejected: Vec::new(),
            encryption_mismatch: None,
            config,
        })
    }

    /// Holds the meeting: collect, send the table, hear the reports, give the word.
    pub(crate) fn run(mut self) {
        if let Err(failure) = self.collect_ranks() {
            let verdict = RootReply::Failed(failure);
            self.broadcast(&verdict);
            return self.linger(&verdict);
        }
        self.broadcast(&self.rank_table());
        let word = self.collect_reports().map_or_else(RootReply::Failed, |()| RootReply::Ready);
        self.broadcast(&word);
    }

    /// Waits until every rank is here.
    fn collect_ranks(&mut self) -> Result<()> {
        while self.joined.iter().any(Option::is_none) {
            if Instant::now() >= self.deadline {
                return Err(self.missing_ranks());
            }
            let callers = self.poll(self.deadline)?;
            if let Some(failure) = self.encryption_mismatch.take() {
                return Err(failure);
            }
            for caller in callers {
                match caller {
                    Readable::Unidentified(index) => self.identify(index)?,
                    // Nobody has anything to say before the table has come.
                    Readable::Joined(rank) => return Err(self.died(rank, "its connection ended".to_owned())),
                }
            }
        }
        Ok(())
    }

    /// Who has something to say; lets others in meanwhile. Those who arrive come last first.
    fn poll(&mut self, deadline: Instant) -> Result<Vec<Readable>> {
        let present: Vec<Rank> = (0..self.ranks).filter(|&rank| self.joined[rank].is_some()).collect();
        let streams = self.joined.iter().flatten().map(|(stream, _)| stream);
        let watched: Vec<_> = streams.chain(&self.unidentified).map(AsFd::as_fd).collect();
        let mut callers = Vec::new();
        for piece in self.pool.wait(&watched, deadline)? {
            match piece {
                PoolEvent::Ready(index) => callers.push(match present.get(index) {
                    Some(&rank) => Readable::Joined(rank),
                    None => Readable::Unidentified(index - present.len()),
                }),
                PoolEvent::Authenticated(stream, claims) if claims.purpose == Purpose::Join => {
                    self.unidentified.push(stream)
                }
                PoolEvent::Authenticated(stream, _) => {
                    self.warn_rejected(format!("{} wants something else", stream.peer()))
                }
                PoolEvent::Unauthenticated(TransportError::EncryptionMismatch {
                    peer,
                    rank: Some(rank),
                    encrypts,
                }) => {
                    self.encryption_mismatch =
                        Some(encryption_mismatch((0, self.config), (rank, peer), encrypts));
                }
                // A stranger's version is only noted: it has proved nothing, and must not end the meeting.
                PoolEvent::Unauthenticated(error) => self.record_rejected(error.to_string()),
            }
        }
        callers.reverse();
        Ok(callers)
    }

    /// Somebody who has proved the secret says who it is.
    fn identify(&mut self, index: usize) -> Result<()> {
        let mut stream = self.unidentified.remove(index);
        match recv_text(&mut stream, Instant::now() + MESSAGE_TIMEOUT).map(|text| JoinRequest::decode(&text))
        {
            Ok(Some(JoinRequest::Rank(record))) => return self.admit(stream, record),
            Ok(Some(JoinRequest::Failure(failure))) => return Err(failure),
            Ok(None) => {
                self.warn_rejected(format!("{} proved the secret and did not present itself", stream.peer()))
            }
            Err(error) => self.warn_rejected(error.to_string()),
        }
        Ok(())
    }

    fn admit(&mut self, mut stream: Stream, record: PeerInfo) -> Result<()> {
        let (rank, host) = (record.rank, record.host.clone());
        let failure = if record.ranks != self.ranks || rank >= self.ranks {
            Some(Failure::WorldSize { rank, host, expects: record.ranks, root_expects: self.ranks })
        } else {
            let present = self.joined[rank].as_ref();
            present.map(|(_, first)| Failure::DuplicateRank { rank, hosts: [first.host.clone(), host] })
        };
        if let Some(failure) = failure {
            // It has no place here, but it shall hear why.
            let text = RootReply::Failed(failure.clone()).encode();
            let _ = send_text(&mut stream, &text, Instant::now() + MESSAGE_TIMEOUT);
            return Err(failure);
        }
        let mut others = self.joined.iter().flatten().map(|(_, other)| other);
        let failure = others.find(|other| other.settings != record.settings).map(|other| Failure::Settings {
            ranks: [rank, other.rank],
            hosts: [record.host.clone(), other.host.clone()],
            settings: [record.settings.clone(), other.settings.clone()],
        });
        self.joined[rank] = Some((stream, record));
        failure.map_or(Ok(()), Err)
    }

    fn rank_table(&self) -> RootReply {
        let session = handshake::random().map_or(1, u64::from_le_bytes);
        let records = self.joined.iter().flatten().map(|(_, record)| record.clone()).collect();
        RootReply::Table { session, peer_infos: records }
    }

    /// Waits for every rank's report on its connections, or for its end.
    fn collect_reports(&mut self) -> Result<()> {
        let mut waiting = vec![true; self.ranks];
        let mut failure: Option<Failure> = None;
        let mut patience = self.deadline + MESSAGE_TIMEOUT;
        while waiting.contains(&true) {
            if Instant::now() >= patience {
                let late = failure.unwrap_or_else(|| self.late_rank(&waiting));
                return Err(late);
            }
            for caller in self.poll(patience)? {
                let Readable::Joined(rank) = caller else { continue };
                waiting[rank] = false;
                let Err(found) = self.recv_report(rank) else { continue };
                let first = failure.get_or_insert_with(|| {
                    // The cause may be on its way.
                    patience = patience.min(Instant::now() + CAUSE_GRACE);
                    found.clone()
                });
                if found.is_cause_of(first) {
                    return Err(found);
                }
            }
        }
        failure.map_or(Ok(()), Err)
    }

    fn recv_report(&mut self, rank: Rank) -> Result<()> {
        let Some((stream, _)) = &mut self.joined[rank] else { return Ok(()) };
        match recv_text(stream, Instant::now() + MESSAGE_TIMEOUT).map(|text| RootReply::decode(&text)) {
            Ok(Some(RootReply::Ready)) => Ok(()),
            Ok(Some(RootReply::Failed(failure))) => Err(failure.with_rank(rank)),
            Ok(_) => Err(Failure::Other { what: format!("rank {rank} gave a report that cannot be read") }),
            Err(error) => Err(self.died(rank, error.to_string())),
        }
    }

    /// Nobody can be told on a connection that has ended.
    fn died(&mut self, rank: Rank, what: String) -> Failure {
        let host = self.joined[rank].take().map_or_else(String::new, |(_, record)| record.host);
        Failure::Died { rank, host, what }
    }

    fn broadcast(&mut self, verdict: &RootReply) {
        let text = verdict.encode();
        for (stream, _) in self.joined.iter_mut().flatten() {
            // Whoever cannot be told any more finds out by itself.
            let _ = send_text(stream, &text, Instant::now() + MESSAGE_TIMEOUT);
        }
    }

    /// Tells those who come late why there is no meeting.
    fn linger(&mut self, verdict: &RootReply) {
        let (text, until) = (verdict.encode(), Instant::now() + self.linger);
        let mut told = self.joined.iter().flatten().count();
        self.joined.iter_mut().for_each(|place| *place = None);
        while told < self.ranks && Instant::now() < until {
            let Ok(callers) = self.poll(until) else { return };
            for caller in callers {
                let Readable::Unidentified(index) = caller else { continue };
                let mut stream = self.unidentified.remove(index);
                let _ = recv_text(&mut stream, Instant::now() + MESSAGE_TIMEOUT);
                let _ = send_text(&mut stream, &text, Instant::now() + MESSAGE_TIMEOUT);
                told += 1;
            }
        }
    }

    fn missing_ranks(&self) -> Failure {
        let missing = (0..self.ranks).filter(|&rank| self.joined[rank].is_none()).collect();
        Failure::RanksMissing { missing, ranks: self.ranks, rejected: self.rejected.clone() }
    }

    fn late_rank(&self, waiting: &[bool]) -> Failure {
        let rank = waiting.iter().position(|&waiting| waiting).unwrap_or(0);
        let host = self.joined[rank].as_ref().map_or_else(String::new, |(_, record)| record.host.clone());
        Failure::Died { rank, host, what: "it did not say in time that it is connected".to_owned() }
    }

    fn warn_rejected(&mut self, note: String) {
        tracing::warn!("bootstrap: {note}");
        self.record_rejected(note);
    }

    /// For those who will ask why somebody is missing.
    fn record_rejected(&mut self, note: String) {
        if self.rejected.len() < REJECTED_MAX {
            self.rejected.push(note);
        }
    }
}

/// How long it may take to tell one rank something, or to hear it.
const MESSAGE_TIMEOUT: Duration = Duration::from_millis(400);
/// How long after a failure its cause may become known.
const CAUSE_GRACE: Duration = Duration::from_millis(100);
/// How long a failed meeting tells late comers so.
pub(crate) const LINGER_TIME: Duration = Duration::from_secs(1);
/// Strangers that are remembered.
const REJECTED_MAX: usize = 8;
