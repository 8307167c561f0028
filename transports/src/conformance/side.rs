//! One rank of a case: its mesh, and waiting with an end.

use super::{Maker, PATIENCE};
use crate::{Event, Geometry, Link, Mesh, Result, Tag};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;
use unisono_cuda::{Source, Target, copy};

/// One rank, on its thread.
pub(super) struct Side {
    pub(super) mesh: Mesh,
}

/// Runs `body` as every rank; results by rank. A mesh lives until all ranks are through, unless its
/// rank drops it.
pub(super) fn run<R: Send>(
    make: Maker<'_>,
    ranks: usize,
    geometry: Geometry,
    body: impl Fn(Side) -> (R, Option<Side>) + Sync,
) -> Vec<R> {
    let meshes = make(ranks, geometry);
    assert_eq!(meshes.len(), ranks);
    let through = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        let (body, through) = (&body, &through);
        let rank = |mesh| {
            scope.spawn(move || {
                let ended = {
                    let _counted = Counted(through);
                    body(Side { mesh })
                };
                if let Some(mut side) = ended.1 {
                    side.until("all ranks to be through", |_| {
                        Ok((through.load(Ordering::Acquire) == ranks).then_some(()))
                    });
                }
                ended.0
            })
        };
        let threads: Vec<_> = meshes.into_iter().map(rank).collect();
        threads.into_iter().map(|thread| thread.join().expect("a rank failed")).collect()
    })
}

/// Counts a rank as through, also when it fails: the others must not wait for it.
struct Counted<'c>(&'c AtomicUsize);

impl Drop for Counted<'_> {
    fn drop(&mut self) {
        self.0.fetch_add(1, Ordering::Release);
    }
}

impl Side {
    /// Tries until there is a result, giving time away in between.
    pub(super) fn until<T>(
        &mut self,
        what: &str,
        mut attempt: impl FnMut(&mut Mesh) -> Result<Option<T>>,
    ) -> T {
        let begun = Instant::now();
        let mut rounds = 0u32;
        loop {
            match attempt(&mut self.mesh) {
                Ok(Some(result)) => return result,
                Ok(None) => {}
                Err(error) => panic!("rank {} waits for {what}: {error}", self.mesh.rank),
            }
            assert!(begun.elapsed() < PATIENCE, "rank {} waited in vain for {what}", self.mesh.rank);
            rounds = rounds.saturating_add(1);
            self.idle(rounds);
        }
    }

    /// What an engine does when nothing moves.
    pub(super) fn idle(&mut self, rounds: u32) {
        for link in self.mesh.links.iter_mut().flatten() {
            // A peer that is gone is the business of the call that needs it.
            let _ = link.progress();
        }
        self.mesh.pace.pause(rounds);
    }

    pub(super) fn link(&mut self, peer: usize) -> &mut dyn Link {
        link(&mut self.mesh, peer)
    }

    pub(super) fn try_send(&mut self, peer: usize, lane: usize, tag: Tag, parts: &[&[u8]]) -> Result<bool> {
        let bytes = parts.iter().map(|part| part.len()).sum();
        let mut sources = parts.iter().map(|part| Source::from(*part));
        self.link(peer).try_send(lane, &tag, bytes, &mut sources)
    }

    pub(super) fn send(&mut self, peer: usize, lane: usize, tag: Tag, parts: &[&[u8]]) {
        let bytes = parts.iter().map(|part| part.len()).sum();
        self.until("room", |mesh| {
            let mut sources = parts.iter().map(|part| Source::from(*part));
            Ok(link(mesh, peer).try_send(lane, &tag, bytes, &mut sources)?.then_some(()))
        });
    }

    /// The next message, if all of it is here.
    pub(super) fn try_receive(link: &mut dyn Link, lane: usize) -> Result<Option<(Tag, Vec<u8>)>> {
        let Some(head) = link.head(lane)? else { return Ok(None) };
        let Some(body) = link.body(lane)? else { return Ok(None) };
        assert_eq!(body.len(), head.bytes, "a body as long as its head says");
        let mut bytes = vec![0xee; head.bytes];
        copy(Target::from(&mut bytes[..]), body);
        link.release(lane);
        Ok(Some((head.tag, bytes)))
    }

    /// The next message, by [`Link::take`] or by [`Link::body`].
    pub(super) fn receive(&mut self, peer: usize, lane: usize, by_take: bool) -> (Tag, Vec<u8>) {
        if !by_take {
            return self.until("a message", |mesh| Self::try_receive(link(mesh, peer), lane));
        }
        let head = self.until("a message", |mesh| link(mesh, peer).head(lane));
        let mut bytes = vec![0xee; head.bytes];
        self.until("the rest of a message", |mesh| {
            Ok(link(mesh, peer).take(lane, Target::from(&mut bytes[..]))?.then_some(()))
        });
        (head.tag, bytes)
    }

    pub(super) fn event(&mut self) -> Event {
        self.until("an event", |mesh| Ok(mesh.control.poll()))
    }
}

pub(super) fn link(mesh: &mut Mesh, peer: usize) -> &mut dyn Link {
    &mut **mesh.links[peer].as_mut().expect("a link to every other rank")
}
