//! Reductions at the top of the range of every float type: each result is within its stated bound.

mod support;

use support::World;
use unisono::schedule::{Algorithm, Collective, GroupSpec, PeerAccess};
use unisono::{
    Avg, Communicator, Config, DType, Element, F8E4M3, F8E5M2, Max, Min, Prod, ReduceKind, ReduceOp, Scalar,
    Sum, bf16, f16,
};

/// The numbers of a float type that its bounds are made of.
struct FloatType {
    /// The largest finite number.
    max: f64,
    /// The largest relative error of a rounding.
    unit: f64,
    /// The smallest number above 0.
    least: f64,
    /// True if averages are finite wherever they are in range, also if the sum is not.
    averages_whole_range: bool,
}

fn float_type(dtype: DType) -> FloatType {
    let (max, digits, least_exponent) = match dtype {
        DType::F64 => (f64::MAX, 53, -1074),
        DType::F32 => (f64::from(f32::MAX), 24, -149),
        DType::BF16 => (f64::from(bf16::MAX), 8, -133),
        DType::F16 => (f64::from(f16::MAX), 11, -24),
        DType::F8E4M3 => (448.0, 4, -9),
        DType::F8E5M2 => (57344.0, 3, -16),
        _ => panic!("{dtype} is no float"),
    };
    let averages_whole_range = matches!(dtype, DType::F16 | DType::F8E4M3 | DType::F8E5M2);
    FloatType { max, unit: 0.5f64.powi(digits), least: 2f64.powi(least_exponent), averages_whole_range }
}

/// Returns a number in [0.5, 1).
fn fraction(rank: usize, index: usize) -> f64 {
    let hash = (rank as u64 * 7919 + index as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    0.5 + (hash >> 11) as f64 / (1u64 << 54) as f64
}

/// Returns the input of a rank, as large as the bounds of the type allow for `op`.
fn input<T: Element>(op: ReduceKind, ranks: usize, rank: usize, index: usize) -> T {
    let FloatType { max, averages_whole_range, .. } = float_type(T::DTYPE);
    let share = 1.0 / ranks as f64;
    // Some elements are the largest number on every rank.
    let part = if index.is_multiple_of(3) { 1.0 } else { fraction(rank, index) };
    let largest = match op {
        ReduceKind::Sum => max * share * 0.5,
        ReduceKind::Avg if !averages_whole_range => max * share * 0.5,
        ReduceKind::PreMulSum => max * 0.25,
        ReduceKind::Prod => max.powf(share) * 0.75,
        _ => max,
    };
    T::from_f64(largest * part * if index % 5 == 4 { -1.0 } else { 1.0 })
}

/// Returns the exact result, and the largest error that the type's table of bounds allows.
fn exact_and_bound<T: Element>(op: ReduceKind, ranks: usize, index: usize) -> (f64, f64) {
    let FloatType { unit, least, .. } = float_type(T::DTYPE);
    let (count, share) = (ranks as f64, 1.0 / ranks as f64);
    let inputs = || (0..ranks).map(|rank| input::<T>(op, ranks, rank, index).to_f64());
    let relative = (1.0 + unit).powi(ranks as i32 + 1) - 1.0;
    // The reference is a float64, which rounds as often as a float64 that is tested.
    let relative = relative + (count + 2.0) * f64::EPSILON;
    let absolute = count * least;
    match op {
        ReduceKind::Sum => (inputs().sum(), relative * inputs().map(f64::abs).sum::<f64>() + absolute),
        ReduceKind::Avg | ReduceKind::PreMulSum => {
            let shares = || inputs().map(|value| value * share);
            (shares().sum(), relative * shares().map(f64::abs).sum::<f64>() + absolute)
        }
        ReduceKind::Prod => {
            let product: f64 = inputs().product();
            (product, relative * product.abs() + absolute)
        }
        ReduceKind::Min => (inputs().fold(f64::INFINITY, f64::min), 0.0),
        ReduceKind::Max => (inputs().fold(f64::NEG_INFINITY, f64::max), 0.0),
        _ => panic!("{op} has no bound here"),
    }
}

/// Compares the result of one call with the exact values.
fn check<T: Element>(what: &str, op: ReduceKind, ranks: usize, first: usize, results: &[T]) {
    for (index, result) in results.iter().enumerate() {
        let (exact, bound) = exact_and_bound::<T>(op, ranks, first + index);
        let found = result.to_f64();
        // The exact result of floats that are rounded up may be the first number out of range.
        assert!((found - exact).abs() <= bound, "{what}: {found:e}, expected {exact:e} to {bound:e}");
    }
}

/// Runs every algorithm of the reducing collectives over one transport.
fn run_all<T: Element>(comm: &Communicator, access: PeerAccess) {
    let (rank, ranks) = (comm.rank(), comm.size());
    let spec = GroupSpec::new(ranks);
    let rows = Algorithm::ALL.iter().filter(|row| row.peer_access <= access && (row.supports)(&spec));
    for row in rows {
        let ops = [Sum, Avg, Prod, Min, Max, ReduceOp::PreMulSum(Scalar::Float(1.0 / ranks as f64))];
        for op in ops {
            let kind = op.kind();
            let what = format!("{kind} of {} by {row:?} on {ranks} ranks", T::DTYPE);
            let operand = |count| (0..count).map(|index| input(kind, ranks, rank, index)).collect::<Vec<T>>();
            let set = || comm.set_algorithm(row.collective, Some(row.name)).unwrap();
            match row.collective {
                Collective::AllReduce => {
                    set();
                    let mut values = operand(COUNT);
                    comm.all_reduce(&mut values, op).unwrap();
                    check(&what, kind, ranks, 0, &values);
                }
                Collective::Reduce => {
                    set();
                    let mut values = operand(COUNT);
                    comm.reduce(&mut values, op, 0).unwrap();
                    check(&what, kind, ranks, 0, if rank == 0 { &values } else { &[] });
                }
                Collective::ReduceScatter => {
                    set();
                    let mut share = vec![T::default(); COUNT];
                    comm.reduce_scatter(&operand(COUNT * ranks), &mut share, op).unwrap();
                    check(&what, kind, ranks, rank * COUNT, &share);
                }
                _ => {}
            }
        }
    }
}

#[test]
fn reductions_stay_within_their_bounds_at_the_top_of_the_range() {
    for world in World::ALL {
        for ranks in 2..=9 {
            world.run(ranks, &Config::default(), |comm| {
                let access = world.peer_access();
                run_all::<f64>(&comm, access);
                run_all::<f32>(&comm, access);
                run_all::<bf16>(&comm, access);
                run_all::<f16>(&comm, access);
                run_all::<F8E4M3>(&comm, access);
                run_all::<F8E5M2>(&comm, access);
            });
        }
    }
}

/// An average of small integers whose sum the type holds is exact, because the inputs are divided
/// by a power of two.
#[test]
fn averages_of_small_integers_are_exact_over_every_transport() {
    for world in World::ALL {
        for ranks in 2..=9 {
            world.run(ranks, &Config::default(), |comm| {
                let mut values: Vec<f16> =
                    (0..COUNT).map(|index| f16::from_f64((comm.rank() * index) as f64)).collect();
                comm.all_reduce(&mut values, Avg).unwrap();
                for (index, value) in values.iter().enumerate() {
                    let sum = index * ranks * (ranks - 1) / 2;
                    if sum <= 2048 {
                        let exact = f16::from_f32(sum as f32 / ranks as f32);
                        assert_eq!(*value, exact, "{index} on {ranks} ranks over {world:?}");
                    }
                }
            });
        }
    }
}

/// Elements of a share: enough for several vectors and a remainder.
const COUNT: usize = 67;
