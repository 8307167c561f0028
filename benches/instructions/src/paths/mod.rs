//! The hot paths, each driven by one thread.

mod links;
mod ranks;
mod reducers;
mod schedules;

use unisono::{bf16, schedule::Collective};

/// One iteration of a path.
pub(crate) type Iteration = Box<dyn FnMut()>;

/// A path and how it is made ready.
pub(crate) struct Path {
    pub(crate) name: &'static str,
    prepare: fn() -> Iteration,
}

const fn path(name: &'static str, prepare: fn() -> Iteration) -> Path {
    Path { name, prepare }
}

/// Every path that is guarded: a new one is a line here.
pub(crate) const ALL: &[Path] = &[
    path("copy/4KiB", || reducers::copy::<4096>()),
    path("reduce/f32_2x8B", || reducers::sum::<f32, 2, 2>()),
    path("reduce/f32_2x4KiB", || reducers::sum::<f32, 1024, 2>()),
    path("reduce/f32_8x4KiB", || reducers::sum::<f32, 1024, 8>()),
    path("reduce/bf16_2x4KiB", || reducers::sum::<bf16, 2048, 2>()),
    path("schedule/all_reduce_ring_64", || schedules::program(Collective::AllReduce, "ring")),
    path("schedule/all_reduce_pat_64", || schedules::program(Collective::AllReduce, "pat")),
    path("schedule/all_reduce_tree_64", || schedules::program(Collective::AllReduce, "tree")),
    path("link/tag", links::tag),
    path("link/shm_8B", || links::send_recv::<8>(links::shared())),
    path("link/shm_32KiB", || links::send_recv::<{ 32 << 10 }>(links::shared())),
    path("link/socket_8B", || links::send_recv::<8>(links::sockets())),
    path("link/socket_32KiB", || links::send_recv::<{ 32 << 10 }>(links::sockets())),
    path("window/signal", links::signal),
    path("window/publish_8B", links::publish),
    path("all_reduce/1_rank_8B", || ranks::all_reduce::<2>(1, "oneshot")),
    path("all_reduce/1_rank_32KiB", || ranks::all_reduce::<8192>(1, "oneshot")),
    path("all_reduce/2_ranks_8B", || ranks::all_reduce::<2>(2, "oneshot")),
    path("all_reduce/4_ranks_8B", || ranks::all_reduce::<2>(4, "oneshot")),
    path("all_reduce/2_ranks_32KiB", || ranks::all_reduce::<8192>(2, "oneshot")),
    path("all_reduce/2_ranks_windows_256KiB", || ranks::all_reduce::<{ 64 << 10 }>(2, "oneshot")),
    path("all_reduce/2_ranks_links_8B", || ranks::all_reduce::<2>(2, "recursive_doubling")),
    path("all_reduce/2_ranks_links_32KiB", || ranks::all_reduce::<8192>(2, "recursive_doubling")),
    path("send_recv/8B", || ranks::send_recv::<2>()),
    path("send_recv/32KiB", || ranks::send_recv::<8192>()),
    path("message/8B", || ranks::message::<2>()),
    path("message/32KiB", || ranks::message::<8192>()),
];

/// Runs so many iterations of the path of this name.
pub(crate) fn run(name: &str, turns: &str) -> Result<(), String> {
    let path = ALL.iter().find(|path| path.name == name).ok_or_else(|| format!("no path `{name}`"))?;
    let turns: u64 = turns.parse().map_err(|_| format!("`{turns}` is no number of turns"))?;
    let mut turn = (path.prepare)();
    (0..turns).for_each(|_| turn());
    Ok(())
}

/// Memory that begins at a page: where the heap is must not matter.
#[repr(align(4096))]
struct PageAligned<T, const COUNT: usize>([T; COUNT]);

impl<T: Copy, const COUNT: usize> PageAligned<T, COUNT> {
    fn of(value: T) -> Box<Self> {
        Box::new(Self([value; COUNT]))
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn paths_can_be_repeated() {
        super::ALL.iter().for_each(|path| super::run(path.name, "20").unwrap());
    }
}
