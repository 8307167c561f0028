//! Steps of the optimiser with some elements of a parameter, wherever these lie.

use super::shares::{At, Stride, floats};
use crate::error::Result;
use crate::flat::{Dtype, Numbers};
use crate::memory::{Class, Memory};
use crate::optim::{Span, SpanOn};
use unisono_cuda::device::{View, ViewMut};

/// Takes the step: on the host, or by a launch in memory of a GPU.
pub(super) fn take(
    memory: &Memory,
    weights: At<&mut Numbers>,
    gradient: At<&Numbers>,
    moments: At<&mut [Numbers]>,
    decays: bool,
    stride: &Stride<'_>,
) -> Result<()> {
    let each = |numbers| At { numbers, range: moments.range.clone() };
    let moments = moments.numbers.iter_mut().map(each);
    let Some(lane) = memory.lane() else {
        let gradient = gradient.numbers.view(memory, gradient.range)?;
        let mut moments: Vec<_> = moments.map(At::floats).collect();
        let span = Span { weights: weights.floats(), gradient: &gradient, moments: &mut moments, decays };
        stride.optimiser.update(span, stride.step);
        return Ok(());
    };
    let mut moments: Vec<_> = moments.map(At::floats_on).collect();
    let span =
        SpanOn { weights: weights.floats_on(), gradient: gradient.read_on(), moments: &mut moments, decays };
    Ok(stride.optimiser.update_on(lane, span, stride.step)?)
}

/// A copy in 32 bits of what has 16 in memory of a GPU; the host widens what it needs when it needs it.
pub(super) fn wide(numbers: &Numbers, memory: &Memory) -> Result<Option<Numbers>> {
    let is_narrow = memory.lane().is_some() && numbers.dtype() == Dtype::Bf16;
    Ok(is_narrow.then(|| numbers.converted(memory, Class::Buffers, Dtype::F32)).transpose()?)
}

impl<'a> At<&'a Numbers> {
    /// 32-bit floats of a GPU.
    pub(super) fn read_on(self) -> View<'a, f32> {
        self.numbers.on_device().and_then(|there| there.view(self.range)).expect("of 32 bits on a GPU")
    }
}

impl<'a> At<&'a mut Numbers> {
    /// 32-bit floats of the host, to change.
    pub(super) fn floats(self) -> &'a mut [f32] {
        &mut floats(self.numbers)[self.range]
    }

    /// 32-bit floats of a GPU, to change.
    pub(super) fn floats_on(self) -> ViewMut<'a, f32> {
        let there = self.numbers.on_device_mut();
        there.and_then(|there| there.view_mut(self.range)).expect("of 32 bits on a GPU")
    }
}
