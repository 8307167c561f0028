//! A program on the GPU: lowered, checked and uploaded once, kept for every later call.

use super::lowering::lower;
use crate::call::Digest;
use crate::engine::Bounds as Widest;
use crate::error::{Error, ErrorKind, Result};
use crate::schedule::{Algorithm, Reach, Spec};
use std::collections::HashMap;
use std::sync::Arc;
use unisono_transports::p2p::{Bounds, Endpoint, Program, Uploaded};

/// One rank's program, with what all ranks must agree on to run it.
pub(super) struct Plan {
    /// None if this rank has nothing to do.
    pub(super) uploaded: Option<Uploaded>,
    pub(super) parts: usize,
    pub(super) digest: Digest,
    /// Longest slice of a block that fits every slot and every window, in bytes.
    pub(super) slice_bytes_max: usize,
    /// The same where messages go in lines; zero where there are windows.
    pub(super) line_bytes_max: usize,
}

/// The plans made so far.
#[derive(Default)]
pub(super) struct Plans(HashMap<(usize, Spec), Arc<Plan>>);

impl Plans {
    /// The plan of `algorithm` for `spec`, made at the first call.
    pub(super) fn get(
        &mut self,
        algorithm: &'static Algorithm,
        spec: Spec,
        endpoint: &Endpoint,
    ) -> Result<Arc<Plan>> {
        let key = (std::ptr::from_ref(algorithm) as usize, spec);
        if let Some(plan) = self.0.get(&key) {
            return Ok(Arc::clone(plan));
        }
        let plan = Arc::new(make(algorithm, &spec, endpoint)?);
        self.0.insert(key, Arc::clone(&plan));
        Ok(plan)
    }
}

fn make(algorithm: &Algorithm, spec: &Spec, endpoint: &Endpoint) -> Result<Plan> {
    let (rank, sizes) = (endpoint.arena().rank(), endpoint.arena().layout().sizes());
    let (widest, uses_window) = (Widest::of(algorithm, spec), algorithm.reach == Reach::Windows);
    let slice = match uses_window {
        true => endpoint.bank_bytes() / widest.window_blocks.max(1),
        false => sizes.slot_bytes / widest.blocks_per_message,
    };
    let line = if uses_window { 0 } else { sizes.low_bytes / widest.blocks_per_message };
    let slice_bytes_max = slice / SLICE_UNIT_BYTES * SLICE_UNIT_BYTES;
    if slice_bytes_max == 0 {
        let text = format!("{algorithm:?} has no room on a GPU with {} ranks: {sizes:?}", spec.ranks);
        return Err(Error::new(ErrorKind::Unavailable(text)));
    }
    let program = (algorithm.build)(spec, rank);
    let parts = (algorithm.parts)(spec);
    let (inputs, outputs) = algorithm.collective.shares(spec.ranks, spec.root, rank);
    let bounds = Bounds {
        rank,
        ranks: spec.ranks,
        input: inputs * parts,
        output: outputs * parts,
        scratch: program.scratch,
        window: widest.window_blocks,
        uses_window,
    };
    let tables = lower(&program, rank)?;
    let uploaded = match tables.strands.is_empty() {
        true => None,
        false => Some(endpoint.upload(Program::new(tables, bounds)?, slice_bytes_max)?),
    };
    let line_bytes_max = line / SLICE_UNIT_BYTES * SLICE_UNIT_BYTES;
    Ok(Plan { parts, digest: Digest::of(algorithm), slice_bytes_max, line_bytes_max, uploaded })
}

/// Slices are whole numbers of this.
pub(super) const SLICE_UNIT_BYTES: usize = 64;
