//! The control channel of a peer that breaks the protocol, and its messages.

use super::{State, Wrong, lock};
use crate::control::{CombinedControl, RemoteControl};
use crate::{ControlChannel, Footprint, ListenerGuard, MAX_CONTROL_MSG_BYTES, PeerEvent};
use std::any::Any;
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// Bytes for the control channels of all other ranks.
pub(super) enum Note {
    Message(Vec<u8>),
    /// Bytes on the connections, without the length of a message.
    Unframed(Vec<u8>),
}

pub(super) struct RawControl {
    pub(super) inner: Box<dyn ControlChannel>,
    pub(super) state: Arc<Mutex<State>>,
}

impl RawControl {
    /// Posts the messages that the links have made.
    fn post_notes(&mut self) {
        for note in std::mem::take(&mut lock(&self.state).notes) {
            match note {
                Note::Message(bytes) => self.inner.post(&bytes),
                Note::Unframed(bytes) => {
                    if let Some(remote) = remote(&mut *self.inner) {
                        remote.send_unframed(&bytes);
                    }
                }
            }
        }
    }
}

fn remote(control: &mut dyn ControlChannel) -> Option<&mut RemoteControl> {
    let control = control as &mut dyn Any;
    match control.is::<RemoteControl>() {
        true => control.downcast_mut::<RemoteControl>(),
        false => control.downcast_mut::<CombinedControl>().map(|combined| &mut combined.1),
    }
}

impl ControlChannel for RawControl {
    fn post(&mut self, message: &[u8]) {
        self.post_notes();
        if !lock(&self.state).is_silent {
            self.inner.post(message);
        }
    }

    fn poll(&mut self) -> Option<PeerEvent> {
        self.post_notes();
        self.inner.poll()
    }

    fn drain(&mut self, limit: Duration) {
        self.post_notes();
        self.inner.drain(limit);
    }

    fn listener_guard(&self) -> Option<ListenerGuard> {
        self.inner.listener_guard()
    }

    fn footprint(&self) -> Footprint {
        self.inner.footprint()
    }
}

/// Makes a control message, or bytes that are none.
pub(super) fn note(state: &mut State) -> Note {
    let mut bytes = message(state);
    match state.random.below(8) {
        0 => bytes.truncate(state.random.below(bytes.len() + 1)),
        1 if bytes.len() < MAX_CONTROL_MSG_BYTES => bytes.push(1),
        2 => {
            let index = state.random.below(bytes.len());
            bytes.get_mut(index).into_iter().for_each(|byte| *byte ^= 1 << (index % 8));
        }
        _ => {}
    }
    bytes.truncate(MAX_CONTROL_MSG_BYTES);
    if bytes.first() == Some(&FAILED) && bytes.get(5) == Some(&BUG) {
        // The test tells bugs of the peer from those of the ranks.
        bytes[5] = 1;
    }
    if state.wrong != Wrong::UnframedControl {
        return Note::Message(bytes);
    }
    match state.random.below(4) {
        0 => Note::Unframed(state.number().to_le_bytes()[..1 + bytes.len() % 8].to_vec()),
        1 => Note::Unframed([&u16::MAX.to_le_bytes()[..], &bytes].concat()),
        2 => Note::Unframed([&(bytes.len() as u16 + 1).to_le_bytes()[..], &bytes].concat()),
        _ => Note::Unframed(bytes),
    }
}

/// Makes a message in the format of `engine/watchdog/control_msg.rs`.
fn message(state: &mut State) -> Vec<u8> {
    let kind = state.random.below(7) as u8;
    let mut bytes = vec![kind];
    match kind {
        WAITING | WAITING_ELSEWHERE => bytes.extend(state.tag().to_bytes()),
        FAILED => {
            bytes.extend((state.number() as u32).to_le_bytes());
            bytes.push(1 + state.random.below(13) as u8);
            bytes.extend((state.number() as u32).to_le_bytes());
            bytes.extend((state.number() as u32).to_le_bytes());
            bytes.extend(state.tag().to_bytes());
            bytes.extend(state.tag().to_bytes());
            let list = b"1,2,0,18446744073709551615,99999999999999999999,1".repeat(state.random.below(18));
            bytes.extend(list);
        }
        MEMBERSHIP => {
            bytes.extend(state.random.choose(&[0, 1, 2, u32::MAX - 1, u32::MAX]).to_le_bytes());
            bytes.push(state.random.below(4) as u8);
            let endpoint = b"127.0.0.1:1 ".repeat(6)[..state.random.below(70)].to_vec();
            let length = if state.random.one_in(4) { state.number() as u8 } else { endpoint.len() as u8 };
            bytes.push(length);
            bytes.extend(endpoint);
            bytes.extend(state.number().to_le_bytes());
            let ranks = state.random.choose(&[2, 3, 3, 3, 0, 4, 7_000, u32::MAX]);
            bytes.extend(ranks.to_le_bytes());
            let flags = state.number() as u8;
            bytes.extend(vec![flags; (ranks as usize).div_ceil(8).min(MAX_CONTROL_MSG_BYTES)]);
        }
        _ => {}
    }
    bytes
}

const WAITING: u8 = 1;
const FAILED: u8 = 3;
const MEMBERSHIP: u8 = 4;
const WAITING_ELSEWHERE: u8 = 5;
/// The code of an error that means a bug in the library.
const BUG: u8 = 14;
