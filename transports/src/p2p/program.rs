//! Programs for the kernels that carry out schedules, checked before any kernel sees them.
//!
//! A kernel believes its tables: an index outside of them is memory outside of everything. So only
//! what was checked here is ever uploaded.

use crate::{Error, Result};
use unisono_cuda::device::{Act, Interpret, Place, Space, Strand, Verb};

/// One rank's part in a schedule.
#[derive(Clone, Debug, Default)]
pub struct Tables {
    /// What is done, strand after strand.
    pub acts: Vec<Act>,
    /// The operands of all acts.
    pub places: Vec<Place>,
    /// Acts that are done in order; strands go on side by side.
    pub strands: Vec<Strand>,
}

/// What the places of a program may name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bounds {
    /// Whose program it is.
    pub rank: usize,
    /// Number of ranks.
    pub ranks: usize,
    /// Blocks of the send buffer.
    pub input: usize,
    /// Blocks of the receive buffer.
    pub output: usize,
    /// Blocks of scratch.
    pub scratch: usize,
    /// Blocks of each rank's window.
    pub window: usize,
    /// Blocks of each peer's send buffer and receive buffer that are reached where they are; 0: none is.
    pub lent: [usize; 2],
    /// Whether ranks meet in windows, all of them.
    pub uses_window: bool,
}

/// Tables that name nothing outside of their bounds.
#[derive(Clone, Debug)]
pub struct Program {
    tables: Tables,
    bounds: Bounds,
    blocks_per_message: usize,
}

impl Program {
    /// Checks every index in `tables`, and finds acts that can be done together.
    ///
    /// # Errors
    /// Says what is outside of its bounds.
    pub fn new(mut tables: Tables, bounds: Bounds) -> Result<Self> {
        let outside = |what: String| Error::Misuse(format!("a program for rank {}: {what}", bounds.rank));
        let strands = tables.strands.len();
        if strands == 0 || bounds.uses_window && strands > 1 || bounds.window > 0 && !bounds.uses_window {
            return Err(outside(format!("{strands} strands within {bounds:?}")));
        }
        for strand in &tables.strands {
            let acts = slice(&tables.acts, strand.first_act, strand.acts as usize);
            let acts = acts.ok_or_else(|| outside(format!("{strand:?} without acts")))?;
            for act in acts {
                check_act(act, &tables.places, &bounds).ok_or_else(|| outside(format!("{act:?}")))?;
            }
            let acts = strand.first_act as usize..strand.first_act as usize + strand.acts as usize;
            Act::group(&mut tables.acts[acts], &tables.places);
        }
        let messages = tables.acts.iter().filter(|act| is_message(act.verb)).map(|act| act.operands);
        let blocks_per_message = messages.max().unwrap_or(0).into();
        Ok(Self { tables, bounds, blocks_per_message })
    }

    /// What was checked.
    pub fn tables(&self) -> &Tables {
        &self.tables
    }

    /// What it names at most.
    pub fn bounds(&self) -> &Bounds {
        &self.bounds
    }

    /// Blocks of its longest message, sent or received.
    pub fn blocks_per_message(&self) -> usize {
        self.blocks_per_message
    }

    /// The largest lane of its strands.
    pub fn lane_max(&self) -> usize {
        self.tables.strands.iter().map(|strand| strand.lane as usize).max().unwrap_or(0)
    }

    /// Blocks of threads of a launch on this many channels.
    pub fn blocks(&self, channels: usize) -> usize {
        self.tables.strands.len() * channels
    }
}

/// Lanes of the schedules; beyond them is the one for sends and receives.
pub(super) const LANES: usize = Interpret::LANES;

const fn is_message(verb: u8) -> bool {
    verb == Verb::Send as u8 || verb == Verb::Recv as u8 || verb == Verb::RecvReduce as u8
}

fn slice<T>(table: &[T], first: u32, count: usize) -> Option<&[T]> {
    table.get(first as usize..(first as usize).checked_add(count)?)
}

/// None if the kernel could not carry it out.
fn check_act(act: &Act, places: &[Place], bounds: &Bounds) -> Option<()> {
    let (operands, targets) = (usize::from(act.operands), usize::from(act.targets));
    let other = |rank: u32| (rank as usize) < bounds.ranks && rank as usize != bounds.rank;
    let (reads, writes, sound) = match act.verb {
        verb if verb == Verb::Send as u8 => (operands, 0, other(act.peer)),
        verb if verb == Verb::Recv as u8 => (0, operands, other(act.peer)),
        verb if verb == Verb::RecvReduce as u8 => (operands, operands, other(act.peer)),
        verb if verb == Verb::Copy as u8 => (1, targets, operands == 1 && targets >= 1),
        verb if verb == Verb::Reduce as u8 => (operands, targets, operands >= 1 && targets >= 1),
        verb if verb == Verb::Signal as u8 => (0, 0, bounds.uses_window),
        verb if verb == Verb::Wait as u8 => (0, 0, bounds.uses_window && other(act.peer)),
        _ => return None,
    };
    let forwards = act.forward == Act::NOBODY || is_message(act.verb) && other(act.forward);
    let places = slice(places, act.first_place, reads + writes)?;
    let fits = is_message(act.verb) || operands.max(targets) <= Act::OPERANDS_MAX;
    let (read, written) = places.split_at(reads);
    let at_home = !is_message(act.verb)
        || places
            .iter()
            .all(|place| place.rank as usize == bounds.rank && place.space != Space::Window as u32);
    let inside = read.iter().all(|place| is_inside(place, bounds))
        && written.iter().all(|place| place.space != Space::Input as u32 && is_inside(place, bounds));
    (sound && forwards && fits && at_home && inside).then_some(())
}

/// Whether there is such a block, and this rank reaches it.
fn is_inside(place: &Place, bounds: &Bounds) -> bool {
    let own = place.rank as usize == bounds.rank;
    let blocks = match place.space {
        space if space == Space::Input as u32 => {
            if own {
                bounds.input
            } else {
                bounds.lent[0]
            }
        }
        space if space == Space::Output as u32 => {
            if own {
                bounds.output
            } else {
                bounds.lent[1]
            }
        }
        space if space == Space::Scratch as u32 && own => bounds.scratch,
        space if space == Space::Window as u32 => bounds.window,
        _ => return false,
    };
    (place.rank as usize) < bounds.ranks && (place.index as usize) < blocks
}

#[cfg(test)]
mod tests {
    use super::*;

    const BOUNDS: Bounds = Bounds {
        rank: 1,
        ranks: 3,
        input: 2,
        output: 4,
        scratch: 1,
        window: 2,
        lent: [0, 1],
        uses_window: true,
    };

    fn act(verb: Verb, operands: u16, targets: u16) -> Act {
        let (finish, together, peer, forward, signals, first_place) = (0, 0, 2, Act::NOBODY, 0, 0);
        Act { verb: verb as u8, finish, operands, targets, together, peer, forward, signals, first_place }
    }

    fn place(rank: u32, space: Space, index: u32) -> Place {
        Place { rank, space: space as u32, index }
    }

    fn accepts(act: Act, places: &[Place]) -> bool {
        let strands = vec![Strand { lane: 0, first_act: 0, acts: 1 }];
        Program::new(Tables { acts: vec![act], places: places.to_vec(), strands }, BOUNDS).is_ok()
    }

    #[test]
    fn what_is_inside_is_accepted() {
        let input = place(1, Space::Input, 1);
        assert!(accepts(act(Verb::Send, 1, 0), std::slice::from_ref(&input)));
        assert!(accepts(act(Verb::RecvReduce, 1, 0), &[input.clone(), place(1, Space::Output, 3)]));
        assert!(accepts(act(Verb::Copy, 1, 1), &[place(2, Space::Window, 1), place(1, Space::Scratch, 0)]));
        assert!(accepts(act(Verb::Wait, 0, 0), &[]));
        assert!(
            accepts(act(Verb::Copy, 1, 1), &[place(1, Space::Input, 1), place(2, Space::Output, 0)]),
            "it is lent"
        );
    }

    #[test]
    fn what_is_outside_is_refused() {
        let output = place(1, Space::Output, 0);
        let into = |from: Place| accepts(act(Verb::Copy, 1, 1), &[from, output.clone()]);
        assert!(!into(place(1, Space::Input, 2)), "no such block");
        assert!(!into(place(2, Space::Input, 0)), "another rank's buffer");
        assert!(!into(place(2, Space::Output, 1)), "beyond what is lent");
        assert!(!into(place(3, Space::Window, 0)), "no such rank");
        assert!(!into(Place { rank: 1, space: 4, index: 0 }), "no such memory");
        assert!(!accepts(act(Verb::Recv, 1, 0), &[place(1, Space::Input, 0)]), "the input is never written");
        assert!(!accepts(act(Verb::Recv, 1, 0), &[place(1, Space::Window, 0)]), "messages go to no window");
        assert!(!accepts(act(Verb::Send, 2, 0), std::slice::from_ref(&output)), "too few places");
        assert!(!accepts(Act { peer: 1, ..act(Verb::Send, 0, 0) }, &[]), "to itself");
        assert!(!accepts(Act { forward: 3, ..act(Verb::Recv, 0, 0) }, &[]), "to nobody");
        assert!(!accepts(Act { verb: 7, ..act(Verb::Send, 0, 0) }, &[]), "no such verb");
        assert!(!accepts(Act { first_place: u32::MAX, ..act(Verb::Send, 1, 0) }, &[output]), "far outside");
    }

    #[test]
    fn strands_have_acts() {
        let of = |strands: Vec<Strand>| {
            Program::new(Tables { acts: vec![act(Verb::Wait, 0, 0)], places: Vec::new(), strands }, BOUNDS)
        };
        assert!(of(vec![]).is_err());
        assert!(of(vec![Strand { lane: 0, first_act: 1, acts: 1 }]).is_err());
        assert!(of(vec![Strand { lane: 0, first_act: u32::MAX, acts: u32::MAX }]).is_err());
    }
}
