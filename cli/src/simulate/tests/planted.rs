//! Faults planted between the library and the network, which the invariants have to find.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use unisono_cuda::{Source, Store, Target, copy_to};
use unisono_transports::sim::Place;
use unisono_transports::{Control, Door, Error, Event, Gathering, Head, Link, Mesh, Result, Tag, Venue};

/// Alters every mesh that a host gets, the later ones, too.
pub(super) fn everywhere(alter: fn(Mesh) -> Mesh) -> impl Fn(Place) -> Place {
    move |(mesh, venue)| (alter(mesh), Arc::new(Altered { venue, alter }) as Arc<dyn Venue>)
}

struct Altered {
    venue: Arc<dyn Venue>,
    alter: fn(Mesh) -> Mesh,
}

impl Venue for Altered {
    fn place(&self) -> Result<String> {
        self.venue.place()
    }

    fn meet(&self, gathering: Gathering<'_>, patience: Duration) -> Result<Mesh> {
        self.venue.meet(gathering, patience).map(self.alter)
    }
}

/// A credit is given when a message is seen, not when it is taken: when all slots are full, the next one takes the
/// place of the oldest.
pub(super) fn early_credit(mesh: Mesh) -> Mesh {
    let (lanes, slots) = (mesh.geometry.lanes, mesh.geometry.slots);
    let early = |link: Option<Box<dyn Link>>| {
        let held = vec![VecDeque::new(); lanes];
        link.map(|link| Box::new(EarlyCredit { link, slots, held }) as Box<dyn Link>)
    };
    Mesh { links: mesh.links.into_iter().map(early).collect(), ..mesh }
}

struct EarlyCredit {
    link: Box<dyn Link>,
    slots: usize,
    held: Vec<VecDeque<(Head, Vec<u8>)>>,
}

impl EarlyCredit {
    fn pull(&mut self, lane: usize) -> Result<()> {
        while let Some(head) = self.link.head(lane)?
            && let Some(body) = self.link.body(lane)?
        {
            self.held[lane].push_back((head, copied(body, head.bytes)));
            self.link.release(lane);
            if self.held[lane].len() > self.slots {
                self.held[lane].pop_front();
            }
        }
        Ok(())
    }
}

fn copied(source: Source<'_>, bytes: usize) -> Vec<u8> {
    let mut copy = vec![0; bytes];
    copy_to(Store::Cached, Target::from(&mut copy[..]), source);
    copy
}

impl Link for EarlyCredit {
    fn try_send<'a>(
        &mut self,
        lane: usize,
        tag: &Tag,
        bytes: usize,
        parts: &mut dyn Iterator<Item = Source<'a>>,
    ) -> Result<bool> {
        self.link.try_send(lane, tag, bytes, parts)
    }

    fn head(&mut self, lane: usize) -> Result<Option<Head>> {
        self.pull(lane)?;
        Ok(self.held[lane].front().map(|(head, _)| *head))
    }

    fn body(&mut self, lane: usize) -> Result<Option<Source<'_>>> {
        Ok(self.held[lane].front().map(|(_, body)| Source::from(&body[..])))
    }

    fn release(&mut self, lane: usize) {
        self.held[lane].pop_front();
    }

    fn take(&mut self, lane: usize, target: Target<'_>) -> Result<bool> {
        let Some((_, body)) = self.held[lane].pop_front() else { return Ok(false) };
        copy_to(Store::Cached, target, Source::from(&body[..]));
        Ok(true)
    }

    fn progress(&mut self) -> Result<()> {
        (0..self.held.len()).try_for_each(|lane| self.pull(lane))?;
        self.link.progress()
    }
}

/// Events that are altered on their way from the network to the library; none: they get lost.
struct AlteredEvents {
    control: Box<dyn Control>,
    alter: fn(Event) -> Option<Event>,
}

impl Control for AlteredEvents {
    fn post(&mut self, note: &[u8]) {
        self.control.post(note);
    }

    fn poll(&mut self) -> Option<Event> {
        loop {
            let event = self.control.poll()?;
            if let Some(event) = (self.alter)(event) {
                return Some(event);
            }
        }
    }

    fn door(&self) -> Option<Door> {
        self.control.door()
    }
}

fn with_events(mesh: Mesh, alter: fn(Event) -> Option<Event>) -> Mesh {
    Mesh { control: Box::new(AlteredEvents { control: mesh.control, alter }), ..mesh }
}

/// News of deaths get lost.
pub(super) fn deaf_to_deaths(mesh: Mesh) -> Mesh {
    with_events(mesh, |event| Some(event).filter(|event| !matches!(event, Event::Closed { .. })))
}

/// A connection that was reset is taken for the end of a process.
pub(super) fn reset_for_death(mesh: Mesh) -> Mesh {
    with_events(mesh, |event| match event {
        Event::Cut { from } => Some(Event::Closed { from }),
        event => Some(event),
    })
}

/// Of a failure, only the fact is told.
pub(super) fn cause_forgotten(mesh: Mesh) -> Mesh {
    with_events(mesh, |event| match event {
        Event::Note { from, mut bytes } if bytes.first() == Some(&FAILED) => {
            bytes[CODE] = ABORTED;
            bytes.truncate(TEXT);
            Some(Event::Note { from, bytes })
        }
        event => Some(event),
    })
}

/// Whoever says that it has met the others is believed to know that all have.
pub(super) fn first_answer_believed(mesh: Mesh) -> Mesh {
    with_events(mesh, |event| match event {
        Event::Note { from, mut bytes } if bytes.first() == Some(&COUNT) && bytes[CODE] == MET => {
            bytes[CODE] = DECIDED;
            Some(Event::Note { from, bytes })
        }
        event => Some(event),
    })
}

/// A host whose new meshes begin with the last messages of the old ones.
pub(super) fn late_messages((mesh, venue): Place) -> Place {
    let last = Arc::new(Mutex::new(HashMap::new()));
    let mesh = Late::links(mesh, &last);
    (mesh, Arc::new(LateVenue { venue, last }))
}

type Last = Arc<Mutex<HashMap<(usize, usize), (Head, Vec<u8>)>>>;

struct LateVenue {
    venue: Arc<dyn Venue>,
    last: Last,
}

impl Venue for LateVenue {
    fn place(&self) -> Result<String> {
        self.venue.place()
    }

    fn meet(&self, gathering: Gathering<'_>, patience: Duration) -> Result<Mesh> {
        self.venue.meet(gathering, patience).map(|mesh| Late::links(mesh, &self.last))
    }
}

struct Late {
    link: Box<dyn Link>,
    peer: usize,
    last: Last,
    late: HashMap<usize, (Head, Vec<u8>)>,
}

impl Late {
    fn links(mesh: Mesh, last: &Last) -> Mesh {
        let late: HashMap<_, _> = last.lock().unwrap().drain().collect();
        let wrap = |(peer, link): (usize, Option<Box<dyn Link>>)| {
            let own = late.iter().filter(|((from, _), _)| *from == peer);
            let late = own.map(|((_, lane), message)| (*lane, message.clone())).collect();
            link.map(|link| Box::new(Late { link, peer, last: Arc::clone(last), late }) as Box<dyn Link>)
        };
        Mesh { links: mesh.links.into_iter().enumerate().map(wrap).collect(), ..mesh }
    }
}

impl Link for Late {
    fn try_send<'a>(
        &mut self,
        lane: usize,
        tag: &Tag,
        bytes: usize,
        parts: &mut dyn Iterator<Item = Source<'a>>,
    ) -> Result<bool> {
        self.link.try_send(lane, tag, bytes, parts)
    }

    fn head(&mut self, lane: usize) -> Result<Option<Head>> {
        match self.late.get(&lane) {
            Some((head, _)) => Ok(Some(*head)),
            None => self.link.head(lane),
        }
    }

    fn body(&mut self, lane: usize) -> Result<Option<Source<'_>>> {
        match self.late.get(&lane) {
            Some((_, body)) => Ok(Some(Source::from(&body[..]))),
            None => self.link.body(lane),
        }
    }

    fn release(&mut self, lane: usize) {
        if self.late.remove(&lane).is_none() {
            self.link.release(lane);
        }
    }

    fn take(&mut self, lane: usize, target: Target<'_>) -> Result<bool> {
        let head = self.head(lane)?.ok_or_else(|| Error::Misuse("nothing is here".to_owned()))?;
        let Some(body) = self.body(lane)? else { return Ok(false) };
        let body = copied(body, head.bytes);
        copy_to(Store::Cached, target, Source::from(&body[..]));
        self.release(lane);
        self.last.lock().unwrap().insert((self.peer, lane), (head, body));
        Ok(true)
    }

    fn progress(&mut self) -> Result<()> {
        self.link.progress()
    }
}

/// As notes are written: the kind, and the byte that says how far a count is, or what a failure is.
const FAILED: u8 = 3;
const COUNT: u8 = 4;
const CODE: usize = 5;
const ABORTED: u8 = 6;
const MET: u8 = 1;
const DECIDED: u8 = 2;
/// Where in a note of a failure its text begins.
const TEXT: usize = 78;
