//! Collectives between lists of buffers give the results of those on one buffer.

mod support;

use support::World;
use unisono::schedule::Collective;
use unisono::{Communicator, Config, DType, ErrorKind, ListOperation};

/// Bytes of the share from one rank to another; some shares are empty, some take several slices.
fn length(sender: usize, receiver: usize) -> usize {
    [12, 0, 700_000, 4][(sender + 2 * receiver) % 4]
}

fn share(sender: usize, receiver: usize, bytes: usize) -> Vec<u8> {
    (0..bytes).map(|index| (index * 7 + sender * 31 + receiver * 5) as u8).collect()
}

/// Returns the shares that `rank` sends and those it must receive.
fn expected(collective: Collective, root: usize, rank: usize, ranks: usize) -> (Vec<Vec<u8>>, Vec<Vec<u8>>) {
    let part = |sender, receiver| share(sender, receiver, length(sender, receiver));
    let (sends, receives) = collective.shares(ranks, root, rank);
    match collective {
        Collective::Gather => {
            (vec![part(rank, root)], (0..receives).map(|sender| part(sender, root)).collect())
        }
        Collective::Scatter => {
            ((0..sends).map(|receiver| part(root, receiver)).collect(), vec![part(root, rank)])
        }
        Collective::AllGather => (vec![part(rank, 0)], (0..ranks).map(|sender| part(sender, 0)).collect()),
        _ => (
            (0..ranks).map(|receiver| part(rank, receiver)).collect(),
            (0..ranks).map(|sender| part(sender, rank)).collect(),
        ),
    }
}

fn run(
    comm: &Communicator,
    operation: &ListOperation,
    inputs: &[Vec<u8>],
    outputs: &mut [Vec<u8>],
) -> unisono::Result<()> {
    let inputs: Vec<_> = inputs.iter().map(|part| &part[..]).collect();
    let mut outputs: Vec<_> = outputs.iter_mut().map(|part| &mut part[..]).collect();
    comm.run_list_operation(operation, &inputs, &mut outputs)
}

#[test]
fn lists_arrive_over_every_transport() {
    for (world, ranks) in World::ALL.into_iter().flat_map(|world| (1..=4).map(move |ranks| (world, ranks))) {
        world.run(ranks, &Config::default(), |comm| {
            for collective in
                [Collective::Gather, Collective::Scatter, Collective::AllGather, Collective::AllToAll]
            {
                for root in if collective.has_root() { 0..ranks } else { 0..1 } {
                    let (inputs, shares) = expected(collective, root, comm.rank(), ranks);
                    let mut outputs: Vec<_> = shares.iter().map(|share| vec![0xee; share.len()]).collect();
                    let operation = ListOperation::new(collective, DType::F32).with_root(root);
                    run(&comm, &operation, &inputs, &mut outputs).unwrap();
                    assert_eq!(outputs, shares, "{world:?} {ranks} {collective} from {root}");
                }
            }
        });
    }
}

#[test]
fn lists_meet_calls_with_counts() {
    World::Threads.run(3, &Config::default(), |comm| {
        let counts: Vec<_> = (0..3).map(|sender| length(sender, 1)).collect();
        let input = share(comm.rank(), 1, counts[comm.rank()]);
        let gather = ListOperation::new(Collective::Gather, DType::U8).with_root(1);
        if comm.rank() == 1 {
            let mut outputs: Vec<_> = counts.iter().map(|&bytes| vec![0; bytes]).collect();
            run(&comm, &gather, std::slice::from_ref(&input), &mut outputs).unwrap();
            assert_eq!(outputs, (0..3).map(|sender| share(sender, 1, counts[sender])).collect::<Vec<_>>());
        } else {
            comm.gather_v(&input, None, 1).unwrap();
        }
    });
}

#[test]
fn wrong_lists_are_refused_before_anything_is_sent() {
    World::Threads.run(2, &Config::default(), |comm| {
        let list = |lengths: &[usize]| lengths.iter().map(|&bytes| vec![0u8; bytes]).collect::<Vec<_>>();
        let operation = |collective| ListOperation::new(collective, DType::I32);
        let refused = [
            (operation(Collective::AllReduce), list(&[8]), list(&[8]), "lists of buffers are for"),
            (operation(Collective::AllGather), list(&[8, 8]), list(&[8, 8]), "inputs has length 2, but 1"),
            (operation(Collective::AllToAll), list(&[8, 8]), list(&[8]), "outputs has length 1, but 2"),
            (
                operation(Collective::AllGather),
                list(&[6]),
                list(&[8, 8]),
                "a buffer of 6 bytes does not hold",
            ),
            (
                operation(Collective::AllGather),
                list(&[4]),
                list(&[8, 8]),
                "the own share has length 8, but 4",
            ),
            (operation(Collective::Scatter).with_root(2), list(&[8, 8]), list(&[8]), "root is rank 2"),
        ];
        for (operation, inputs, mut outputs, text) in refused {
            let error = run(&comm, &operation, &inputs, &mut outputs).unwrap_err();
            assert!(error.is_invalid_usage() && error.to_string().contains(text), "{operation:?}: {error}");
        }
        run(&comm, &operation(Collective::AllGather), &list(&[8]), &mut list(&[8, 8])).unwrap();
    });
}

#[test]
fn lists_of_other_lengths_are_a_count_mismatch() {
    World::Threads.run(2, &Config::default(), |comm| {
        let lengths = [[8, 12], [8, 8]][comm.rank()];
        let input = vec![0; lengths[comm.rank()]];
        let mut outputs: Vec<_> = lengths.iter().map(|&bytes| vec![0; bytes]).collect();
        let gather = ListOperation::new(Collective::AllGather, DType::I32);
        let ended = run(&comm, &gather, &[input], &mut outputs);
        if comm.rank() == 1 {
            return; // Its own messages may all have arrived.
        }
        let error = ended.unwrap_err();
        let kind = error.kind();
        assert!(matches!(kind, ErrorKind::CountMismatch { .. } | ErrorKind::Mismatch { .. }), "{error}");
    });
}
