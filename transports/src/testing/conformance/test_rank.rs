//! One rank of a case: its fabric, and waits with a deadline.

use crate::testing::conformance::{FabricFactory, TIMEOUT};
use crate::{Fabric, Geometry, Link, PeerEvent, Result, Tag};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;
use unisono_reducers::{Source, Target, copy};

/// One rank, on its thread.
pub(crate) struct TestRank {
    pub(crate) fabric: Fabric,
}

/// Runs `body` as every rank, and returns the results by rank. A fabric lives until all ranks are
/// done, unless its rank drops it.
pub(crate) fn run<R: Send>(
    make: FabricFactory<'_>,
    ranks: usize,
    geometry: Geometry,
    body: impl Fn(TestRank) -> (R, Option<TestRank>) + Sync,
) -> Vec<R> {
    let fabrics = make(ranks, geometry);
    assert_eq!(fabrics.len(), ranks);
    let through = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        let (body, through) = (&body, &through);
        let rank = |fabric| {
            scope.spawn(move || {
                let ended = {
                    let _counted = DoneGuard(through);
                    body(TestRank { fabric })
                };
                if let Some(mut side) = ended.1 {
                    side.wait_until("all ranks to be through", |_| {
                        Ok((through.load(Ordering::Acquire) == ranks).then_some(()))
                    });
                }
                ended.0
            })
        };
        let threads: Vec<_> = fabrics.into_iter().map(rank).collect();
        threads.into_iter().map(|thread| thread.join().expect("a rank failed")).collect()
    })
}

/// Counts a rank as done, also when it fails, so that the others do not wait for it.
struct DoneGuard<'c>(&'c AtomicUsize);

impl Drop for DoneGuard<'_> {
    fn drop(&mut self) {
        self.0.fetch_add(1, Ordering::Release);
    }
}

impl TestRank {
    /// Tries until there is a result, and yields time in between.
    pub(crate) fn wait_until<T>(
        &mut self,
        what: &str,
        mut attempt: impl FnMut(&mut Fabric) -> Result<Option<T>>,
    ) -> T {
        let begun = Instant::now();
        let mut rounds = 0u32;
        loop {
            match attempt(&mut self.fabric) {
                Ok(Some(result)) => return result,
                Ok(None) => {}
                Err(error) => panic!("rank {} waits for {what}: {error}", self.fabric.rank),
            }
            assert!(begun.elapsed() < TIMEOUT, "rank {} waited in vain for {what}", self.fabric.rank);
            rounds = rounds.saturating_add(1);
            self.idle(rounds);
        }
    }

    /// Does what an engine does when nothing moves.
    pub(crate) fn idle(&mut self, rounds: u32) {
        for link in self.fabric.links.iter_mut().flatten() {
            // A lost peer is reported by the call that needs it.
            let _ = link.progress();
        }
        self.fabric.wait.pause(rounds);
    }

    pub(crate) fn link(&mut self, peer: usize) -> &mut dyn Link {
        link(&mut self.fabric, peer)
    }

    pub(crate) fn try_send(&mut self, peer: usize, lane: usize, tag: Tag, parts: &[&[u8]]) -> Result<bool> {
        let bytes = parts.iter().map(|part| part.len()).sum();
        let mut sources = parts.iter().map(|part| Source::from(*part));
        self.link(peer).try_send(lane, &tag, bytes, &mut sources)
    }

    pub(crate) fn send(&mut self, peer: usize, lane: usize, tag: Tag, parts: &[&[u8]]) {
        let bytes = parts.iter().map(|part| part.len()).sum();
        self.wait_until("room", |fabric| {
            let mut sources = parts.iter().map(|part| Source::from(*part));
            Ok(link(fabric, peer).try_send(lane, &tag, bytes, &mut sources)?.then_some(()))
        });
    }

    /// Returns the next message, if all of it has arrived.
    pub(crate) fn try_receive(link: &mut dyn Link, lane: usize) -> Result<Option<(Tag, Vec<u8>)>> {
        let Some(head) = link.header(lane)? else { return Ok(None) };
        let Some(body) = link.body(lane)? else { return Ok(None) };
        assert_eq!(body.len(), head.bytes, "a body as long as its head says");
        let mut bytes = vec![0xee; head.bytes];
        copy(Target::from(&mut bytes[..]), body);
        link.release(lane);
        Ok(Some((head.tag, bytes)))
    }

    /// Receives the next message, by [`Link::recv_into`] or by [`Link::body`].
    pub(crate) fn receive(&mut self, peer: usize, lane: usize, by_take: bool) -> (Tag, Vec<u8>) {
        if !by_take {
            return self.wait_until("a message", |fabric| Self::try_receive(link(fabric, peer), lane));
        }
        let head = self.wait_until("a message", |fabric| link(fabric, peer).header(lane));
        let mut bytes = vec![0xee; head.bytes];
        self.wait_until("the rest of a message", |fabric| {
            Ok(link(fabric, peer).recv_into(lane, Target::from(&mut bytes[..]))?.then_some(()))
        });
        (head.tag, bytes)
    }

    pub(crate) fn next_event(&mut self) -> PeerEvent {
        self.wait_until("an event", |fabric| Ok(fabric.control.poll()))
    }
}

pub(crate) fn link(fabric: &mut Fabric, peer: usize) -> &mut dyn Link {
    &mut **fabric.links[peer].as_mut().expect("a link to every other rank")
}
