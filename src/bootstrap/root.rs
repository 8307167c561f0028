//! The root, which collects all ranks, sends them the table, and gives all of them the same result.

use crate::bootstrap::peer_info::{
    JoinRequest, PeerInfo, RootReply, differing_settings, recv_text, send_text,
};
use crate::bootstrap::{RankInfo, encryption_mismatch, meeting_point};
use crate::config::Config;
use crate::error::bootstrap::BootstrapError as Failure;
use crate::schedule::Rank;
use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::time::{Duration, Instant};
use unisono_transports::Error as TransportError;
use unisono_transports::net::handshake::Purpose;
use unisono_transports::net::stream::Stream;
use unisono_transports::sys::random::random;
use unisono_transports::tcp::connect::handshake_pool::{HandshakePool, PoolEvent};

type Result<T> = std::result::Result<T, Failure>;

/// Listens at the address where the ranks meet.
pub(crate) struct Root<'r> {
    pool: HandshakePool,
    ranks: usize,
    deadline: Instant,
    /// The time for which late ranks are told of a failure.
    linger: Duration,
    /// Connections that have proved the secret, but have not yet sent their rank.
    unidentified: Vec<Stream>,
    /// The joined ranks.
    joined: Vec<Option<(Stream, PeerInfo)>>,
    /// Connections that were rejected, for the error about missing ranks.
    rejected: Vec<String>,
    /// The failure of a rank whose encryption setting differs from this one's.
    encryption_mismatch: Option<Failure>,
    /// The address at which rank 0 itself connects.
    own_address: Option<SocketAddr>,
    /// The addresses of the listeners, if only this host reaches them.
    only_loopback: Option<String>,
    config: &'r Config,
}

/// A connection that can be read.
enum Readable {
    Unidentified(usize),
    Joined(Rank),
}

impl<'r> Root<'r> {
    pub(crate) fn listen(
        identity: &RankInfo,
        config: &'r Config,
        deadline: Instant,
        linger: Duration,
    ) -> Result<Self> {
        let listeners = meeting_point::listen(identity, config, deadline)?;
        let (own_address, only_loopback) =
            (meeting_point::own_address(&listeners), meeting_point::only_loopback(&listeners));
        tracing::info!(?listeners, host = config.host, "waiting for {} ranks", identity.ranks);
        Ok(Self {
            pool: HandshakePool::new(listeners, identity.handshake_config(config)),
            ranks: identity.ranks,
            deadline,
            linger,
            unidentified: Vec::new(),
            joined: (0..identity.ranks).map(|_| None).collect(),
            rejected: Vec::new(),
            encryption_mismatch: None,
            own_address,
            only_loopback,
            config,
        })
    }

    /// The address at which rank 0 itself connects.
    pub(crate) fn own_address(&self) -> Option<SocketAddr> {
        self.own_address
    }

    /// Collects the ranks, sends the table, collects the reports and sends the result.
    pub(crate) fn run(mut self) {
        if let Err(failure) = self.collect_ranks() {
            let reply = RootReply::Failed(failure);
            self.broadcast(&reply);
            return self.linger(&reply);
        }
        self.broadcast(&self.rank_table());
        // Every rank has joined by now, so none comes late and has to be told.
        let word = self.collect_reports().map_or_else(RootReply::Failed, |()| RootReply::Ready);
        self.broadcast(&word);
    }

    /// Waits until every rank has joined.
    fn collect_ranks(&mut self) -> Result<()> {
        while self.joined.iter().any(Option::is_none) {
            if Instant::now() >= self.deadline {
                return Err(self.missing_ranks());
            }
            let readable = self.poll(self.deadline)?;
            if let Some(failure) = self.encryption_mismatch.take() {
                return Err(failure);
            }
            for ready in readable {
                match ready {
                    Readable::Unidentified(index) => self.identify(index)?,
                    // A joined rank sends nothing before it has the table.
                    Readable::Joined(rank) => return Err(self.died(rank, "its connection ended".to_owned())),
                }
            }
        }
        Ok(())
    }

    /// Returns the connections that can be read, the last one first. Accepts new connections while
    /// it waits.
    fn poll(&mut self, deadline: Instant) -> Result<Vec<Readable>> {
        let joined_ranks: Vec<Rank> = (0..self.ranks).filter(|&rank| self.joined[rank].is_some()).collect();
        let streams = self.joined.iter().flatten().map(|(stream, _)| stream);
        let watched: Vec<_> = streams.chain(&self.unidentified).map(AsFd::as_fd).collect();
        let mut readable = Vec::new();
        for event in self.pool.wait(&watched, deadline)? {
            match event {
                PoolEvent::Ready(index) => readable.push(match joined_ranks.get(index) {
                    Some(&rank) => Readable::Joined(rank),
                    None => Readable::Unidentified(index - joined_ranks.len()),
                }),
                PoolEvent::Authenticated(stream, hello) if hello.purpose == Purpose::Join => {
                    self.unidentified.push(stream)
                }
                PoolEvent::Authenticated(stream, _) => {
                    self.warn_rejected(format!("{} did not ask to join", stream.peer()))
                }
                PoolEvent::Unauthenticated(TransportError::EncryptionMismatch {
                    peer,
                    rank: Some(rank),
                    encrypts,
                }) => {
                    self.encryption_mismatch =
                        Some(encryption_mismatch(0, self.config, rank, peer, encrypts));
                }
                // A connection that has not proved the secret is only recorded, because it must not
                // end the meeting.
                PoolEvent::Unauthenticated(error) => self.record_rejected(error.to_string()),
            }
        }
        // The highest index comes first, so that a removal does not move connections that are still
        // to be read.
        readable.reverse();
        Ok(readable)
    }

    /// Receives the rank of a connection that has proved the secret.
    fn identify(&mut self, index: usize) -> Result<()> {
        let mut stream = self.unidentified.remove(index);
        match recv_text(&mut stream, Instant::now() + MESSAGE_TIMEOUT).map(|text| JoinRequest::decode(&text))
        {
            Ok(Some(JoinRequest::Rank(record))) => return self.admit(stream, record),
            Ok(Some(JoinRequest::Failure(failure))) => return Err(failure),
            Ok(None) => {
                self.warn_rejected(format!("{} proved the secret and sent no valid rank", stream.peer()))
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
            let joined_ranks = self.joined[rank].as_ref();
            joined_ranks.map(|(_, first)| Failure::DuplicateRank { rank, hosts: [first.host.clone(), host] })
        };
        if let Some(failure) = failure {
            // The rank cannot join, but it gets the reason.
            let text = RootReply::Failed(failure.clone()).encode();
            let _ = send_text(&mut stream, &text, Instant::now() + MESSAGE_TIMEOUT);
            return Err(failure);
        }
        let mut others = self.joined.iter().flatten().map(|(_, other)| other);
        let failure = others.find(|other| other.settings != record.settings).map(|other| Failure::Settings {
            ranks: [rank, other.rank],
            hosts: [record.host.clone(), other.host.clone()],
            settings: differing_settings(&record.settings, &other.settings),
        });
        // The rank counts as joined even if its settings differ, so that it gets the failure with
        // the others.
        self.joined[rank] = Some((stream, record));
        failure.map_or(Ok(()), Err)
    }

    fn rank_table(&self) -> RootReply {
        let session = random().map_or(1, u64::from_le_bytes);
        let records = self.joined.iter().flatten().map(|(_, record)| record.clone()).collect();
        RootReply::Table { session, peer_infos: records }
    }

    /// Waits until every rank has reported its connections or ended.
    fn collect_reports(&mut self) -> Result<()> {
        let mut waiting = vec![true; self.ranks];
        let mut failure: Option<Failure> = None;
        let mut patience = self.deadline + MESSAGE_TIMEOUT;
        while waiting.contains(&true) {
            if Instant::now() >= patience {
                let late = failure.unwrap_or_else(|| self.late_rank(&waiting));
                return Err(late);
            }
            for ready in self.poll(patience)? {
                let Readable::Joined(rank) = ready else { continue };
                waiting[rank] = false;
                let Err(found) = self.recv_report(rank) else { continue };
                let first = failure.get_or_insert_with(|| {
                    // The report of the cause may still arrive.
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
            Ok(_) => Err(Failure::Other { what: format!("rank {rank} sent a report that cannot be parsed") }),
            Err(error) => Err(self.died(rank, error.to_string())),
        }
    }

    /// Removes a rank whose connection has ended, and returns that failure.
    fn died(&mut self, rank: Rank, what: String) -> Failure {
        let host = self.joined[rank].take().map_or_else(String::new, |(_, record)| record.host);
        Failure::Died { rank, host, what }
    }

    fn broadcast(&mut self, reply: &RootReply) {
        let text = reply.encode();
        for (stream, _) in self.joined.iter_mut().flatten() {
            // If this cannot be sent, the rank notices the closed connection.
            let _ = send_text(stream, &text, Instant::now() + MESSAGE_TIMEOUT);
        }
    }

    /// Sends the failure to ranks that join late.
    fn linger(&mut self, reply: &RootReply) {
        let (text, deadline) = (reply.encode(), Instant::now() + self.linger);
        let mut told = self.joined.iter().flatten().count();
        // These ranks have the failure, and the ends of their connections are no news for the wait
        // below.
        self.joined.iter_mut().for_each(|place| *place = None);
        while told < self.ranks && Instant::now() < deadline {
            let Ok(readable) = self.poll(deadline) else { return };
            for ready in readable {
                let Readable::Unidentified(index) = ready else { continue };
                let mut stream = self.unidentified.remove(index);
                // The request is read first, because a connection that ends with unread bytes is
                // reset, and the answer would be lost.
                let _ = recv_text(&mut stream, Instant::now() + MESSAGE_TIMEOUT);
                let _ = send_text(&mut stream, &text, Instant::now() + MESSAGE_TIMEOUT);
                told += 1;
            }
        }
    }

    fn missing_ranks(&self) -> Failure {
        let missing = (0..self.ranks).filter(|&rank| self.joined[rank].is_none()).collect();
        let (rejected, only_loopback) = (self.rejected.clone(), self.only_loopback.clone());
        Failure::RanksMissing { missing, ranks: self.ranks, rejected, only_loopback }
    }

    fn late_rank(&self, waiting: &[bool]) -> Failure {
        let rank = waiting.iter().position(|&waiting| waiting).unwrap_or(0);
        let host = self.joined[rank].as_ref().map_or_else(String::new, |(_, record)| record.host.clone());
        Failure::Died { rank, host, what: "it did not report its connections in time".to_owned() }
    }

    fn warn_rejected(&mut self, text: String) {
        tracing::warn!("bootstrap: {text}");
        self.record_rejected(text);
    }

    /// Keeps a rejected connection for the error about missing ranks.
    fn record_rejected(&mut self, text: String) {
        if self.rejected.len() < REJECTED_MAX {
            self.rejected.push(text);
        }
    }
}

/// The deadline for one message to or from a rank.
const MESSAGE_TIMEOUT: Duration = Duration::from_millis(400);
/// Time after a failure in which its cause is awaited.
const CAUSE_GRACE: Duration = Duration::from_millis(100);
/// Time in which late ranks are told of a failure.
pub(crate) const LINGER_TIME: Duration = Duration::from_secs(1);
/// The most rejected connections that are kept.
const REJECTED_MAX: usize = 8;
