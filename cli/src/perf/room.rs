//! The memory of a host, compared with what the ranks on it will allocate.

use crate::bind::host_hasher;
use crate::perf::op_case::OpCase;
use std::hash::Hasher;
use unisono::Communicator;

/// Refuses a size whose buffers do not fit into the memory of a host, on all ranks.
///
/// The call is collective. Without this check, the kernel could kill a rank during the measurement.
pub(super) fn require_room(
    comm: &Communicator,
    test: OpCase,
    element: usize,
    size: usize,
) -> Result<(), String> {
    let ranks = comm.size();
    let (input, output) = test.shares(ranks, comm.rank());
    let count = test.kind.count(size, element, ranks);
    // As a measurement allocates them: the output also serves operations in place.
    let shares = input + input.max(output);
    // The user may name any size, and a product that wrapped around would look small.
    let needed = [shares, count, element]
        .into_iter()
        .fold(1u64, |product, factor| product.saturating_mul(factor as u64));
    let own_row = [host_hasher().finish(), needed, available_bytes()];
    let mut words = vec![0; own_row.len() * ranks];
    comm.all_gather(&own_row, &mut words).map_err(|error| error.to_string())?;
    let rows: Vec<&[u64]> = words.chunks(own_row.len()).collect();
    shortage(&rows).map_or(Ok(()), |(needed, available)| {
        Err(format!(
            "the buffers of all ranks of a host need {needed} bytes for a size of {size}, and {available} bytes of memory \
             are available there; give smaller sizes (-e, --sizes) or fewer ranks"
        ))
    })
}

/// Returns `count` elements of `value` for a rank.
///
/// # Errors
/// If the system gives this process no memory for them, because of a limit that
/// [`require_room`] does not know.
pub(super) fn filled<T: Clone>(comm: &Communicator, value: T, count: usize) -> Result<Vec<T>, String> {
    let mut elements = Vec::new();
    elements.try_reserve_exact(count).map_err(|error| {
        format!(
            "rank {}: no memory for a buffer of {count} elements of {} bytes: {error}; give smaller sizes (-e, --sizes), \
             or raise `ulimit -v`",
            comm.rank(),
            size_of::<T>()
        )
    })?;
    elements.resize(count, value);
    Ok(elements)
}

/// Returns the bytes that are needed and available on the first host with too few, of rows of host,
/// bytes needed and bytes available.
fn shortage(rows: &[&[u64]]) -> Option<(u64, u64)> {
    rows.iter().find_map(|first| {
        let on_host = || rows.iter().filter(|row| row[0] == first[0]);
        let needed = on_host().fold(0u64, |sum, row| sum.saturating_add(row[1]));
        // Ranks read this number at different moments, so the least counts.
        let available = on_host().map(|row| row[2]).min()?;
        (needed > available).then_some((needed, available))
    })
}

/// Returns the memory that new allocations can get without swapping, or no limit if the kernel does
/// not say.
fn available_bytes() -> u64 {
    available_in(&std::fs::read_to_string("/proc/meminfo").unwrap_or_default())
}

/// Returns the available memory in the text of `/proc/meminfo`.
pub(super) fn available_in(text: &str) -> u64 {
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"));
    let kilobytes = line.and_then(|line| line.split_whitespace().next()?.parse::<u64>().ok());
    kilobytes.map_or(u64::MAX, |kilobytes| kilobytes.saturating_mul(1024))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shortage_adds_the_ranks_of_each_host() {
        assert_eq!(shortage(&[&[1, 40, 100], &[2, 90, 100], &[1, 60, 120]]), None);
        assert_eq!(shortage(&[&[1, 40, 100], &[2, 90, 100], &[1, 61, 120]]), Some((101, 100)));
        assert_eq!(shortage(&[&[1, u64::MAX, 100], &[1, 1, 100]]), Some((u64::MAX, 100)));
    }
}
