//! Memory of GPUs that ranks lend each other: collectives that all ranks call with it read and write it where it is.

use super::DeviceCommunicator;
use super::enqueue::State;
use super::job::{Job, Side};
use super::join::agree;
use super::plan::Plan;
use crate::Config;
use crate::communicator::digest;
use crate::error::{Error, Result};
use crate::reduction::Reduction;
use crate::schedule::algorithms::zero_copy;
use crate::schedule::{Algorithm, Collective, Reach, Spec, find};
use std::collections::VecDeque;
use std::sync::Arc;
use unisono_cuda::device::{Buffer, Imported, IpcHandle};
use unisono_cuda::{Element, Op};
use unisono_transports::p2p::{Endpoint, Grasp, Lending, Operand, Uploaded};

/// What of an operation lies in lent memory, and the algorithm that reaches it there.
pub(super) struct Loan {
    pub(super) row: &'static Algorithm,
    /// Of the input and of the output, where peers' are named.
    lendings: [Option<Arc<Lending>>; 2],
    /// A digest of where in the lent memory: it must be the same on all ranks.
    pub(super) place: u64,
}

/// Tables of peers' buffers that were last used, to be used again.
#[derive(Default)]
pub(super) struct Grasps(VecDeque<(Key, Arc<Grasp>)>);

/// The plan, and address and bytes of a share of the two buffers.
type Key = (usize, [(u64, usize); 2]);

impl DeviceCommunicator {
    /// `count` zeros in memory of this rank's GPU that the other ranks reach: a buffer like any other. All ranks call it at the same time,
    /// with the same count. What all of them have dropped by then, and no work or graph uses any more, they close, so that it can be used again.
    ///
    /// Large collectives read and write such buffers where they are: nothing is staged. Then *every* rank must call
    /// them with a buffer of the same call of `alloc`, as far from its beginning; else they are a mismatch. Where GPUs do
    /// not reach each other it is ordinary memory, so that programs run anywhere.
    ///
    /// # Errors
    /// On every rank, if one of them has not that much memory, or the counts differ. The communicator is unharmed.
    pub fn alloc<T: Element>(&self, count: usize) -> Result<Buffer<T>> {
        let (base, lends) = (&self.shared.base, self.shared.endpoint.reaches_all());
        self.withdraw_unused()?;
        let bytes = count.saturating_mul(size_of::<T>());
        let buffer = agree(base, self.gpu().alloc::<T>(count).map_err(Error::from))?;
        let handle = lends.then(|| buffer.export()).transpose().map_err(Error::from);
        let handle = agree(base, handle)?.map_or([0; IpcHandle::BYTES], |handle| handle.to_bytes());
        let mut cards = vec![0u8; CARD_BYTES * self.ranks()];
        base.all_gather(&[&handle[..], &(bytes as u64).to_le_bytes()[..]].concat(), &mut cards)?;
        let handles = handles(&cards, bytes).map_err(|error| {
            // No rank opens any.
            buffer.withdraw();
            base.place(error)
        })?;
        if lends {
            let opened = Lending::open(self.gpu(), self.rank(), &handles, bytes);
            let lending = agree(base, opened.map_err(Error::from))?;
            self.shared.lock().lendings.push(Arc::new(lending));
        }
        Ok(buffer)
    }

    /// Closes what no rank uses any more of what they have lent, and takes back what this rank has: all ranks do it at the same time.
    fn withdraw_unused(&self) -> Result<()> {
        let base = &self.shared.base;
        let mut unused = self.shared.lock().unused();
        if unused.is_empty() {
            return Ok(());
        }
        base.all_reduce(&mut unused, Reduction::Min)?;
        let closed = self.shared.lock().close(&unused);
        if closed.is_empty() {
            return Ok(());
        }
        // Nobody has it open any more when all are here.
        base.barrier()?;
        closed.iter().for_each(Imported::withdraw);
        Ok(())
    }
}

/// The handles of all ranks' buffers, if all have as many bytes: each rank finds the same.
fn handles(cards: &[u8], bytes: usize) -> Result<Vec<IpcHandle>> {
    let mut handles = Vec::new();
    for (rank, card) in cards.chunks(CARD_BYTES).enumerate() {
        let (handle, theirs) = card.split_at(IpcHandle::BYTES);
        let theirs = u64::from_le_bytes(theirs.try_into().unwrap_or_default());
        if theirs != bytes as u64 {
            let text = format!("rank {rank} asks for {theirs} bytes of lent memory, this rank for {bytes}");
            return Err(Error::misuse(text));
        }
        handles.extend(handle.first_chunk().map(IpcHandle::from_bytes));
    }
    Ok(handles)
}

/// Whether programs that reach lent buffers name the inputs of peers, and their outputs.
pub(super) fn named(algorithm: &Algorithm) -> (bool, bool) {
    match algorithm.collective {
        _ if algorithm.name != zero_copy::NAME => (false, true),
        Collective::AllReduce => (true, true),
        Collective::AllGather => (false, true),
        _ => (true, false),
    }
}

impl State {
    /// Of what ranks have lent each other, 1 where this rank is through with it.
    fn unused(&mut self) -> Vec<u8> {
        self.grasps.0.retain(|(_, grasp)| !grasp.is_abandoned());
        let unused = |lending: &Arc<Lending>| Arc::strong_count(lending) == 1 && lending.is_unused();
        self.lendings.iter().map(|lending| unused(lending).into()).collect()
    }

    /// Closes what all ranks are through with; what is left is this rank's.
    fn close(&mut self, unused: &[u8]) -> Vec<Imported> {
        let lent = std::mem::take(&mut self.lendings).into_iter().zip(unused);
        let (closed, kept): (Vec<_>, Vec<_>) = lent.partition(|(_, unused)| **unused == 1);
        self.lendings = kept.into_iter().map(|(lending, _)| lending).collect();
        closed.into_iter().filter_map(|(lending, _)| Arc::into_inner(lending)).map(Lending::close).collect()
    }

    /// What of an operation is lent, if all that its algorithm names of peers is.
    pub(super) fn loan(&self, job: &Job<'_>, spec: &Spec, bytes: usize, config: &Config) -> Option<Loan> {
        let large = bytes >= LENT_FROM_BYTES && config.algorithm(job.collective).is_none();
        let row = match self.chosen[job.collective as usize] {
            Some(chosen) => chosen,
            None if large => usual(job)?,
            None => return None,
        };
        if row.reach != Reach::Buffers || !(row.fits)(spec) || !is_known_to_all(row, job) {
            return None;
        }
        let (reads, writes) = named(row);
        let sides = [(reads, &job.input), (writes, &job.output)];
        let mut places = Vec::new();
        let mut lendings = [None, None];
        for ((is_named, side), lending) in sides.into_iter().zip(&mut lendings) {
            if is_named {
                let (index, found, offset) = self.lending_of(side)?;
                places.extend([index, offset]);
                *lending = Some(found);
            }
        }
        Some(Loan { row, lendings, place: digest(&places) })
    }

    /// The lent memory that a buffer is a part of: its number, itself, and where in it the buffer begins.
    fn lending_of(&self, side: &Side<'_>) -> Option<(usize, Arc<Lending>, usize)> {
        let region = side.region?;
        let of = |(index, lending): (usize, &Arc<Lending>)| {
            Some((index, Arc::clone(lending), lending.offset_of(region)? + side.offset))
        };
        self.lendings.iter().enumerate().find_map(of)
    }
}

/// The algorithm for lent buffers, where nobody insists on one.
fn usual(job: &Job<'_>) -> Option<&'static Algorithm> {
    let name = match job.collective {
        Collective::Broadcast => zero_copy::BROADCAST_PUSHED.name,
        Collective::AllReduce if is_premultiplied(job) => zero_copy::ALL_REDUCE_SCALED.name,
        _ => zero_copy::NAME,
    };
    find(job.collective, name)
}

fn is_premultiplied(job: &Job<'_>) -> bool {
    job.reduction.is_some_and(|reduction| reduction.op() == Op::PreMulSum)
}

/// Whether every rank knows what it needs of its peers. By which factors they multiply, it must leave to them, which rounds small floats once more than
/// elsewhere; and a root's input is known where it is everybody's output.
fn is_known_to_all(row: &Algorithm, job: &Job<'_>) -> bool {
    let address = |side: &Side<'_>| side.region.map(|region| region.address());
    let rounds_again = job.dtype.is_float() && job.dtype.size() < size_of::<f32>();
    match job.collective {
        Collective::Broadcast if row.name == zero_copy::NAME => address(&job.input) == address(&job.output),
        _ if !is_premultiplied(job) => true,
        _ => row.name == zero_copy::ALL_REDUCE_SCALED.name && !rounds_again,
    }
}

impl Grasps {
    /// The table as it was made before, or made now.
    pub(super) fn get(
        &mut self,
        endpoint: &Endpoint,
        (plan, uploaded): (&Plan, &Uploaded),
        (job, loan): (&Job<'_>, &Loan),
        [input, output]: [&Operand<'_>; 2],
    ) -> Result<Arc<Grasp>> {
        let side = |side: &Side<'_>| {
            (side.region.map_or(0, |region| region.address()) + side.offset as u64, side.share_bytes)
        };
        let key = (std::ptr::from_ref(plan) as usize, [side(&job.input), side(&job.output)]);
        if let Some((_, grasp)) = self.0.iter().find(|(known, _)| *known == key) {
            return Ok(Arc::clone(grasp));
        }
        let grasp = Arc::new(endpoint.grasp(uploaded, loan.lendings.clone(), input, output)?);
        self.0.truncate(GRASPS_KEPT - 1);
        self.0.push_front((key, Arc::clone(&grasp)));
        Ok(grasp)
    }
}

/// A handle, and bytes.
const CARD_BYTES: usize = IpcHandle::BYTES + size_of::<u64>();
/// Tables that are ready to be used again.
const GRASPS_KEPT: usize = 64;
/// Smaller shares go in lines or by way of windows, which are one hand-over less.
const LENT_FROM_BYTES: usize = 64 << 10;
