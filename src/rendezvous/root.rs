//! Rank 0's second task: to collect everybody, and to tell everybody.

use super::failure::RendezvousError as Failure;
use super::record::{Introduction, Record, Verdict, recv_text, send_text};
use super::{Identity, unlike};
use crate::config::Config;
use crate::schedule::Rank;
use std::os::fd::AsFd;
use std::time::{Duration, Instant};
use unisono_transports::Error as TransportError;
use unisono_transports::auth::{self, Purpose};
use unisono_transports::listener::Listener;
use unisono_transports::porch::{News, Porch};
use unisono_transports::socket::Stream;

type Result<T> = std::result::Result<T, Failure>;

/// Listens where the ranks meet.
pub(super) struct Root<'r> {
    porch: Porch,
    ranks: usize,
    deadline: Instant,
    /// How long a failed meeting tells late comers so.
    linger: Duration,
    /// Who has proved the secret and not yet said who it is.
    arriving: Vec<Stream>,
    /// Who has come, by rank.
    present: Vec<Option<(Stream, Record)>>,
    /// What went wrong without ending the meeting.
    strangers: Vec<String>,
    /// A rank that encrypts where this one does not, or the other way about.
    unlike: Option<Failure>,
    config: &'r Config,
}

/// Who has news for the root.
enum Caller {
    Arriving(usize),
    Present(Rank),
}

impl<'r> Root<'r> {
    pub(super) fn listen(
        identity: &Identity,
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
            porch: Porch::new(vec![listener], identity.terms(config)),
            ranks: identity.ranks,
            deadline,
            linger,
            arriving: Vec::new(),
            present: (0..identity.ranks).map(|_| None).collect(),
            strangers: Vec::new(),
            unlike: None,
            config,
        })
    }

    /// Holds the meeting: collect, send the table, hear the reports, give the word.
    pub(super) fn run(mut self) {
        if let Err(failure) = self.collect() {
            let verdict = Verdict::Failed(failure);
            self.tell(&verdict);
            return self.linger(&verdict);
        }
        self.tell(&self.table());
        let word = self.hear_reports().map_or_else(Verdict::Failed, |()| Verdict::Ready);
        self.tell(&word);
    }

    /// Waits until every rank is here.
    fn collect(&mut self) -> Result<()> {
        while self.present.iter().any(Option::is_none) {
            if Instant::now() >= self.deadline {
                return Err(self.who_is_missing());
            }
            let callers = self.news(self.deadline)?;
            if let Some(failure) = self.unlike.take() {
                return Err(failure);
            }
            for caller in callers {
                match caller {
                    Caller::Arriving(index) => self.present_itself(index)?,
                    // Nobody has anything to say before the table has come.
                    Caller::Present(rank) => return Err(self.died(rank, "its connection ended".to_owned())),
                }
            }
        }
        Ok(())
    }

    /// Who has something to say; lets others in meanwhile. Those who arrive come last first.
    fn news(&mut self, deadline: Instant) -> Result<Vec<Caller>> {
        let present: Vec<Rank> = (0..self.ranks).filter(|&rank| self.present[rank].is_some()).collect();
        let streams = self.present.iter().flatten().map(|(stream, _)| stream);
        let watched: Vec<_> = streams.chain(&self.arriving).map(AsFd::as_fd).collect();
        let mut callers = Vec::new();
        for piece in self.porch.wait(&watched, deadline)? {
            match piece {
                News::Ready(index) => callers.push(match present.get(index) {
                    Some(&rank) => Caller::Present(rank),
                    None => Caller::Arriving(index - present.len()),
                }),
                News::Guest(stream, claims) if claims.purpose == Purpose::Join => self.arriving.push(stream),
                News::Guest(stream, _) => self.note(format!("{} wants something else", stream.peer())),
                News::Stranger(TransportError::Encryption { peer, rank: Some(rank), encrypts }) => {
                    self.unlike = Some(unlike((0, self.config), (rank, peer), encrypts));
                }
                // A stranger's version is only noted: it has proved nothing, and must not end the meeting.
                News::Stranger(error) => self.remember(error.to_string()),
            }
        }
        callers.reverse();
        Ok(callers)
    }

    /// Somebody who has proved the secret says who it is.
    fn present_itself(&mut self, index: usize) -> Result<()> {
        let mut stream = self.arriving.remove(index);
        match recv_text(&mut stream, Instant::now() + WORD_TIME_MAX).map(|text| Introduction::decode(&text)) {
            Ok(Some(Introduction::Rank(record))) => return self.admit(stream, record),
            Ok(Some(Introduction::Failure(failure))) => return Err(failure),
            Ok(None) => self.note(format!("{} proved the secret and did not present itself", stream.peer())),
            Err(error) => self.note(error.to_string()),
        }
        Ok(())
    }

    fn admit(&mut self, mut stream: Stream, record: Record) -> Result<()> {
        let (rank, host) = (record.rank, record.host.clone());
        let failure = if record.ranks != self.ranks || rank >= self.ranks {
            Some(Failure::WorldSize { rank, host, expects: record.ranks, root_expects: self.ranks })
        } else {
            let present = self.present[rank].as_ref();
            present.map(|(_, first)| Failure::Twice { rank, hosts: [first.host.clone(), host] })
        };
        if let Some(failure) = failure {
            // It has no place here, but it shall hear why.
            let text = Verdict::Failed(failure.clone()).encode();
            let _ = send_text(&mut stream, &text, Instant::now() + WORD_TIME_MAX);
            return Err(failure);
        }
        let mut others = self.present.iter().flatten().map(|(_, other)| other);
        let failure =
            others.find(|other| other.agreement != record.agreement).map(|other| Failure::Settings {
                ranks: [rank, other.rank],
                hosts: [record.host.clone(), other.host.clone()],
                settings: [record.agreement.clone(), other.agreement.clone()],
            });
        self.present[rank] = Some((stream, record));
        failure.map_or(Ok(()), Err)
    }

    fn table(&self) -> Verdict {
        let session = auth::random().map_or(1, u64::from_le_bytes);
        let records = self.present.iter().flatten().map(|(_, record)| record.clone()).collect();
        Verdict::Table { session, records }
    }

    /// Waits for every rank's report on its connections, or for its end.
    fn hear_reports(&mut self) -> Result<()> {
        let mut waiting = vec![true; self.ranks];
        let mut failure: Option<Failure> = None;
        let mut patience = self.deadline + WORD_TIME_MAX;
        while waiting.contains(&true) {
            if Instant::now() >= patience {
                let late = failure.unwrap_or_else(|| self.who_is_late(&waiting));
                return Err(late);
            }
            for caller in self.news(patience)? {
                let Caller::Present(rank) = caller else { continue };
                waiting[rank] = false;
                let Err(found) = self.report(rank) else { continue };
                let first = failure.get_or_insert_with(|| {
                    // The cause may be on its way.
                    patience = patience.min(Instant::now() + SETTLE);
                    found.clone()
                });
                if found.explains(first) {
                    return Err(found);
                }
            }
        }
        failure.map_or(Ok(()), Err)
    }

    fn report(&mut self, rank: Rank) -> Result<()> {
        let Some((stream, _)) = &mut self.present[rank] else { return Ok(()) };
        match recv_text(stream, Instant::now() + WORD_TIME_MAX).map(|text| Verdict::decode(&text)) {
            Ok(Some(Verdict::Ready)) => Ok(()),
            Ok(Some(Verdict::Failed(failure))) => Err(failure.at(rank)),
            Ok(_) => Err(Failure::Other { what: format!("rank {rank} gave a report that cannot be read") }),
            Err(error) => Err(self.died(rank, error.to_string())),
        }
    }

    /// Nobody can be told on a connection that has ended.
    fn died(&mut self, rank: Rank, what: String) -> Failure {
        let host = self.present[rank].take().map_or_else(String::new, |(_, record)| record.host);
        Failure::Died { rank, host, what }
    }

    fn tell(&mut self, verdict: &Verdict) {
        let text = verdict.encode();
        for (stream, _) in self.present.iter_mut().flatten() {
            // Whoever cannot be told any more finds out by itself.
            let _ = send_text(stream, &text, Instant::now() + WORD_TIME_MAX);
        }
    }

    /// Tells those who come late why there is no meeting.
    fn linger(&mut self, verdict: &Verdict) {
        let (text, until) = (verdict.encode(), Instant::now() + self.linger);
        let mut told = self.present.iter().flatten().count();
        self.present.iter_mut().for_each(|place| *place = None);
        while told < self.ranks && Instant::now() < until {
            let Ok(callers) = self.news(until) else { return };
            for caller in callers {
                let Caller::Arriving(index) = caller else { continue };
                let mut stream = self.arriving.remove(index);
                let _ = recv_text(&mut stream, Instant::now() + WORD_TIME_MAX);
                let _ = send_text(&mut stream, &text, Instant::now() + WORD_TIME_MAX);
                told += 1;
            }
        }
    }

    fn who_is_missing(&self) -> Failure {
        let missing = (0..self.ranks).filter(|&rank| self.present[rank].is_none()).collect();
        Failure::Missing { missing, ranks: self.ranks, strangers: self.strangers.clone() }
    }

    fn who_is_late(&self, waiting: &[bool]) -> Failure {
        let rank = waiting.iter().position(|&waiting| waiting).unwrap_or(0);
        let host = self.present[rank].as_ref().map_or_else(String::new, |(_, record)| record.host.clone());
        Failure::Died { rank, host, what: "it did not say in time that it is connected".to_owned() }
    }

    fn note(&mut self, note: String) {
        tracing::warn!("rendezvous: {note}");
        self.remember(note);
    }

    /// For those who will ask why somebody is missing.
    fn remember(&mut self, note: String) {
        if self.strangers.len() < STRANGERS_MAX {
            self.strangers.push(note);
        }
    }
}

/// How long it may take to tell one rank something, or to hear it.
const WORD_TIME_MAX: Duration = Duration::from_millis(400);
/// How long after a failure its cause may become known.
const SETTLE: Duration = Duration::from_millis(100);
/// How long a failed meeting tells late comers so.
pub(super) const LINGER_TIME: Duration = Duration::from_secs(1);
/// Strangers that are remembered.
const STRANGERS_MAX: usize = 8;
