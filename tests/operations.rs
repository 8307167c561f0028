//! Operations that are described by values give the results of the typed methods.

mod support;

use proptest::prelude::*;
use support::{Case, World};
use unisono::schedule::Collective;
use unisono::{
    Avg, Communicator, Config, DType, Element, F8E4M3, F8E5M2, Max, OpBuffers, Operation, ReduceKind,
    ReduceOp, Sum, UnevenOperation, bf16, f16,
};
use unisono_reducers::as_bytes;

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
    let (sent, mut received) = (input(comm.rank(), inputs), vec![-1; outputs * COUNT]);
    let at_root = comm.rank() == root;
    match collective {
        Collective::AllReduce => comm.all_reduce_into(&sent, &mut received, op),
        Collective::AllGather => comm.all_gather(&sent, &mut received),
        Collective::ReduceScatter => comm.reduce_scatter(&sent, &mut received, op),
        Collective::Broadcast => comm.broadcast_into(at_root.then_some(&sent[..]), &mut received, root),
        Collective::Reduce => comm.reduce_into(&sent, at_root.then_some(&mut received[..]), op, root),
        Collective::Gather => comm.gather(&sent, at_root.then_some(&mut received[..]), root),
        Collective::Scatter => comm.scatter(at_root.then_some(&sent[..]), &mut received, root),
        Collective::AllToAll => comm.all_to_all(&sent, &mut received),
        Collective::Barrier => comm.barrier(),
        Collective::Scan => comm.scan_into(&sent, &mut received, op),
        Collective::ExScan => comm.exscan_into(&sent, &mut received, op),
    }
    .unwrap();
    received
}

fn operation(collective: Collective, op: ReduceOp, root: usize) -> Operation {
    let operation = Operation::new(collective, DType::I32, COUNT).with_root(root);
    if collective.reduces() { operation.with_reduction(op) } else { operation }
}

/// Returns the output of an operation in separate buffers, which begin at an odd address.
fn separate(comm: &Communicator, collective: Collective, op: ReduceOp, root: usize) -> Vec<i32> {
    let (inputs, outputs) = collective.shares(comm.size(), root, comm.rank());
    let sent = [&[0][..], &bytes(&input(comm.rank(), inputs))].concat();
    let mut received = vec![0xff; 1 + outputs * COUNT * 4];
    let buffers = OpBuffers::Separate { input: &sent[1..], output: &mut received[1..] };
    comm.run_operation(&operation(collective, op, root), buffers).unwrap();
    values(&received[1..])
}

/// Returns the output of an operation in one buffer.
fn in_place(comm: &Communicator, collective: Collective, op: ReduceOp, root: usize) -> Vec<i32> {
    let (inputs, outputs) = collective.shares(comm.size(), root, comm.rank());
    let share = COUNT * 4;
    let own_offset = comm.rank() * share;
    let mut buffer = vec![0xff; inputs.max(outputs) * share];
    let input_offset = if inputs < outputs && inputs > 0 { own_offset } else { 0 };
    buffer[input_offset..input_offset + inputs * share].copy_from_slice(&bytes(&input(comm.rank(), inputs)));
    comm.run_operation(&operation(collective, op, root), OpBuffers::InPlace(&mut buffer)).unwrap();
    let output_offset = if outputs < inputs && outputs > 0 { own_offset } else { 0 };
    values(&buffer[output_offset..output_offset + outputs * share])
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

/// Numbers of elements of the ranks' shares; some are empty.
fn counts(ranks: usize) -> Vec<usize> {
    (0..ranks).map(|rank| [5, 0, 70_000, 1][rank % 4]).collect()
}

#[test]
fn uneven_operations_match_typed_methods() {
    for (world, ranks) in World::ALL.into_iter().flat_map(|world| (1..=4).map(move |ranks| (world, ranks))) {
        world.run(ranks, &Config::default(), |comm| {
            let counts = counts(ranks);
            let (share, total) = (counts[comm.rank()], counts.iter().sum::<usize>());
            let offset = counts[..comm.rank()].iter().sum::<usize>();
            let element = |index: usize| (comm.rank() * 7 + index) as i32;
            let (long, short): (Vec<_>, Vec<_>) =
                ((0..total).map(element).collect(), (0..share).map(element).collect());
            let (mut gathered, mut reduced) = (vec![0; total], vec![0; share]);
            comm.all_gather_v(&short, &mut gathered, &counts).unwrap();
            comm.reduce_scatter_v(&long, &mut reduced, &counts, Max).unwrap();
            let gather = UnevenOperation::all_gather(DType::I32, &counts);
            let reduce = UnevenOperation::reduce_scatter(DType::I32, &counts, Max);
            for (operation, input, output) in [(gather, &short, &gathered), (reduce, &long, &reduced)] {
                let case = format!("{world:?} {ranks} {}", operation.collective);
                let sent = [&[0][..], &bytes(input)].concat();
                let mut received = vec![0xff; 1 + output.len() * 4];
                let buffers = OpBuffers::Separate { input: &sent[1..], output: &mut received[1..] };
                comm.run_uneven_operation(&operation, buffers).unwrap();
                assert_eq!(&values(&received[1..]), output, "{case}");
                let mut buffer = vec![-1; total];
                let start = |shares: &Vec<i32>| if shares.len() < total { offset } else { 0 };
                buffer[start(input)..][..input.len()].copy_from_slice(input);
                let mut buffer = bytes(&buffer);
                comm.run_uneven_operation(&operation, OpBuffers::InPlace(&mut buffer)).unwrap();
                assert_eq!(&values(&buffer)[start(output)..][..output.len()], output, "{case} in place");
            }
        });
    }
}

#[test]
fn wrong_uneven_operations_are_refused() {
    World::Threads.run(2, &Config::default(), |comm| {
        let changed = |change: fn(&mut UnevenOperation<'static>)| {
            let mut operation = UnevenOperation::reduce_scatter(DType::I32, &[1, 2], Sum);
            change(&mut operation);
            operation
        };
        let refused = [
            (changed(|sum| sum.reduction = None), "needs a reduction"),
            (changed(|sum| sum.collective = Collective::AllGather), "takes no reduction"),
            (changed(|sum| sum.collective = Collective::Gather), "are for all_gather and reduce_scatter"),
            (changed(|sum| sum.counts = &[3]), "counts has length 1, but 2 is needed"),
            (changed(|sum| sum.counts = &[1, 1]), "buffer has 12 bytes, but 8 are needed"),
            (changed(|sum| sum.counts = &[usize::MAX, 3]), "more than memory can hold"),
            (changed(|sum| sum.counts = &[usize::MAX / 4, 3]), "more than memory can hold"),
            (changed(|sum| sum.reduction = Some(ReduceOp::MinLoc)), "minloc is not defined for int32"),
        ];
        let mut buffer = [0; 12];
        for (operation, text) in refused {
            let error = comm.run_uneven_operation(&operation, OpBuffers::InPlace(&mut buffer)).unwrap_err();
            assert!(error.is_invalid_usage() && error.to_string().contains(text), "{operation:?}: {error}");
        }
        let sum = changed(|_| ());
        let buffers = OpBuffers::Separate { input: &[0; 8], output: &mut [0; 4] };
        let error = comm.run_uneven_operation(&sum, buffers).unwrap_err();
        assert!(error.to_string().contains("input has 8 bytes, but 12 are needed"), "{error}");
        comm.run_uneven_operation(&sum, OpBuffers::InPlace(&mut buffer)).unwrap();
    });
}

/// An operation with random values, equal on all ranks.
#[derive(Clone, Copy, Debug)]
struct RandomOp {
    collective: Collective,
    dtype: DType,
    reduction: Option<ReduceKind>,
    root: usize,
    count: usize,
    in_place: bool,
    /// Bytes by which input, output and the one buffer are too long, or too short.
    excess: [isize; 2],
}

const RANKS: usize = 2;
fn random_op() -> impl Strategy<Value = RandomOp> {
    let one_of = |length: usize| 0..length;
    let count = prop_oneof![8 => 0usize..200, 1 => Just(usize::MAX), 1 => Just(isize::MAX as usize / 2 + 1)];
    let excess = || prop_oneof![8 => Just(0isize), 1 => -3isize..4];
    // The numbers, and the operators that take every one of them. Others have tests of their own.
    let numbers: Vec<DType> =
        DType::ALL.into_iter().filter(|dtype| ReduceKind::PreMulSum.is_defined_for(*dtype)).collect();
    let values = (
        one_of(Collective::ALL.len()),
        prop::sample::select(numbers),
        prop::sample::select(&ReduceKind::ON_GPU[..]),
    );
    let flaws = (0..10, prop_oneof![8 => 0..RANKS, 1 => Just(RANKS)]);
    (values, flaws, count, any::<bool>(), [excess(), excess()]).prop_map(
        |((collective, dtype, op), (flaw, root), count, in_place, excess)| {
            let collective = Collective::ALL[collective];
            let reduces = collective.reduces() != (flaw == 0);
            let reduction = reduces.then_some(op);
            RandomOp { collective, dtype, reduction, root, count, in_place, excess }
        },
    )
}

impl RandomOp {
    /// Returns the shares of input and output.
    fn shares(&self, rank: usize) -> (usize, usize) {
        let root = if self.root < RANKS { self.root } else { 0 };
        self.collective.shares(RANKS, root, rank)
    }

    /// Returns the wrong bytes of each buffer. Only a buffer that all ranks use makes all of them
    /// refuse the call.
    fn excess(&self) -> [isize; 2] {
        let used = |buffer: fn((usize, usize)) -> usize| (0..RANKS).all(|rank| buffer(self.shares(rank)) > 0);
        let [input, output] = self.excess;
        match self.in_place {
            true if used(|(inputs, outputs)| inputs.max(outputs)) => [output; 2],
            false => [
                if used(|shares| shares.0) { input } else { 0 },
                if used(|shares| shares.1) { output } else { 0 },
            ],
            true => [0; 2],
        }
    }

    /// Returns the length of a buffer, as long as memory can hold it.
    fn length(&self, shares: usize, excess: isize) -> usize {
        let share = if self.count < 1000 { self.count * self.dtype.size() } else { 8 };
        (shares * share).saturating_add_signed(excess)
    }

    /// Returns true if the call must be refused on every rank.
    fn is_wrong(&self) -> bool {
        let lengths = (0..RANKS).any(|rank| {
            let ((inputs, outputs), [input, output]) = (self.shares(rank), self.excess());
            let is = |shares, excess| shares > 0 && self.length(shares, excess) != self.length(shares, 0);
            if self.in_place {
                is(inputs.max(outputs), output)
            } else {
                is(inputs, input) || is(outputs, output)
            }
        });
        let Self { collective, reduction, .. } = *self;
        lengths
            || self.count > 1000
            || collective.reduces() != reduction.is_some()
            || collective.has_root() && self.root >= RANKS
            || collective.is_scan() && reduction == Some(ReduceKind::Avg)
    }

    /// Runs the operation, and compares the result with the naive one.
    fn check<T: Element>(&self, comm: &Communicator) {
        let Self { collective, dtype, reduction, root, count, in_place, .. } = *self;
        let (rank, (inputs, outputs)) = (comm.rank(), self.shares(comm.rank()));
        let mut operation = Operation::new(collective, dtype, count).with_root(root);
        operation.reduction = reduction.map(|kind| support::reduction(kind, dtype.is_float(), rank));
        let op = reduction.unwrap_or(ReduceKind::Sum);
        let case = Case { collective, op, root, count, in_place };
        let value = |index| support::contribution(reduction, RANKS, rank, index);
        let encode =
            |values: Vec<f64>| as_bytes(&values.into_iter().map(T::from_f64).collect::<Vec<T>>()).to_vec();
        let given = if self.is_wrong() { vec![] } else { encode((0..inputs * count).map(value).collect()) };
        let share = if self.is_wrong() { 0 } else { count * dtype.size() };
        let ([input_excess, output_excess], start) = (self.excess(), comm.traffic_stats().unwrap());
        let (ended, output) = if in_place {
            let mut buffer = vec![0xee; self.length(inputs.max(outputs), output_excess)];
            let input_offset = if inputs < outputs && inputs > 0 { rank * share } else { 0 };
            buffer[input_offset..input_offset + given.len()].copy_from_slice(&given);
            let ended = comm.run_operation(&operation, OpBuffers::InPlace(&mut buffer));
            let output_offset = if outputs < inputs && outputs > 0 { rank * share } else { 0 };
            (ended, buffer[output_offset..].to_vec())
        } else {
            let mut input = given;
            input.resize(self.length(inputs, input_excess), 0);
            let mut output = vec![0xee; self.length(outputs, output_excess)];
            (
                comm.run_operation(&operation, OpBuffers::Separate { input: &input, output: &mut output }),
                output,
            )
        };
        if self.is_wrong() {
            assert!(ended.expect_err("it is wrong").is_invalid_usage(), "{self:?}");
            return assert_eq!(comm.traffic_stats().unwrap(), start, "{self:?} sent something");
        }
        ended.unwrap_or_else(|error| panic!("{self:?}: {error}"));
        if collective != Collective::ExScan || rank > 0 {
            let values = (0..outputs * count).map(|index| support::expected(case, RANKS, rank, index));
            let expected = encode(values.collect());
            assert_eq!(output[..expected.len()], expected, "{self:?} at rank {rank}");
        }
    }

    fn check_dtype(&self, comm: &Communicator) {
        match self.dtype {
            DType::I8 => self.check::<i8>(comm),
            DType::U8 => self.check::<u8>(comm),
            DType::I32 => self.check::<i32>(comm),
            DType::U32 => self.check::<u32>(comm),
            DType::I64 => self.check::<i64>(comm),
            DType::U64 => self.check::<u64>(comm),
            DType::F16 => self.check::<f16>(comm),
            DType::BF16 => self.check::<bf16>(comm),
            DType::F32 => self.check::<f32>(comm),
            DType::F64 => self.check::<f64>(comm),
            DType::F8E4M3 => self.check::<F8E4M3>(comm),
            DType::F8E5M2 => self.check::<F8E5M2>(comm),
            DType::I16 => self.check::<i16>(comm),
            DType::U16 => self.check::<u16>(comm),
            other => unreachable!("{other} is not drawn"),
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(100))]

    /// Every operation gives the naive result, or is refused before anything is sent. The next one
    /// runs on the same communicator.
    #[test]
    fn random_operations_are_right_or_refused(operations in prop::collection::vec(random_op(), 1..30)) {
        World::Threads.run(RANKS, &Config::default(), |comm| {
            operations.iter().for_each(|operation| operation.check_dtype(&comm));
            let mut ones = [1i32; 10];
            comm.all_reduce(&mut ones, Sum).unwrap();
            assert_eq!(ones, [RANKS as i32; 10]);
        });
    }
}
