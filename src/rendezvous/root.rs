//! Rank 0's second task: to collect everybody, and to tell everybody.

use super::Identity;
use super::porch::Porch;
use super::record::{Record, Verdict, recv_text, send_text};
use crate::config::Config;
use crate::error::{Error, ErrorKind, Result};
use std::net::TcpListener;
use std::time::{Duration, Instant};
use unisono_transports::auth::{self, Purpose, Secret};
use unisono_transports::socket::Stream;

/// Listens where the ranks meet.
pub(super) struct Root {
    listener: TcpListener,
    secret: Secret,
    ranks: usize,
    deadline: Instant,
    /// Who has come, by rank.
    present: Vec<Option<(Stream, Record)>>,
    /// Who is about to come, or why it did not.
    porch: Porch<std::result::Result<(Stream, Record), String>>,
    /// What went wrong without ending the meeting.
    notes: Vec<String>,
}

impl Root {
    pub(super) fn listen(identity: &Identity, config: &Config, deadline: Instant) -> Result<Self> {
        let address = identity.id.address();
        let listener = TcpListener::bind(address).and_then(|listener| {
            listener.set_nonblocking(true)?;
            Ok(listener)
        });
        let listener = listener.map_err(|error| {
            let text = format!("rank 0 cannot listen at {address}: {error}; is another job using the port?");
            Error::new(ErrorKind::Rendezvous(text))
        })?;
        tracing::info!(%address, host = config.host, "waiting for {} ranks", identity.ranks);
        let present = (0..identity.ranks).map(|_| None).collect();
        let secret = identity.id.secret().clone();
        let (porch, notes) = (Porch::new(), Vec::new());
        Ok(Self { listener, secret, ranks: identity.ranks, deadline, present, porch, notes })
    }

    /// Holds the meeting: collect, send the table, hear the reports, give the word.
    pub(super) fn run(mut self) {
        let verdict = match self.collect() {
            Ok(()) => self.table(),
            Err(story) => Verdict::Failed(story),
        };
        let failed = matches!(verdict, Verdict::Failed(_));
        self.tell(&verdict);
        if failed {
            return self.linger(&verdict);
        }
        let word = self.reports();
        self.tell(&word);
    }

    /// Waits until every rank is here.
    fn collect(&mut self) -> std::result::Result<(), String> {
        while self.present.iter().any(Option::is_none) {
            if Instant::now() >= self.deadline {
                return Err(self.who_is_missing());
            }
            self.invite(self.deadline);
            match self.porch.next(ACCEPT_EVERY) {
                Some(Ok((stream, record))) => self.admit(stream, record)?,
                Some(Err(note)) => self.note(note),
                None => {}
            }
        }
        Ok(())
    }

    /// Lets everybody in who knocks.
    fn invite(&self, deadline: Instant) {
        while self.porch.has_room()
            && let Ok((stream, _)) = self.listener.accept()
        {
            let secret = self.secret.clone();
            self.porch.enter(deadline, move |patience| hear(Stream::Tcp(stream), &secret, patience));
        }
    }

    fn admit(&mut self, stream: Stream, record: Record) -> std::result::Result<(), String> {
        let (rank, ranks) = (record.rank, record.ranks);
        if ranks != self.ranks || rank >= self.ranks {
            let story = format!(
                "rank {rank} on {} expects {ranks} ranks, but rank 0 expects {}",
                record.host, self.ranks
            );
            // It is none of this world's, but it shall hear why.
            let mut stream = stream;
            let _ = send_text(
                &mut stream,
                &Verdict::Failed(story.clone()).encode(),
                Instant::now() + WORD_TIME_MAX,
            );
            return Err(story);
        }
        if let Some((_, first)) = &self.present[rank] {
            let story = format!("rank {rank} is there twice: on {} and on {}", first.host, record.host);
            let mut stream = stream;
            let _ = send_text(
                &mut stream,
                &Verdict::Failed(story.clone()).encode(),
                Instant::now() + WORD_TIME_MAX,
            );
            return Err(story);
        }
        let other = self
            .present
            .iter()
            .flatten()
            .map(|(_, other)| other)
            .find(|other| other.agreement != record.agreement);
        let story = other.map(|other| {
            format!(
                "ranks are set up differently: rank {rank} on {} has {}, rank {} on {} has {}",
                record.host, record.agreement, other.rank, other.host, other.agreement
            )
        });
        self.present[rank] = Some((stream, record));
        story.map_or(Ok(()), Err)
    }

    fn table(&self) -> Verdict {
        let session = auth::random().map_or(1, u64::from_le_bytes);
        let records = self.present.iter().flatten().map(|(_, record)| record.clone()).collect();
        Verdict::Table { session, records }
    }

    /// Waits for every rank's report on its connections.
    fn reports(&mut self) -> Verdict {
        let patience = self.deadline + WORD_TIME_MAX;
        let mut stories = Vec::new();
        for (stream, record) in self.present.iter_mut().flatten() {
            match recv_text(stream, patience).map(|text| Verdict::decode(&text)) {
                Ok(Some(Verdict::Ready)) => {}
                Ok(Some(Verdict::Failed(story))) => stories.push(story),
                Ok(_) => stories.push(format!("rank {} gave a report that cannot be read", record.rank)),
                Err(error) => {
                    stories.push(format!("rank {} on {} was lost: {error}", record.rank, record.host))
                }
            }
        }
        if stories.is_empty() { Verdict::Ready } else { Verdict::Failed(stories.join("; ")) }
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
        let until = Instant::now() + LINGER_TIME;
        let missing = |root: &Self| root.present.iter().any(Option::is_none);
        while missing(self) && Instant::now() < until {
            self.invite(until);
            let Some(Ok((mut stream, record))) = self.porch.next(ACCEPT_EVERY) else {
                continue;
            };
            let _ = send_text(&mut stream, &verdict.encode(), Instant::now() + WORD_TIME_MAX);
            let rank = record.rank;
            if let Some(place) = self.present.get_mut(rank) {
                *place = Some((stream, record));
            }
        }
    }

    fn who_is_missing(&self) -> String {
        let absent = self.present.iter().enumerate().filter(|(_, present)| present.is_none());
        let missing: Vec<String> = absent.map(|(rank, _)| rank.to_string()).collect();
        let mut story =
            format!("{} of {} ranks did not come in time: {}", missing.len(), self.ranks, missing.join(", "));
        if !self.notes.is_empty() {
            story += &format!(" (somebody else did: {})", self.notes.join("; "));
        }
        story
    }

    fn note(&mut self, note: String) {
        tracing::warn!("rendezvous: {note}");
        if self.notes.len() < NOTES_MAX {
            self.notes.push(note);
        }
    }
}

/// Lets one connection prove itself and present its rank.
fn hear(
    mut stream: Stream,
    secret: &Secret,
    patience: Instant,
) -> std::result::Result<(Stream, Record), String> {
    // A stranger's version is only noted: it has proved nothing, and must not end the meeting of others.
    let claims = auth::accept(&mut stream, secret, patience).map_err(|error| error.to_string())?;
    let record = recv_text(&mut stream, patience).ok().and_then(|text| Record::decode(&text));
    let joins = |record: &Record| claims.purpose == Purpose::Join && record.rank == claims.rank as usize;
    match record.filter(joins) {
        Some(record) => Ok((stream, record)),
        None => Err(format!("{} proved the secret but did not present itself", stream.peer())),
    }
}

const ACCEPT_EVERY: Duration = Duration::from_millis(1);
/// How long it may take to tell one rank something.
const WORD_TIME_MAX: Duration = Duration::from_millis(400);
/// How long a failed meeting tells late comers so.
const LINGER_TIME: Duration = Duration::from_secs(1);
const NOTES_MAX: usize = 8;
