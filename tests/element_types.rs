//! Element types and operators beyond plain numbers, and operators of the caller.

mod support;

use support::World;
use unisono::schedule::Collective;
use unisono::{
    Avg, BitAnd, BitOr, BitXor, Bool, Communicator, Complex, Config, CustomOp, Element, ErrorKind, Located,
    Max, MaxLoc, Min, MinLoc, Prod, ReduceOp, ReductionOrder, Sum,
};

/// Reduces by every form on every transport and compares with `expected`, the reduction of the
/// inputs of the ranks below a number.
fn check<T: Element>(
    op: ReduceOp,
    input: impl Fn(usize, usize) -> T + Sync,
    combine: impl Fn(T, T) -> T + Sync,
) {
    for (world, ranks) in World::ALL.into_iter().flat_map(|world| [1, 2, 3, 5].map(|ranks| (world, ranks))) {
        world.run(ranks, &Config::default().with_fifo_slot_bytes(4096), |comm| {
            for count in [1, 37, 20_003] {
                let values: Vec<T> = (0..count).map(|index| input(comm.rank(), index)).collect();
                let expected = |ranks: usize| -> Vec<T> {
                    let places = |index| (0..ranks).map(move |rank| (rank, index));
                    let reduced = |index| {
                        places(index).map(|(rank, index)| input(rank, index)).reduce(&combine).unwrap()
                    };
                    (0..count).map(reduced).collect()
                };
                let what = format!("{world:?} {ranks} {op:?} of {count} {}", T::DTYPE);
                let mut reduced = values.clone();
                comm.all_reduce(&mut reduced, op).unwrap();
                assert!(reduced == expected(ranks), "all_reduce {what}");
                let mut at_root = values.clone();
                comm.reduce(&mut at_root, op, ranks - 1).unwrap();
                assert!(comm.rank() + 1 < ranks || at_root == expected(ranks), "reduce {what}");
                let mut prefix = values.clone();
                comm.scan(&mut prefix, op).unwrap();
                assert!(prefix == expected(comm.rank() + 1), "scan {what}");
                let mut exclusive = values.clone();
                comm.exscan(&mut exclusive, op).unwrap();
                assert!(comm.rank() == 0 || exclusive == expected(comm.rank()), "exscan {what}");
                let mut share = vec![T::default(); count];
                comm.reduce_scatter(&values.repeat(ranks), &mut share, op).unwrap();
                assert!(share == expected(ranks), "reduce_scatter {what}");
                let mut gathered = vec![T::default(); count * ranks];
                comm.all_gather(&values, &mut gathered).unwrap();
                assert!(gathered[comm.rank() * count..][..count] == values[..], "all_gather {what}");
            }
        });
    }
}

fn mixed(rank: usize, index: usize) -> u64 {
    (rank as u64 * 1_000_003 + index as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

#[test]
fn bitwise_operators_combine_every_integer() {
    check(BitAnd, |rank, index| mixed(rank, index) as u8 | 3, |left, right| left & right);
    check(BitOr, |rank, index| mixed(rank, index) as i16, |left, right| left | right);
    check(BitXor, |rank, index| mixed(rank, index) as u32, |left, right| left ^ right);
    check(BitXor, |rank, index| mixed(rank, index) as i64, |left, right| left ^ right);
}

#[test]
fn sixteen_bit_integers_are_reduced() {
    check(Sum, |rank, index| mixed(rank, index) as i16, i16::wrapping_add);
    check(Max, |rank, index| mixed(rank, index) as u16, u16::max);
    check(Min, |rank, index| mixed(rank, index) as i16, i16::min);
    World::Threads.run(3, &Config::default(), |comm| {
        let mut mean = [300u16 * comm.rank() as u16, 1];
        comm.all_reduce(&mut mean, Avg).unwrap();
        assert_eq!(mean, [300, 1]);
    });
}

#[test]
fn truth_values_are_combined_logically() {
    let flag = |rank, index| Bool::from(!mixed(rank, index).is_multiple_of(3));
    check(BitAnd, flag, |left, right| (left.get() & right.get()).into());
    check(BitOr, flag, |left, right| (left.get() | right.get()).into());
    check(BitXor, flag, |left, right| (left.get() ^ right.get()).into());
}

#[test]
fn complex_numbers_are_summed_and_multiplied() {
    // Small integers: exact in any order.
    let number = |rank, index| {
        let word = mixed(rank, index);
        Complex::new((word % 5) as f32 - 2.0, (word >> 8 & 3) as f32)
    };
    check(Sum, number, |left, right| left + right);
    check(Prod, number, |left, right| left * right);
    let number = |rank, index| Complex::new(number(rank, index).re as f64, 1.0);
    check(Sum, number, |left, right| left + right);
    World::Threads.run(2, &Config::default(), |comm| {
        let mut mean = [Complex::new(comm.rank() as f64, 3.0)];
        comm.all_reduce(&mut mean, Avg).unwrap();
        assert_eq!(mean, [Complex::new(0.5, 3.0)]);
    });
}

#[test]
fn located_values_keep_the_lowest_index_of_equals() {
    let value = |rank, index| mixed(rank, index) % 4;
    let located = |rank, index| Located { value: value(rank, index) as f32, index: rank as i32 };
    check(MinLoc, located, |left, right| if right.value < left.value { right } else { left });
    check(MaxLoc, located, |left, right| if right.value > left.value { right } else { left });
    let located = |rank, index| Located { value: -(value(rank, index) as i64), index: rank as i64 };
    check(MaxLoc, located, |left, right| if right.value > left.value { right } else { left });
    World::Shm.run(3, &Config::default(), |comm| {
        let rank = comm.rank();
        let mut worst = [Located { value: [1.0, f64::NAN, f64::NAN][rank], index: 10 - rank as i64 }];
        comm.all_reduce(&mut worst, MinLoc).unwrap();
        assert!(worst[0].value.is_nan() && worst[0].index == 8, "{worst:?}");
    });
}

#[test]
fn undefined_pairs_are_refused_and_name_what_is_defined() {
    fn refused<T: Element>(comm: &Communicator, op: ReduceOp, parts: [&str; 2]) {
        let text = {
            let error = comm.all_reduce(&mut [T::default()], op).unwrap_err();
            assert!(error.is_invalid_usage(), "{error}");
            error.to_string()
        };
        assert!(text.contains("all_reduce #0") && parts.iter().all(|part| text.contains(part)), "{text}");
    }
    World::Threads.run(2, &Config::default(), |comm| {
        refused::<f32>(
            &comm,
            BitAnd,
            ["bitand is not defined for float", "sum, prod, min, max, avg, mulsum"],
        );
        refused::<Complex<f32>>(&comm, Min, ["min is not defined for complex64", "sum, prod, avg"]);
        refused::<Complex<f64>>(&comm, ReduceOp::pre_mul_sum(2.0f64), ["complex128", "sum, prod, avg"]);
        refused::<Bool>(&comm, Sum, ["sum is not defined for bool", "bitand, bitor, bitxor"]);
        refused::<Located<i32>>(&comm, Max, ["max is not defined for int32_int32", "minloc, maxloc"]);
        refused::<u16>(&comm, MinLoc, ["minloc is not defined for uint16", "bitxor"]);
        let op = CustomOp::new("own", true, |_: &mut [f32], _: &[f32]| {});
        refused::<f64>(
            &comm,
            ReduceOp::Custom(op),
            ["own reduces elements of float, not of double", "all_reduce"],
        );
        comm.barrier().unwrap();
    });
}

/// The composition of affine functions, packed as two halves: associative, and not commutative.
fn compose(left: u64, right: u64) -> u64 {
    let parts = |value: u64| (value as u32, (value >> 32) as u32);
    let ((a, b), (c, d)) = (parts(left), parts(right));
    u64::from(a.wrapping_mul(c)) | u64::from(b.wrapping_mul(c).wrapping_add(d)) << 32
}

#[test]
fn own_operators_that_do_not_commute_keep_rank_order() {
    let op = CustomOp::new("compose", false, |left: &mut [u64], right: &[u64]| {
        left.iter_mut().zip(right).for_each(|(left, &right)| *left = compose(*left, right));
    });
    check(ReduceOp::Custom(op), mixed, compose);
    World::Tcp.run(2, &Config::default(), |comm| {
        comm.set_algorithm(Collective::AllReduce, Some("ring")).unwrap();
        let error = comm.all_reduce(&mut [1u64; 4], ReduceOp::Custom(op)).unwrap_err();
        assert!(error.is_invalid_usage() && error.to_string().contains("rank order"), "{error}");
        comm.barrier().unwrap();
    });
}

#[test]
fn own_operators_that_commute_run_by_any_algorithm() {
    let op = CustomOp::new("xor", true, |left: &mut [u16], right: &[u16]| {
        left.iter_mut().zip(right).for_each(|(left, &right)| *left ^= right);
    });
    check(ReduceOp::Custom(op), |rank, index| mixed(rank, index) as u16, |left, right| left ^ right);
    let config = Config::default().with_reduction_order(ReductionOrder::RankOrder);
    World::Tcp.run(3, &config, |comm| {
        let mut values = [1u16 << comm.rank(); 5];
        comm.all_reduce(&mut values, ReduceOp::Custom(op)).unwrap();
        assert_eq!(values, [7; 5]);
    });
}

#[test]
fn own_operators_of_two_names_are_a_mismatch() {
    let op = |name| CustomOp::new(name, true, |left: &mut [i32], right: &[i32]| left[0] += right[0]);
    let ops = [op("first"), op("second")];
    for world in World::ALL {
        let results = world
            .run(2, &Config::default(), |comm| comm.all_reduce(&mut [1], ReduceOp::Custom(ops[comm.rank()])));
        for error in results.into_iter().map(Result::unwrap_err) {
            assert!(matches!(error.kind(), ErrorKind::Mismatch { .. }), "{error}");
            let text = error.to_string();
            assert!(text.contains("own reduction first") && text.contains("own reduction second"), "{text}");
        }
    }
}
