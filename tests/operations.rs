//! Operations that are described by values give the results of the typed methods.

mod support;

use support::World;
use unisono::schedule::Collective;
use unisono::{Avg, Communicator, Config, DType, Max, OpBuffers, Operation, ReduceOp, Sum};

const COUNT: usize = 37;

fn bytes(values: &[i32]) -> Vec<u8> {
    values.iter().flat_map(|value| value.to_ne_bytes()).collect()
}

fn values(bytes: &[u8]) -> Vec<i32> {
    bytes.as_chunks().0.iter().map(|&word| i32::from_ne_bytes(word)).collect()
}

fn input(rank: usize, shares: usize) -> Vec<i32> {
    (0..shares * COUNT).map(|index| (rank * 1000 + index) as i32).collect()
}

/// Returns the output of the typed method of `collective` at this rank.
fn typed(comm: &Communicator, collective: Collective, op: ReduceOp, root: usize) -> Vec<i32> {
    let (inputs, outputs) = collective.shares(comm.size(), root, comm.rank());
    let (from, mut into) = (input(comm.rank(), inputs), vec![-1; outputs * COUNT]);
    let at_root = comm.rank() == root;
    match collective {
        Collective::AllReduce => comm.all_reduce_into(&from, &mut into, op),
        Collective::AllGather => comm.all_gather(&from, &mut into),
        Collective::ReduceScatter => comm.reduce_scatter(&from, &mut into, op),
        Collective::Broadcast => comm.broadcast_into(at_root.then_some(&from[..]), &mut into, root),
        Collective::Reduce => comm.reduce_into(&from, at_root.then_some(&mut into[..]), op, root),
        Collective::Gather => comm.gather(&from, at_root.then_some(&mut into[..]), root),
        Collective::Scatter => comm.scatter(at_root.then_some(&from[..]), &mut into, root),
        Collective::AllToAll => comm.all_to_all(&from, &mut into),
        Collective::Barrier => comm.barrier(),
        Collective::Scan => comm.scan_into(&from, &mut into, op),
        Collective::ExScan => comm.exscan_into(&from, &mut into, op),
    }
    .unwrap();
    into
}

fn operation(collective: Collective, op: ReduceOp, root: usize) -> Operation {
    let operation = Operation::new(collective, DType::I32, COUNT).with_root(root);
    if collective.reduces() { operation.with_reduction(op) } else { operation }
}

/// Returns the output of an operation in separate buffers, which begin at an odd address.
fn separate(comm: &Communicator, collective: Collective, op: ReduceOp, root: usize) -> Vec<i32> {
    let (inputs, outputs) = collective.shares(comm.size(), root, comm.rank());
    let from = [&[0][..], &bytes(&input(comm.rank(), inputs))].concat();
    let mut into = vec![0xff; 1 + outputs * COUNT * 4];
    let buffers = OpBuffers::Separate { input: &from[1..], output: &mut into[1..] };
    comm.run_operation(&operation(collective, op, root), buffers).unwrap();
    values(&into[1..])
}

/// Returns the output of an operation in one buffer.
fn in_place(comm: &Communicator, collective: Collective, op: ReduceOp, root: usize) -> Vec<i32> {
    let (inputs, outputs) = collective.shares(comm.size(), root, comm.rank());
    let share = COUNT * 4;
    let own = comm.rank() * share;
    let mut buffer = vec![0xff; inputs.max(outputs) * share];
    let from = if inputs < outputs && inputs > 0 { own } else { 0 };
    buffer[from..from + inputs * share].copy_from_slice(&bytes(&input(comm.rank(), inputs)));
    comm.run_operation(&operation(collective, op, root), OpBuffers::InPlace(&mut buffer)).unwrap();
    let into = if outputs < inputs && outputs > 0 { own } else { 0 };
    values(&buffer[into..into + outputs * share])
}

#[test]
fn operations_match_typed_methods() {
    for (world, ranks) in World::ALL.into_iter().flat_map(|world| (1..=3).map(move |ranks| (world, ranks))) {
        world.run(ranks, &Config::default(), |comm| {
            for collective in Collective::ALL {
                for op in [Sum, Max, Avg, ReduceOp::pre_mul_sum(3i32)] {
                    if collective.is_scan() && op == Avg {
                        continue; // Refused; see below.
                    }
                    for root in if collective.has_root() { 0..ranks } else { 0..1 } {
                        let expected = typed(&comm, collective, op, root);
                        let case = format!("{world:?} {ranks} {collective} {op:?} from {root}");
                        assert_eq!(separate(&comm, collective, op, root), expected, "{case}");
                        assert_eq!(in_place(&comm, collective, op, root), expected, "{case} in place");
                    }
                }
            }
        });
    }
}

#[test]
fn wrong_operations_are_refused_before_anything_is_sent() {
    World::Threads.run(2, &Config::default(), |comm| {
        let mut buffer = vec![0u8; 16];
        let sum = Operation::new(Collective::AllReduce, DType::I32, 4).with_reduction(Sum);
        let changed = |change: fn(&mut Operation)| {
            let mut operation = sum;
            change(&mut operation);
            operation
        };
        let refused = [
            (changed(|sum| sum.reduction = None), "needs a reduction"),
            (Operation::new(Collective::AllGather, DType::I32, 2).with_reduction(Sum), "takes no reduction"),
            (Operation::new(Collective::Broadcast, DType::I32, 4).with_root(2), "root is rank 2"),
            (changed(|sum| sum.count = 5), "buffer has 16 bytes, but 20 are needed"),
            (changed(|sum| sum.dtype = DType::I64), "buffer has 16 bytes, but 32 are needed"),
            (changed(|sum| sum.count = usize::MAX), "more than memory can hold"),
            (sum.with_reduction(ReduceOp::pre_mul_sum(0.5f32)), "the factor 0.5"),
            (Operation::new(Collective::Scan, DType::I32, 4).with_reduction(Avg), "no average"),
        ];
        for (operation, text) in refused {
            let error = comm.run_operation(&operation, OpBuffers::InPlace(&mut buffer)).unwrap_err();
            assert!(error.is_invalid_usage() && error.to_string().contains(text), "{operation:?}: {error}");
        }
        let buffers = OpBuffers::Separate { input: &[0; 12], output: &mut buffer };
        let error = comm.run_operation(&sum, buffers).unwrap_err();
        assert!(error.to_string().contains("input has 12 bytes, but 16 are needed"), "{error}");
        comm.run_operation(&sum, OpBuffers::InPlace(&mut buffer)).unwrap();
    });
}
