//! Checkpoints move between meshes without changing a bit.

use super::*;
use crate::data::Position;
use unisono::Communicator;
use unisono_nn::random::hash_numbers;
use unisono_parallel::mesh::{Axis, AxisOrder};
use unisono_parallel::testing::{collect_shards, merge_shards};

/// Number of ranks, tensor parallel degree, and strategy.
type Shape = (usize, usize, ParallelKind);

fn shaped(folder: &Path, (_, tensor, kind): Shape) -> Config {
    let (kind, tensor) = (format!("strategy.kind={}", kind.name()), format!("mesh.tensor={tensor}"));
    let tiny = ["model.width=16", "model.heads=4", "model.layers=1", "model.context=8"];
    config(folder, &[&tiny[..], &[&kind, &tensor, "schedule.steps=3", "data.micro_batch=1"]].concat())
}

/// Returns hashes of all weights and moments, and the position of the run.
pub(super) fn state(runs: Vec<Run>) -> (u64, u64, Position) {
    let (step, position) = (runs[0].train_step, runs[0].sampler.position());
    let bits = merge_shards(runs.into_iter().map(|mut run| {
        let inventory = Arc::clone(&run.inventory);
        collect_shards(&mut *run.strategy, &inventory)
    }));
    let number = |((id, place), bits): (&(unisono_nn::parameter::ParameterId, usize), &Vec<u32>)| {
        let bits: Vec<u64> = bits.iter().map(|&bits| u64::from(bits)).collect();
        hash_numbers(&[id.0 as u64, *place as u64, hash_numbers(&bits)])
    };
    (hash_numbers(&bits.iter().map(number).collect::<Vec<_>>()), step, position)
}

/// Saves a run of each shape after `steps` steps and loads it in the next shape, with equal state.
///
/// A shape is a number of ranks and the settings that `configure` adds to a configuration.
pub(super) fn assert_checkpoints_move(
    shapes: &[(usize, &str)],
    steps: usize,
    configure: impl Fn(&Path, &str) -> Config,
) {
    for ((ranks, changes), (next_ranks, next_changes)) in shapes.iter().zip(shapes.iter().cycle().skip(1)) {
        let folder = folder();
        let saving = configure(folder.path(), changes);
        let saved_state = state(run_ranks(*ranks, |world| {
            let mut run = Run::new(&saving, world).unwrap();
            (0..steps).for_each(|_| assert!(run.step().unwrap().loss.is_finite()));
            run.save().unwrap();
            run
        }));
        let loading = configure(folder.path(), &format!("{next_changes} checkpoint.resume=true"));
        let loaded_state = state(run_ranks(*next_ranks, |world| Run::new(&loading, world).unwrap()));
        assert_eq!(loaded_state, saved_state, "{changes} to {next_changes}");
    }
}

fn saved(folder: &Path, shape: Shape) -> (u64, u64, Position) {
    let config = shaped(folder, shape);
    state(run_ranks(shape.0, |world| {
        let mut run = Run::new(&config, world).unwrap();
        (0..3).map(|_| run.step().unwrap()).for_each(|taken| assert!(taken.loss.is_finite()));
        run.save().unwrap();
        run
    }))
}

fn loaded(folder: &Path, shape: Shape) -> (u64, u64, Position) {
    let config = Config {
        checkpoint: crate::config::Checkpoint { resume: true, ..shaped(folder, shape).checkpoint },
        ..shaped(folder, shape)
    };
    state(run_ranks(shape.0, |world| Run::new(&config, world).unwrap()))
}

#[test]
fn checkpoints_are_exact_across_meshes() {
    use ParallelKind::{Replicated, Zero1, Zero2, Zero3};
    let pairs: [(Shape, Shape); 13] = [
        ((1, 1, Replicated), (4, 2, Zero3)),
        ((2, 1, Zero1), (3, 1, Zero2)),
        ((3, 1, Zero3), (1, 1, Replicated)),
        ((4, 1, Zero2), (2, 2, Zero1)),
        ((2, 2, Replicated), (6, 1, Zero3)),
        ((4, 2, Zero3), (4, 4, Zero1)),
        ((6, 3, Zero1), (2, 2, Zero3)),
        ((4, 4, Zero2), (3, 1, Zero1)),
        ((3, 3, Zero3), (4, 2, Zero2)),
        ((6, 2, Zero1), (6, 3, Zero3)),
        ((4, 2, Replicated), (1, 1, Zero3)),
        ((6, 1, Zero3), (6, 2, Zero3)),
        // The vocabulary of 257 is padded on two ranks, and the mesh is the same again.
        ((4, 2, Zero3), (4, 2, Zero3)),
    ];
    for (saved_shape, loaded_shape) in pairs {
        let folder = folder();
        let saved_state = saved(folder.path(), saved_shape);
        assert_eq!(saved_state.1, 3);
        assert_eq!(loaded(folder.path(), loaded_shape), saved_state, "{saved_shape:?} to {loaded_shape:?}");
    }
}

#[test]
fn checkpoint_of_other_data_is_rejected() {
    let folder = folder();
    let shape = (1, 1, ParallelKind::Replicated);
    let saved_state = saved(folder.path(), shape);
    let resume = |change: &dyn Fn(String) -> String| {
        let config = shaped(folder.path(), shape);
        let path = folder.path().join("text.txt");
        let text = change(std::fs::read_to_string(&path).unwrap());
        std::fs::write(&path, text).unwrap();
        let mut run = Run::new(&config, Communicator::local(1).unwrap().remove(0)).unwrap();
        run.load(&crate::checkpoint::latest(&folder.path().join("checkpoints")).unwrap())
    };
    resume(&|text| text).unwrap();
    for change in
        [|text: String| text.replacen("line 7 ", "lime 7 ", 1), |text: String| text[500..].to_owned()]
    {
        let error = resume(&change).unwrap_err().to_string();
        assert!(error.contains("learning from other data") && error.contains("hash"), "{error}");
    }
    assert_eq!(loaded(folder.path(), shape), saved_state, "and the same data is known again");
}

/// Eight ranks on three axes.
const CUBE: &str =
    "mesh.tensor=2 mesh.sequence_data=2 strategy.kind=zero2 model.dropout=0.1 schedule.steps=3";

fn changed(folder: &Path, changes: &str) -> Config {
    let tiny = "model.width=16 model.heads=4 model.layers=2 model.context=8 data.micro_batch=1";
    config(folder, &tiny.split_whitespace().chain(changes.split_whitespace()).collect::<Vec<_>>())
}

#[test]
fn orders_of_axes_take_the_same_steps() {
    let folder = folder();
    let losses_of = |order: AxisOrder| {
        let text = format!("{CUBE} mesh.order={order}");
        train_on_threads(8, &changed(folder.path(), &text)).unwrap()
    };
    let usual = losses_of(AxisOrder::default());
    for order in AxisOrder::all() {
        let found = losses_of(order);
        let place = |axis| order.axes().iter().position(|&right| right == axis);
        if place(Axis::SequenceData) < place(Axis::BatchData) {
            assert_eq!(bits(&found).0, bits(&usual).0, "{order}: the same sums in the same order");
        }
        let is_near = |(left, right): (&f64, &f64)| (left / right - 1.0).abs() < 1e-5;
        assert!(found.losses.iter().zip(&usual.losses).all(is_near), "{order}: {found:?}, not {usual:?}");
    }
}

#[test]
fn checkpoints_move_between_orders_of_axes() {
    let shapes = [
        (8, "mesh.tensor=2 mesh.pipeline=2 mesh.order=batch_data,pipeline,sequence_data,tensor"),
        (
            8,
            "mesh.tensor=2 mesh.sequence_data=2 strategy.kind=zero3 mesh.order=batch_data,sequence_data,tensor,pipeline",
        ),
        (4, "mesh.sequence_data=2 strategy.kind=zero1 mesh.order=batch_data,sequence_data,tensor,pipeline"),
        (4, "mesh.pipeline=2 strategy.kind=zero3 mesh.order=pipeline,tensor,batch_data,sequence_data"),
    ];
    assert_checkpoints_move(&shapes, 3, changed);
}
