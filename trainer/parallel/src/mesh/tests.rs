use super::*;
use std::collections::{HashMap, HashSet};
use std::ops::Range;
use unisono::{Communicator, Sum};
use unisono_nn::pass::Seeds;
use unisono_nn::testing::run_ranks;

/// Returns every valid mesh of `worlds`, with every order of axes.
fn meshes(worlds: Range<usize>) -> impl Iterator<Item = Mesh> {
    worlds.flat_map(|world| {
        let degrees = divisors(world).flat_map(move |tensor| {
            divisors(world / tensor).flat_map(move |pipeline| {
                divisors(world / tensor / pipeline).map(move |sequence| [tensor, pipeline, sequence])
            })
        });
        degrees.flat_map(move |degrees| AxisOrder::all().map(move |order| mesh(world, degrees, order)))
    })
}

fn divisors(number: usize) -> impl Iterator<Item = usize> {
    (1..=number).filter(move |divisor| number.is_multiple_of(*divisor))
}

fn mesh(world: usize, [tensor, pipeline, sequence_data]: [usize; 3], order: AxisOrder) -> Mesh {
    Mesh::new(world, Degrees { tensor, pipeline, sequence_data, order, ..Degrees::default() }).unwrap()
}

fn usual(world: usize, degrees: [usize; 3]) -> Mesh {
    mesh(world, degrees, AxisOrder::default())
}

/// Returns the formulas of ranks for the usual order, and with neighboring stages.
fn formulas(mesh: &Mesh, r: usize) -> Option<Coordinates> {
    let Degrees { tensor: tp, pipeline: pp, sequence_data: sdp, order, .. } = mesh.degrees();
    let dp = mesh.world_size() / (tp * pp);
    let (data, pipeline) = match order {
        AxisOrder::PIPELINE_FIRST => ((r / tp) / pp, (r / tp) % pp),
        order if order == AxisOrder::default() => ((r / tp) % dp, r / (tp * dp)),
        _ => return None,
    };
    Some(Coordinates { tensor: r % tp, sequence_data: data % sdp, batch_data: data / sdp, pipeline })
}

#[test]
fn ranks_and_coordinates_round_trip() {
    let (mut seen, mut with_formula) = (0, 0);
    for mesh in meshes(1..33) {
        let axes = mesh.degrees().order.axes();
        for r in 0..mesh.world_size() {
            let coordinates = mesh.coordinates(r);
            assert_eq!(mesh.rank(coordinates), r, "{mesh:?}");
            if let Some(expected) = formulas(&mesh, r) {
                with_formula += 1;
                let data = expected.batch_data * mesh.degrees().sequence_data + expected.sequence_data;
                assert_eq!(
                    (coordinates, mesh.data_rank(coordinates)),
                    (expected, data),
                    "rank {r} of {mesh:?}"
                );
            }
            let mut stride = 1;
            for axis in axes {
                assert!(coordinates.on(axis) < mesh.axis_size(axis));
                if coordinates.on(axis) > 0 {
                    assert_eq!(
                        mesh.rank(coordinates.with(axis, coordinates.on(axis) - 1)),
                        r - stride,
                        "{axis:?}, {mesh:?}"
                    );
                }
                stride *= mesh.axis_size(axis);
            }
        }
        seen += 1;
    }
    assert_eq!(seen, 24 * 622);
    assert_eq!(with_formula, 2 * meshes(1..33).map(|mesh| mesh.world_size()).sum::<usize>() / 24);
}

#[test]
fn orders_have_each_axis_once() {
    let orders: HashSet<AxisOrder> = AxisOrder::all().collect();
    assert_eq!(orders.len(), 24);
    assert!(orders.contains(&AxisOrder::default()) && orders.contains(&AxisOrder::PIPELINE_FIRST));
    let refused = |axes: &[Axis]| AxisOrder::new(axes).unwrap_err().to_string();
    assert_eq!(refused(&[Axis::Tensor; 4]), "mesh.order names each axis once, and not sequence_data");
    let five = [&Axis::ALL[..], &[Axis::Tensor]].concat();
    assert_eq!(refused(&five), "mesh.order names 5 axes: a mesh has 4");
}

#[test]
fn data_ranks_are_indices_in_data_groups() {
    for mesh in meshes(1..33) {
        for group in mesh.groups(GroupKind::Data) {
            let ranks = group.iter().map(|&rank| mesh.data_rank(mesh.coordinates(rank)));
            assert!(ranks.eq(0..group.len()), "{mesh:?}");
        }
        for group in mesh.groups(GroupKind::SequenceData) {
            let parts = group.iter().map(|&rank| mesh.coordinates(rank).sequence_data);
            assert!(parts.eq(0..group.len()), "{mesh:?}");
        }
    }
}

#[test]
fn only_dividing_degrees_are_accepted() {
    for world in 1..17 {
        let mut taken = 0;
        for (tensor, pipeline) in
            (1..=world).flat_map(|tensor| (1..=world).map(move |pipeline| (tensor, pipeline)))
        {
            for sequence_data in 1..=world {
                let degrees = Degrees { tensor, pipeline, sequence_data, ..Degrees::default() };
                taken += usize::from(Mesh::new(world, degrees).is_ok());
            }
        }
        assert_eq!(24 * taken, meshes(world..world + 1).count());
    }
}

#[test]
fn golden_table() {
    let usual = usual(16, [2, 2, 2]);
    let first = mesh(16, [2, 2, 2], AxisOrder::PIPELINE_FIRST);
    // Golden values: rank, then tensor, sequence, batch and stage by default, then with pipeline
    // first.
    let golden = [
        (0, [0, 0, 0, 0], [0, 0, 0, 0]),
        (1, [1, 0, 0, 0], [1, 0, 0, 0]),
        (2, [0, 1, 0, 0], [0, 0, 0, 1]),
        (3, [1, 1, 0, 0], [1, 0, 0, 1]),
        (4, [0, 0, 1, 0], [0, 1, 0, 0]),
        (7, [1, 1, 1, 0], [1, 1, 0, 1]),
        (8, [0, 0, 0, 1], [0, 0, 1, 0]),
        (11, [1, 1, 0, 1], [1, 0, 1, 1]),
        (12, [0, 0, 1, 1], [0, 1, 1, 0]),
        (15, [1, 1, 1, 1], [1, 1, 1, 1]),
    ];
    let row = |mesh: Mesh, rank| {
        let coordinates = mesh.coordinates(rank);
        [coordinates.tensor, coordinates.sequence_data, coordinates.batch_data, coordinates.pipeline]
    };
    for (rank, as_usual, pipeline_first) in golden {
        assert_eq!((row(usual, rank), row(first, rank)), (as_usual, pipeline_first), "rank {rank}");
    }
    assert_eq!(usual.groups(GroupKind::Pipeline)[1], [1, 9]);
    assert_eq!(first.groups(GroupKind::Pipeline)[1], [1, 3]);
    assert_eq!(usual.groups(GroupKind::BatchData)[2], [2, 6]);
    assert_eq!(usual.groups(GroupKind::ModelAndSequenceData)[1], [4, 5, 6, 7, 12, 13, 14, 15]);
}

#[test]
fn groups_partition_the_world() {
    use GroupKind::*;
    let with_experts = |mesh: Mesh| {
        let degrees = move |(expert, expert_folded)| Degrees { expert, expert_folded, ..mesh.degrees() };
        let choices = divisors(mesh.data_size()).flat_map(|expert| [(expert, true), (expert, false)]);
        choices.filter_map(move |pair| Mesh::new(mesh.world_size(), degrees(pair)).ok())
    };
    for mesh in meshes(1..17).flat_map(with_experts) {
        let coordinates: Vec<Coordinates> =
            (0..mesh.world_size()).map(|rank| mesh.coordinates(rank)).collect();
        let data = |rank: usize| mesh.data_rank(coordinates[rank]);
        for kind in GroupKind::ALL {
            let same = |a: usize, b: usize| {
                let tensor = coordinates[a].tensor == coordinates[b].tensor;
                let stage = coordinates[a].pipeline == coordinates[b].pipeline;
                let sequence = coordinates[a].sequence_data == coordinates[b].sequence_data;
                let batch = coordinates[a].batch_data == coordinates[b].batch_data;
                match kind {
                    World => true,
                    Tensor => data(a) == data(b) && stage,
                    Data => tensor && stage,
                    Pipeline => tensor && data(a) == data(b),
                    SequenceData => tensor && stage && batch,
                    BatchData => tensor && stage && sequence,
                    TensorAndData => stage,
                    TensorAndSequenceData => stage && batch,
                    ModelAndSequenceData => batch,
                    Expert if mesh.degrees().expert_folded => {
                        tensor && stage && data(a) / mesh.degrees().expert == data(b) / mesh.degrees().expert
                    }
                    Expert => {
                        let group = |rank: usize| coordinates[rank].batch_data / mesh.degrees().expert;
                        tensor && stage && sequence && group(a) == group(b)
                    }
                    ExpertData => {
                        tensor
                            && stage
                            && mesh.expert_rank(coordinates[a]) == mesh.expert_rank(coordinates[b])
                    }
                }
            };
            let groups = mesh.groups(kind);
            let mut members: Vec<usize> = groups.concat();
            members.sort_unstable();
            assert!(members.into_iter().eq(0..mesh.world_size()), "{kind:?} of {mesh:?}");
            for group in groups {
                assert!(group.is_sorted());
                assert!((0..mesh.world_size()).all(|rank| group.contains(&rank) == same(group[0], rank)));
                assert_eq!(mesh.group(kind, group[0]), group);
            }
        }
    }
}

#[test]
fn each_distinct_group_is_split_once() {
    for mesh in meshes(1..33) {
        let lists = |kind| mesh.groups(kind).into_iter().filter(|group| group.len() > 1);
        let distinct: HashSet<Vec<usize>> = GroupKind::ALL.into_iter().flat_map(lists).collect();
        let made = GroupKind::ALL
            .into_iter()
            .filter(|&kind| mesh.canonical_kind(kind) == kind)
            .flat_map(lists)
            .count();
        assert_eq!(made, distinct.len(), "{mesh:?}");
    }
}

#[test]
fn invalid_degrees_are_rejected_with_numbers() {
    let refused = |world, tensor, pipeline, sequence_data| {
        let degrees = Degrees { tensor, pipeline, sequence_data, ..Degrees::default() };
        Mesh::new(world, degrees).unwrap_err().to_string()
    };
    assert_eq!(
        refused(8, 3, 1, 1),
        "a world of 8 ranks cannot be split into tensor = 3 times pipeline = 1: their product must divide it"
    );
    assert_eq!(
        refused(12, 2, 1, 4),
        "sequence_data = 4 does not divide the data parallel degree 6, where 6 = 12 ranks / (tensor 2 * pipeline 1)"
    );
    assert_eq!(refused(4, 0, 1, 1), "tensor = 0: a degree is at least 1");
    assert!(refused(4, usize::MAX, 2, 1).contains("must divide it"));
    let error = usual(8, [4, 1, 1]).check_fits_hosts(2).unwrap_err().to_string();
    assert_eq!(
        error,
        "tensor = 4 ranks do not fit on a host of 2: a tensor parallel group stays on one host"
    );
    usual(8, [4, 1, 1]).check_fits_hosts(4).unwrap();
}

#[test]
fn communicators_have_the_ranks_of_their_groups() {
    let cases = [
        (1, [1, 1, 1]),
        (4, [1, 1, 1]),
        (4, [2, 1, 2]),
        (6, [3, 2, 1]),
        (8, [2, 2, 2]),
        (8, [2, 2, 1]),
        (8, [1, 2, 2]),
    ];
    for ((world, degrees), order) in
        cases.into_iter().flat_map(|case| AxisOrder::all().step_by(5).map(move |order| (case, order)))
    {
        let mesh = mesh(world, degrees, order);
        run_ranks(world, |comm| assert_groups(&comm, mesh));
    }
}

fn assert_groups(world: &Communicator, mesh: Mesh) {
    let groups = MeshGroups::new(world, mesh).unwrap();
    assert_eq!(groups.coordinates(), mesh.coordinates(world.rank()));
    let lists = GroupKind::ALL.map(|kind| mesh.group(kind, world.rank()));
    let distinct: HashSet<_> = lists.into_iter().filter(|list| list.len() > 1).collect();
    assert_eq!(groups.communicator_count(), distinct.len());
    for kind in GroupKind::ALL {
        let members = mesh.group(kind, world.rank());
        assert_eq!(groups.size(kind), members.len(), "{kind:?}");
        assert_eq!(members[groups.rank(kind)], world.rank());
        let Some(comm) = groups.get(kind) else { continue };
        let mut found = vec![0u64; members.len()];
        comm.all_gather(&[world.rank() as u64], &mut found).unwrap();
        assert!(found.iter().map(|&rank| rank as usize).eq(members), "{kind:?}");
        let mut sum = [1u32];
        comm.all_reduce(&mut sum, Sum).unwrap();
        assert_eq!(sum[0] as usize, found.len());
    }
    world.barrier().unwrap();
}

#[test]
fn mesh_of_other_world_size_is_rejected() {
    let world = Communicator::local(1).unwrap().remove(0);
    let error = MeshGroups::new(&world, usual(2, [2, 1, 1])).err().unwrap();
    assert_eq!(error.to_string(), "a mesh of 2 ranks over a communicator of 1");
}

#[test]
fn seeds_are_equal_only_where_required() {
    let mesh = usual(16, [2, 2, 2]);
    let (mut shared, mut split) = (HashMap::new(), HashSet::new());
    for rank in 0..mesh.world_size() {
        let coordinates = mesh.coordinates(rank);
        let seeding = SeedSource::new(7, coordinates);
        for phase in [Phase::Training, Phase::Validation, Phase::Test] {
            for (step, micro_batch) in [(0, 0), (0, 1), (1, 0), (1 << 40, 0)] {
                let Seeds { shared: group_seed, per_rank: rank_seed } =
                    seeding.seeds_for(phase, step, micro_batch);
                // Stages of a pipeline have different layers, whose random operations have names.
                let tokens = (mesh.data_rank(coordinates), phase, step, micro_batch);
                assert_eq!(*shared.entry(tokens).or_insert(group_seed), group_seed);
                let is_new = split.insert(rank_seed);
                assert_eq!(is_new, coordinates.pipeline == 0, "two ranks or passes split alike");
            }
        }
    }
    assert_eq!((shared.len(), split.len()), (4 * 3 * 4, 2 * 4 * 3 * 4));
    let distinct: HashSet<u64> = shared.into_values().collect();
    assert_eq!(distinct.len(), 4 * 3 * 4);
    assert!(distinct.is_disjoint(&split));
}

#[test]
fn seeds_do_not_depend_on_history() {
    let coordinates = Coordinates::default();
    let (fresh, used) = (SeedSource::new(1, coordinates), SeedSource::new(1, coordinates));
    for step in 0..10 {
        used.seeds_for(Phase::Training, step, 0);
    }
    assert_eq!(fresh.seeds_for(Phase::Training, 10, 3), used.seeds_for(Phase::Training, 10, 3));
    assert_ne!(
        fresh.seeds_for(Phase::Training, 10, 3),
        SeedSource::new(2, coordinates).seeds_for(Phase::Training, 10, 3)
    );
}
