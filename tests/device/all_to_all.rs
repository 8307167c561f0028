//! Exchanges of uneven shares.

use crate::collectives::{case, exercise};
use crate::world::{config, ll_config, run};
use unisono::ErrorKind;
use unisono::schedule::{Algorithm, Collective};

/// Returns the elements that `sender` sends to `receiver`.
fn count(sender: usize, receiver: usize) -> usize {
    [0, 700, 3, 2000][(sender * 2 + receiver) % 4]
}

fn element(sender: usize, receiver: usize, index: usize) -> i32 {
    (sender * 100_000 + receiver * 10_000 + index) as i32
}

#[test]
fn all_to_all_v_allows_any_lengths() {
    run(3, &config(), |comm, stream| {
        let (rank, ranks) = (comm.rank(), comm.size());
        let sends: Vec<usize> = (0..ranks).map(|receiver| count(rank, receiver)).collect();
        let receives: Vec<usize> = (0..ranks).map(|sender| count(sender, rank)).collect();
        let sent =
            |receiver: usize| (0..count(rank, receiver)).map(move |index| element(rank, receiver, index));
        let input = comm.gpu().upload(&(0..ranks).flat_map(sent).collect::<Vec<_>>()).unwrap();
        let mut output = comm.gpu().alloc::<i32>(receives.iter().sum()).unwrap();
        for _ in 0..2 {
            comm.all_to_all_v(&stream, &input, &sends, &mut output, &receives).unwrap();
        }
        // The first operation of its kind, captured in a graph.
        let mut again = comm.gpu().alloc::<i32>(output.len()).unwrap();
        let graph = stream
            .capture(|stream| comm.all_to_all_v(stream, &input, &sends, &mut again, &receives))
            .unwrap();
        graph.launch(&stream).unwrap();
        comm.synchronize(&stream).unwrap();
        let got = |sender: usize| (0..count(sender, rank)).map(move |index| element(sender, rank, index));
        let wanted: Vec<i32> = (0..ranks).flat_map(got).collect();
        assert_eq!(output.to_vec(&stream).unwrap(), wanted);
        assert_eq!(again.to_vec(&stream).unwrap(), wanted);
    });
}

#[test]
fn count_mismatch_names_both_ranks() {
    let errors = run(2, &config(), |comm, stream| {
        // Rank 1 expects one element more from rank 0 than rank 0 sends.
        let (sends, receives) = if comm.rank() == 0 { ([1, 2], [1, 4]) } else { ([4, 5], [3, 5]) };
        let input = comm.gpu().alloc::<i32>(sends.iter().sum()).unwrap();
        let mut output = comm.gpu().alloc::<i32>(receives.iter().sum()).unwrap();
        comm.all_to_all_v(&stream, &input, &sends, &mut output, &receives).unwrap();
        // This rank must wait for the error of the other one.
        let _ = comm.barrier(&stream);
        comm.synchronize(&stream).unwrap_err()
    });
    for error in errors.iter().flatten() {
        assert!(matches!(error.kind(), ErrorKind::CountMismatch { sender: 0, receiver: 1, .. }), "{error}");
    }
}

#[test]
fn first_call_can_be_captured() {
    run(2, &config(), |comm, stream| {
        let counts = [5, 2000];
        let values = vec![comm.rank() as i32 + 1; counts[comm.rank()]];
        let input = comm.gpu().upload(&values).unwrap();
        let mut output = comm.gpu().alloc::<i32>(2005).unwrap();
        let mut swapped = comm.gpu().upload(&[comm.rank() as u8; 6]).unwrap();
        let graph = stream.capture(|stream| {
            comm.all_gather_v(stream, &input, &mut output, &counts)?;
            comm.all_to_all_in_place(stream, &mut swapped)
        });
        let graph = graph.unwrap();
        assert_eq!(output.to_vec(&stream).unwrap(), [0; 2005], "it has run");
        graph.launch(&stream).unwrap();
        comm.synchronize(&stream).unwrap();
        assert_eq!(output.to_vec(&stream).unwrap(), [vec![1; 5], vec![2; 2000]].concat());
        assert_eq!(swapped.to_vec(&stream).unwrap(), [0, 0, 0, 1, 1, 1]);
        graph.launch(&stream).unwrap();
        comm.synchronize(&stream).unwrap();
        assert_eq!(swapped.to_vec(&stream).unwrap()[3 * comm.rank()], comm.rank() as u8, "swapped back");
    });
}

/// Long shares take many slices, and short ones take lines.
#[test]
fn in_place_is_correct_for_every_algorithm() {
    for (ranks, config) in [(1, config()), (2, config()), (3, config()), (3, ll_config()), (4, config())] {
        run(ranks, &config, |comm, stream| {
            for row in Algorithm::ALL.iter().filter(|row| row.collective == Collective::AllToAll) {
                comm.set_algorithm(row.collective, Some(row.name)).unwrap();
                for count in [1, 70, 9001] {
                    exercise::<f32>(&comm, &stream, case(row.collective, count, true));
                }
                assert_eq!(comm.last_algorithm().map(|row| row.name), Some(row.name));
            }
        });
    }
}
