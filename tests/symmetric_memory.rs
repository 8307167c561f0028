//! Memory from `Communicator::alloc_symmetric`: collectives give the same results with it, without
//! it, and mixed.

mod support;

use support::World;
use unisono::schedule::Collective;
use unisono::{Avg, Communicator, Config, ErrorKind, PreMulSum, Scalar, Sum, SymmetricBuffer};

/// Sizes for zero-copy: one that eager slots would hold and one that they do not, neither a
/// multiple of anything.
const COUNTS: [usize; 2] = [20_021, 50_021];

/// Ranks with (input, output) in symmetric memory.
type SymmetricRanks = fn(usize) -> (bool, bool);
const SYMMETRIC_CASES: [(&str, SymmetricRanks); 4] = [
    ("all", |_| (true, true)),
    ("nobody", |_| (false, false)),
    ("some ranks", |rank| (rank != 1, rank != 1)),
    ("inputs", |_| (true, false)),
];

enum Buffer {
    Symmetric(SymmetricBuffer<f32>),
    Own(Vec<f32>),
}

impl Buffer {
    /// Every rank allocates symmetric memory, because the allocation is collective.
    fn new(comm: &Communicator, count: usize, symmetric: bool, value: impl Fn(usize) -> f32) -> Self {
        let mut memory = comm.alloc_symmetric(count).expect("memory");
        memory.iter_mut().enumerate().for_each(|(index, element)| *element = value(index));
        if symmetric { Buffer::Symmetric(memory) } else { Buffer::Own(memory.to_vec()) }
    }

    fn get(&mut self) -> &mut [f32] {
        match self {
            Buffer::Symmetric(symmetric) => symmetric,
            Buffer::Own(own) => own,
        }
    }
}

fn value(rank: usize, index: usize) -> f32 {
    ((index * 7 + rank * 13) % 101) as f32
}

fn sum(ranks: usize, index: usize) -> f32 {
    (0..ranks).map(|rank| value(rank, index)).sum()
}

fn exercise(comm: &Communicator, count: usize, symmetric_ranks: SymmetricRanks) {
    let (rank, ranks) = (comm.rank(), comm.size());
    let (input_is_symmetric, output_is_symmetric) = symmetric_ranks(rank);
    let input = |length| Buffer::new(comm, length, input_is_symmetric, |index| value(rank, index));
    let output = |length| Buffer::new(comm, length, output_is_symmetric, |_| -1.0);

    let (mut source, mut target) = (input(count), output(count));
    comm.all_reduce_into(source.get(), target.get(), Sum).unwrap();
    assert!(target.get().iter().enumerate().all(|(index, &found)| found == sum(ranks, index)), "all_reduce");
    comm.all_reduce(source.get(), Avg).unwrap();
    let average = |index| sum(ranks, index) / ranks as f32;
    assert!(source.get().iter().enumerate().all(|(index, &found)| found == average(index)), "in place");
    comm.all_reduce(target.get(), PreMulSum(Scalar::Float(2.0))).unwrap();
    let doubled = |index| sum(ranks, index) * 2.0 * ranks as f32;
    assert!(target.get().iter().enumerate().all(|(index, &found)| found == doubled(index)), "pre-multiplied");

    let (mut source, mut target) = (input(count), output(count * ranks));
    comm.all_gather(source.get(), target.get()).unwrap();
    let gathered = |index: usize| value(index / count, index % count);
    assert!(target.get().iter().enumerate().all(|(index, &found)| found == gathered(index)), "all_gather");

    let (mut source, mut target) = (input(count * ranks), output(count));
    comm.reduce_scatter(source.get(), target.get(), Sum).unwrap();
    let reduced = |index| sum(ranks, rank * count + index);
    assert!(target.get().iter().enumerate().all(|(index, &found)| found == reduced(index)), "reduce_scatter");
    comm.reduce_scatter_in_place(source.get(), Sum).unwrap();
    let share = &source.get()[rank * count..][..count];
    assert!(
        share.iter().enumerate().all(|(index, &found)| found == reduced(index)),
        "reduce_scatter in place"
    );

    for root in 0..ranks {
        let (mut source, mut target) = (input(count), output(count));
        let given = (rank == root).then(|| &*source.get());
        comm.broadcast_into(given, target.get(), root).unwrap();
        let is_complete =
            |found: &[f32]| found.iter().enumerate().all(|(index, &found)| found == value(root, index));
        assert!(is_complete(target.get()), "broadcast");
        comm.broadcast(source.get(), root).unwrap();
        assert!(is_complete(source.get()), "broadcast in place");
    }
    let (mut source, mut target) = (input(count * ranks), output(count * ranks));
    comm.all_to_all(source.get(), target.get()).unwrap();
    let sent = |index: usize| value(index / count, rank * count + index % count);
    assert!(target.get().iter().enumerate().all(|(index, &found)| found == sent(index)), "all_to_all");
}

#[test]
fn results_do_not_depend_on_buffer_kind() {
    for world in World::ALL {
        for ranks in [1, 2, 3, 5] {
            for (name, symmetric_ranks) in SYMMETRIC_CASES {
                world.run(ranks, &Config::default(), |comm| {
                    COUNTS.into_iter().for_each(|count| exercise(&comm, count, symmetric_ranks));
                });
                eprintln!("{world:?}, {ranks} ranks, {name} symmetric: as expected");
            }
        }
    }
}

#[test]
fn alloc_failure_on_one_rank_fails_all_without_leak() {
    let config = Config::default().with_symmetric_heap_bytes(1 << 20);
    for world in [World::Threads, World::Shm] {
        world.run(3, &config, |comm| {
            for count in [2 << 20, usize::MAX] {
                let error =
                    comm.alloc_symmetric::<f64>(if comm.rank() == 1 { count } else { 8 }).unwrap_err();
                assert!(matches!(error.kind(), ErrorKind::InvalidUsage(_)), "{error}");
            }
            // All memory is free again, in every iteration.
            for turn in 0..20 {
                let mut memory = comm.alloc_symmetric::<u8>(1 << 20).unwrap();
                assert!(memory.iter().all(|&byte| byte == 0));
                memory.fill(turn);
                comm.all_reduce(&mut memory, Sum).unwrap();
                assert!(memory.iter().all(|&byte| byte == 3 * turn));
            }
        });
    }
}

#[test]
fn count_mismatch_in_symmetric_memory_is_named() {
    let count = COUNTS[1];
    let results = World::Shm.run(2, &Config::default(), |comm| {
        let mut memory = comm.alloc_symmetric::<f32>(count + comm.rank()).unwrap();
        comm.all_reduce(&mut memory, Sum)
    });
    for result in results {
        let text = result.unwrap_err().to_string();
        assert!(text.contains(&count.to_string()) && text.contains(&(count + 1).to_string()), "{text}");
    }
}

#[test]
fn refused_allocation_of_one_rank_leaves_all_usable() {
    for world in [World::Threads, World::Tcp] {
        world.run(2, &Config::default(), |comm| {
            let count = if comm.rank() == 0 { usize::MAX } else { 16 };
            let error = comm.alloc_symmetric::<f64>(count).unwrap_err();
            assert!(error.is_invalid_usage(), "{error}");
            let mut large = vec![1.0f64; 32 << 10];
            comm.all_reduce(&mut large, Sum).unwrap();
            assert!(large.iter().all(|&found| found == 2.0));
            let error = comm.set_algorithm(Collective::AllReduce, Some("zero_copy")).unwrap_err();
            assert!(error.to_string().contains("by themselves"), "{error}");
        });
    }
}
