//! Collectives on tensors and their gradients, with the cases of Burn's distributed tests.

mod support;

use burn::tensor::distributed::ReduceOperation::{Mean, Sum};
use burn::tensor::{Device, Tensor, TensorData, Tolerance};
use support::{on_ranks, random, values};
use unisono::ErrorKind;
use unisono_burn::{Error, all_gather, all_reduce, all_to_all, broadcast, reduce_scatter};

fn tracked(values: &[f32], device: &Device) -> Tensor<1> {
    Tensor::from_data(TensorData::from(values), device).require_grad()
}

#[test]
fn all_reduce_sum_has_gradients_of_all_ranks() {
    on_ranks(2, |comm, device| {
        let input = tracked([&[2.0, 5.0], &[4.0, 1.0]][comm.rank()], device);
        let output = all_reduce(input.clone(), Sum, comm).unwrap();
        assert_eq!(values(&output), [6.0, 6.0]);
        assert_eq!(values(&input.grad(&output.backward()).unwrap()), [2.0, 2.0]);
    });
}

#[test]
fn all_reduce_mean_has_mean_gradients() {
    on_ranks(2, |comm, device| {
        let input = tracked([&[2.0, 5.0], &[4.0, 1.0]][comm.rank()], device);
        let output = all_reduce(input.clone(), Mean, comm).unwrap();
        assert_eq!(values(&output), [3.0, 3.0]);
        assert_eq!(values(&input.grad(&output.backward()).unwrap()), [1.0, 1.0]);
    });
}

#[test]
fn all_reduce_sums_gradients_that_differ_by_rank() {
    on_ranks(2, |comm, device| {
        let input = tracked([&[2.0, 5.0], &[4.0, 1.0]][comm.rank()], device);
        let output = all_reduce(input.clone(), Sum, comm).unwrap().mul_scalar([1.0, 4.0][comm.rank()]);
        assert_eq!(values(&output), [[6.0, 6.0], [24.0, 24.0]][comm.rank()]);
        assert_eq!(values(&input.grad(&output.backward()).unwrap()), [5.0, 5.0]);
    });
}

#[test]
fn all_reduce_works_on_any_number_of_ranks() {
    for ranks in 1..=5 {
        on_ranks(ranks, |comm, device| {
            let input = tracked(&[comm.rank() as f32; 2], device);
            let output = all_reduce(input.clone(), Sum, comm).unwrap();
            assert_eq!(values(&output), [(0..ranks).sum::<usize>() as f32; 2]);
            assert_eq!(values(&input.grad(&output.backward()).unwrap()), [ranks as f32; 2]);
        });
    }
}

#[test]
fn all_reduce_repeats_with_random_matrices() {
    on_ranks(4, |comm, device| {
        for round in 0..100 {
            let matrix = |rank: usize| random(round * 4 + rank as u64 + 1, 400);
            let data = TensorData::new(matrix(comm.rank()), [20, 20]);
            let output = all_reduce(Tensor::<2>::from_data(data, device), Sum, comm).unwrap();
            let matrices = [0, 1, 2, 3].map(matrix);
            let expected: Vec<f32> =
                (0..400).map(|index| matrices.iter().map(|values| values[index]).sum()).collect();
            let expected = TensorData::new(expected, [20, 20]);
            output.into_data().assert_approx_eq::<f32>(&expected, Tolerance::default());
        }
    });
}

#[test]
fn all_gather_concatenates_and_sums_gradients() {
    on_ranks(3, |comm, device| {
        let rank = comm.rank() as f32;
        let input = tracked(&[rank, 10.0 + rank], device);
        let output = all_gather(input.clone(), comm).unwrap();
        assert_eq!(values(&output), [0.0, 10.0, 1.0, 11.0, 2.0, 12.0]);
        let weights = Tensor::<1>::from_floats([1.0, 2.0, 3.0, 4.0, 5.0, 6.0], device);
        let gradients = (output * weights * (rank + 1.0)).backward();
        let expected = [2.0 * rank + 1.0, 2.0 * rank + 2.0].map(|weight| weight * 6.0);
        assert_eq!(values(&input.grad(&gradients).unwrap()), expected);
    });
}

#[test]
fn reduce_scatter_gives_rows_and_gathers_gradients() {
    on_ranks(2, |comm, device| {
        let rank = comm.rank();
        for (op, scale) in [(Sum, 1.0), (Mean, 0.5)] {
            let input = tracked(&[1.0, 2.0, 3.0, 4.0], device);
            let output = reduce_scatter(input.clone(), op, comm).unwrap();
            assert_eq!(values(&output), [[2.0, 4.0], [6.0, 8.0]][rank].map(|sum| sum * scale));
            let gradients = output.mul_scalar(rank as f32 + 1.0).backward();
            let expected = [1.0, 1.0, 2.0, 2.0].map(|gradient: f32| gradient * scale);
            assert_eq!(values(&input.grad(&gradients).unwrap()), expected);
        }
    });
}

#[test]
fn broadcast_sums_gradients_at_root() {
    on_ranks(3, |comm, device| {
        let input = tracked(&[comm.rank() as f32; 2], device);
        let output = broadcast(input.clone(), 2, comm).unwrap();
        assert_eq!(values(&output), [2.0, 2.0]);
        let gradients = output.mul_scalar(comm.rank() as f32 + 1.0).backward();
        let expected = if comm.rank() == 2 { [6.0; 2] } else { [0.0; 2] };
        assert_eq!(values(&input.grad(&gradients).unwrap()), expected);
    });
}

#[test]
fn all_to_all_transposes_and_sends_gradients_back() {
    on_ranks(2, |comm, device| {
        let rank = comm.rank() as f32;
        let input = tracked(&[10.0 * rank, 10.0 * rank + 1.0], device);
        let output = all_to_all(input.clone(), comm).unwrap();
        assert_eq!(values(&output), [rank, 10.0 + rank]);
        let gradients = output.mul_scalar(rank + 1.0).backward();
        assert_eq!(values(&input.grad(&gradients).unwrap()), [1.0, 2.0]);
    });
}

#[test]
fn tensors_without_gradients_are_reduced() {
    on_ranks(2, |comm, device| {
        let plain = Tensor::<1>::from_floats([1.0, 2.0], &device.clone().inner());
        assert_eq!(values(&all_reduce(plain, Sum, comm).unwrap()), [2.0, 4.0]);
        let untracked = Tensor::<1>::from_floats([1.0, 2.0], device);
        assert_eq!(values(&all_reduce(untracked, Sum, comm).unwrap()), [2.0, 4.0]);
    });
}

#[test]
fn uneven_rows_are_refused_on_every_rank() {
    on_ranks(2, |comm, device| {
        let odd = Tensor::<1>::from_floats([1.0, 2.0, 3.0], device);
        let error = reduce_scatter(odd.clone(), Sum, comm).unwrap_err();
        assert!(matches!(&error, Error::UnevenRows { shape, ranks: 2, .. } if *shape == [3]), "{error}");
        assert!(error.to_string().contains("rank"), "{error}");
        assert!(all_to_all(odd, comm).is_err());
        comm.barrier().expect("refused arguments leave the communicator usable");
    });
}

#[test]
fn shapes_that_differ_between_ranks_are_an_error() {
    on_ranks(2, |comm, device| {
        let input = Tensor::<1>::zeros([3 + comm.rank()], device);
        let error = all_reduce(input, Sum, comm).unwrap_err();
        let Error::Collective(error) = error else { panic!("{error}") };
        assert!(
            matches!(error.kind(), ErrorKind::CountMismatch { .. } | ErrorKind::Mismatch { .. }),
            "{error}"
        );
    });
}

#[cfg(not(feature = "ndarray"))]
#[test]
fn backends_without_collectives_are_refused() {
    #[allow(deprecated)]
    let input = Tensor::<1>::from_floats([1.0], &Device::ndarray().autodiff());
    let comm = unisono::Communicator::local(1).unwrap().remove(0);
    let error = all_reduce(input, Sum, &comm).unwrap_err();
    assert!(matches!(error, Error::UnsupportedBackend { .. }), "{error}");
}
