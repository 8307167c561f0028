//! Bugs injected between the library and the network, which the invariants must find.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use unisono_reducers::{Source, Store, Target, copy_to};
use unisono_transports::sim::Node;
use unisono_transports::{
    ControlChannel, Error, Fabric, Header, Link, ListenerGuard, PeerEvent, Reconnect, RegroupRequest, Result,
    Tag,
};

/// Alters every fabric that a host gets, the later ones, too.
pub(super) fn on_every_fabric(alter: fn(Fabric) -> Fabric) -> impl Fn(Node) -> Node {
    move |(fabric, reconnect)| {
        (alter(fabric), Arc::new(AlteredReconnect { reconnect, alter_fabric: alter }) as Arc<dyn Reconnect>)
    }
}

struct AlteredReconnect {
    reconnect: Arc<dyn Reconnect>,
    alter_fabric: fn(Fabric) -> Fabric,
}

impl Reconnect for AlteredReconnect {
    fn endpoint(&self) -> Result<String> {
        self.reconnect.endpoint()
    }

    fn connect(&self, request: RegroupRequest<'_>, timeout: Duration) -> Result<Fabric> {
        self.reconnect.connect(request, timeout).map(self.alter_fabric)
    }
}

/// Gives a credit when a message is seen, not when it is taken. With all slots full, the next
/// message overwrites the oldest.
pub(super) fn early_credit(fabric: Fabric) -> Fabric {
    let (lanes, slots) = (fabric.geometry.lanes, fabric.geometry.slots);
    let early = |link: Option<Box<dyn Link>>| {
        let held = vec![VecDeque::new(); lanes];
        link.map(|link| Box::new(EarlyCredit { link, slots, held }) as Box<dyn Link>)
    };
    Fabric { links: fabric.links.into_iter().map(early).collect(), ..fabric }
}

struct EarlyCredit {
    link: Box<dyn Link>,
    slots: usize,
    held: Vec<VecDeque<(Header, Vec<u8>)>>,
}

impl EarlyCredit {
    fn pull(&mut self, lane: usize) -> Result<()> {
        while let Some(head) = self.link.header(lane)?
            && let Some(body) = self.link.body(lane)?
        {
            self.held[lane].push_back((head, to_vec(body, head.bytes)));
            self.link.release(lane);
            if self.held[lane].len() > self.slots {
                self.held[lane].pop_front();
            }
        }
        Ok(())
    }
}

fn to_vec(source: Source<'_>, bytes: usize) -> Vec<u8> {
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

    fn header(&mut self, lane: usize) -> Result<Option<Header>> {
        self.pull(lane)?;
        Ok(self.held[lane].front().map(|(head, _)| *head))
    }

    fn body(&mut self, lane: usize) -> Result<Option<Source<'_>>> {
        Ok(self.held[lane].front().map(|(_, body)| Source::from(&body[..])))
    }

    fn release(&mut self, lane: usize) {
        self.held[lane].pop_front();
    }

    fn recv_into(&mut self, lane: usize, target: Target<'_>) -> Result<bool> {
        let Some((_, body)) = self.held[lane].pop_front() else { return Ok(false) };
        copy_to(Store::Cached, target, Source::from(&body[..]));
        Ok(true)
    }

    fn progress(&mut self) -> Result<()> {
        (0..self.held.len()).try_for_each(|lane| self.pull(lane))?;
        self.link.progress()
    }
}

/// A control channel that alters or drops peer events.
struct AlteredControl {
    control: Box<dyn ControlChannel>,
    alter: fn(PeerEvent) -> Option<PeerEvent>,
}

impl ControlChannel for AlteredControl {
    fn post(&mut self, note: &[u8]) {
        self.control.post(note);
    }

    fn poll(&mut self) -> Option<PeerEvent> {
        loop {
            let event = self.control.poll()?;
            if let Some(event) = (self.alter)(event) {
                return Some(event);
            }
        }
    }

    fn listener_guard(&self) -> Option<ListenerGuard> {
        self.control.listener_guard()
    }
}

fn with_events(fabric: Fabric, alter: fn(PeerEvent) -> Option<PeerEvent>) -> Fabric {
    Fabric { control: Box::new(AlteredControl { control: fabric.control, alter }), ..fabric }
}

/// Drops the events of exited peers.
pub(super) fn lost_exit_events(fabric: Fabric) -> Fabric {
    with_events(fabric, |event| Some(event).filter(|event| !matches!(event, PeerEvent::Exited { .. })))
}

/// A connection that was reset is taken for the end of a process.
pub(super) fn reset_as_exit(fabric: Fabric) -> Fabric {
    with_events(fabric, |event| match event {
        PeerEvent::Reset { from } => Some(PeerEvent::Exited { from }),
        event => Some(event),
    })
}

/// Drops the cause of failures and keeps the fact.
pub(super) fn lost_abort_cause(fabric: Fabric) -> Fabric {
    with_events(fabric, |event| match event {
        PeerEvent::Message { from, mut bytes } if bytes.first() == Some(&FAILED) => {
            bytes[CODE_OFFSET] = ABORTED;
            bytes.truncate(TEXT_OFFSET);
            Some(PeerEvent::Message { from, bytes })
        }
        event => Some(event),
    })
}

/// Turns the message "I have met the others" into "all have met".
pub(super) fn first_vote_trusted(fabric: Fabric) -> Fabric {
    with_events(fabric, |event| match event {
        PeerEvent::Message { from, mut bytes }
            if bytes.first() == Some(&AGREEMENT) && bytes[CODE_OFFSET] == MET =>
        {
            bytes[CODE_OFFSET] = DECIDED;
            Some(PeerEvent::Message { from, bytes })
        }
        event => Some(event),
    })
}

/// A host whose new fabrics begin with the last messages of the old ones.
pub(super) fn stale_messages((fabric, reconnect): Node) -> Node {
    let last = Arc::new(Mutex::new(HashMap::new()));
    let fabric = StaleLink::wrap_links(fabric, &last);
    (fabric, Arc::new(StaleReconnect { reconnect, last }))
}

type LastMessages = Arc<Mutex<HashMap<(usize, usize), (Header, Vec<u8>)>>>;

struct StaleReconnect {
    reconnect: Arc<dyn Reconnect>,
    last: LastMessages,
}

impl Reconnect for StaleReconnect {
    fn endpoint(&self) -> Result<String> {
        self.reconnect.endpoint()
    }

    fn connect(&self, request: RegroupRequest<'_>, timeout: Duration) -> Result<Fabric> {
        self.reconnect.connect(request, timeout).map(|fabric| StaleLink::wrap_links(fabric, &self.last))
    }
}

struct StaleLink {
    link: Box<dyn Link>,
    peer: usize,
    last: LastMessages,
    stale: HashMap<usize, (Header, Vec<u8>)>,
}

impl StaleLink {
    fn wrap_links(fabric: Fabric, last: &LastMessages) -> Fabric {
        let late: HashMap<_, _> = last.lock().unwrap().drain().collect();
        let wrap = |(peer, link): (usize, Option<Box<dyn Link>>)| {
            let from_peer = late.iter().filter(|((sender, _), _)| *sender == peer);
            let late = from_peer.map(|((_, lane), message)| (*lane, message.clone())).collect();
            link.map(|link| {
                Box::new(StaleLink { link, peer, last: Arc::clone(last), stale: late }) as Box<dyn Link>
            })
        };
        Fabric { links: fabric.links.into_iter().enumerate().map(wrap).collect(), ..fabric }
    }
}

impl Link for StaleLink {
    fn try_send<'a>(
        &mut self,
        lane: usize,
        tag: &Tag,
        bytes: usize,
        parts: &mut dyn Iterator<Item = Source<'a>>,
    ) -> Result<bool> {
        self.link.try_send(lane, tag, bytes, parts)
    }

    fn header(&mut self, lane: usize) -> Result<Option<Header>> {
        match self.stale.get(&lane) {
            Some((head, _)) => Ok(Some(*head)),
            None => self.link.header(lane),
        }
    }

    fn body(&mut self, lane: usize) -> Result<Option<Source<'_>>> {
        match self.stale.get(&lane) {
            Some((_, body)) => Ok(Some(Source::from(&body[..]))),
            None => self.link.body(lane),
        }
    }

    fn release(&mut self, lane: usize) {
        if self.stale.remove(&lane).is_none() {
            self.link.release(lane);
        }
    }

    fn recv_into(&mut self, lane: usize, target: Target<'_>) -> Result<bool> {
        let head = self.header(lane)?.ok_or_else(|| Error::InvalidUsage("nothing is here".to_owned()))?;
        let Some(body) = self.body(lane)? else { return Ok(false) };
        let body = to_vec(body, head.bytes);
        copy_to(Store::Cached, target, Source::from(&body[..]));
        self.release(lane);
        self.last.lock().unwrap().insert((self.peer, lane), (head, body));
        Ok(true)
    }

    fn progress(&mut self) -> Result<()> {
        self.link.progress()
    }
}

/// Layout of control messages: the kind, and the byte with the phase or the failure code.
const FAILED: u8 = 3;
const AGREEMENT: u8 = 4;
const CODE_OFFSET: usize = 5;
const ABORTED: u8 = 6;
const MET: u8 = 1;
const DECIDED: u8 = 2;
/// Offset of the text in the message of a failure.
const TEXT_OFFSET: usize = 78;
