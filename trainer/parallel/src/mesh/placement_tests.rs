//! Pictures and warnings of meshes on artificial hosts.

use super::location::LOCATION_OF_TEST;
use super::*;
use unisono_nn::testing::run_ranks;
use unisono_transports::testing::warnings::Warnings;

fn mesh(world: usize, [tensor, pipeline, sequence_data, expert]: [usize; 4]) -> Mesh {
    let degrees = Degrees { tensor, pipeline, sequence_data, expert, ..Degrees::default() };
    Mesh::new(world, degrees).unwrap()
}

fn with_order(mesh: Mesh, order: &[Axis]) -> Mesh {
    let order = AxisOrder::new(order).unwrap();
    Mesh::new(mesh.world_size(), Degrees { order, ..mesh.degrees() }).unwrap()
}

/// Returns the locations of ranks on these hosts, with no NUMA domains.
fn on_hosts(hosts: impl IntoIterator<Item = usize>) -> Vec<Location> {
    let location = |host| Location { host: HostId(host as u64), numa_domain: None };
    hosts.into_iter().map(location).collect()
}

const TENSOR_COST: &str = "each layer waits for its sums twice forward and twice back";

#[test]
fn tensor_groups_that_cross_hosts_are_found() {
    let hosts = [0, 0, 0, 1, 1, 1];
    assert!(mesh(6, [3, 1, 1, 1]).crossing_groups(GroupKind::Tensor, &hosts).is_empty());
    assert_eq!(mesh(6, [2, 1, 1, 1]).crossing_groups(GroupKind::Tensor, &hosts), [[2, 3]]);
    let warning = mesh(6, [2, 1, 1, 1]).placement_warning(&on_hosts(hosts)).unwrap();
    let expected = format!(
        "1 tensor group leave a host, as ranks [2, 3]: {TENSOR_COST}; no mesh.order keeps more of them within a host"
    );
    assert_eq!(warning, expected);
}

#[test]
fn order_that_keeps_tensor_groups_on_hosts_is_named() {
    use Axis::{BatchData, Pipeline, SequenceData, Tensor};
    let even = on_hosts((0..64).map(|rank| rank / 8));
    let usual = mesh(64, [4, 2, 2, 1]);
    assert_eq!(usual.placement_warning(&even), None);
    let inside_out = with_order(usual, &[Pipeline, BatchData, SequenceData, Tensor]);
    let warning = inside_out.placement_warning(&even).unwrap();
    assert_eq!(
        warning,
        format!(
            "16 tensor groups leave a host (0 with the order below), as ranks [0, 16, 32, 48]: {TENSOR_COST}; \
             32 sequence_data groups leave a host (0 with the order below), as ranks [0, 8]: attention of \
             each layer waits for keys and values; \
             mesh.order=tensor,sequence_data,batch_data,pipeline keeps more of them within a host"
        )
    );
    // Ranks dealt out to hosts in turn: neighbors are 8 ranks apart.
    let round_robin: Vec<Location> = on_hosts((0..64).map(|rank| rank % 8));
    let order = usual.better_order(&round_robin).unwrap();
    let moved = with_order(usual, &order.axes());
    assert_eq!(moved.crossing_groups(GroupKind::Tensor, &round_robin).len(), 0);
    assert!(moved.placement_warning(&round_robin).is_none_or(|text| !text.contains("tensor group")));
}

#[test]
fn uneven_hosts_and_numa_domains_are_told_apart() {
    // A host of 6 ranks between hosts of 8 moves all later groups by two.
    let uneven = on_hosts((0..22).map(|rank| [0, 1, 2][usize::from(rank >= 8) + usize::from(rank >= 14)]));
    let warning = mesh(20, [4, 1, 1, 1]).placement_warning(&uneven[..20]).unwrap();
    assert!(warning.starts_with("1 tensor group leave a host, as ranks [12, 13, 14, 15]"), "{warning}");
    // Two domains of four cores on each host, and tensor groups of all eight.
    let domains =
        |rank: usize| Location { host: HostId(rank as u64 / 8), numa_domain: Some(rank as u32 / 4 % 2) };
    let domains: Vec<Location> = (0..16).map(domains).collect();
    let warning = mesh(16, [8, 1, 1, 1]).placement_warning(&domains).unwrap();
    assert!(warning.starts_with("2 tensor groups leave a NUMA domain, as ranks [0, 1, 2, 3, 4"), "{warning}");
    assert_eq!(mesh(16, [4, 1, 1, 1]).placement_warning(&domains), None);
    // Context and experts matter only where an order would keep them.
    assert_eq!(mesh(16, [1, 1, 16, 1]).placement_warning(&domains), None);
    let of_experts = with_order(
        mesh(16, [1, 2, 1, 8]),
        &[Axis::Pipeline, Axis::Tensor, Axis::SequenceData, Axis::BatchData],
    );
    let warning = of_experts.placement_warning(&domains).unwrap();
    assert!(warning.starts_with("2 expert groups leave a host (0 with the order below)"), "{warning}");
}

/// Returns the warnings of each rank when the groups of a mesh are created, with rank `r` at
/// `locations[r]`.
fn warnings_of_ranks(mesh: Mesh, locations: &[Location]) -> Vec<Vec<String>> {
    run_ranks(locations.len(), |world| {
        LOCATION_OF_TEST.set(Some(locations[world.rank()]));
        let warnings = Warnings::of("mesh::placement");
        tracing::subscriber::with_default(warnings.clone(), || MeshGroups::new(&world, mesh).map(drop))
            .unwrap();
        warnings.texts()
    })
}

#[test]
fn first_rank_warns_of_placement_when_groups_are_created() {
    let hosts = on_hosts([0, 0, 0, 1, 1, 1]);
    let crossing = mesh(6, [2, 1, 1, 1]);
    let warnings = warnings_of_ranks(crossing, &hosts);
    assert_eq!(warnings[0], crossing.placement_warning(&hosts).as_slice());
    assert!(warnings[0][0].starts_with("1 tensor group leave a host, as ranks [2, 3]"), "{warnings:?}");
    assert!(warnings[1..].iter().all(Vec::is_empty), "{warnings:?}");
    let domains: Vec<Location> =
        (0..4).map(|rank| Location { host: HostId(7), numa_domain: Some(rank / 2) }).collect();
    assert!(warnings_of_ranks(mesh(4, [2, 1, 1, 1]), &domains).iter().all(Vec::is_empty));
    let warnings = warnings_of_ranks(mesh(4, [4, 1, 1, 1]), &domains);
    assert!(warnings[0][0].starts_with("1 tensor group leave a NUMA domain"), "{warnings:?}");
}

#[test]
fn factors_multiply_to_the_world_with_experts_folded_or_not() {
    let degrees = Degrees { tensor: 2, pipeline: 2, sequence_data: 2, expert: 4, ..Degrees::default() };
    let mesh_with = |expert_folded| Mesh::new(64, Degrees { expert_folded, ..degrees }).unwrap();
    let (folded, unfolded) = (mesh_with(true), mesh_with(false));
    assert_eq!(folded.factors(), [("tensor", 2), ("sequence", 2), ("batch", 8), ("pipeline", 2)]);
    let five = [("tensor", 2), ("sequence", 2), ("batch", 2), ("expert", 4), ("pipeline", 2)];
    assert_eq!(unfolded.factors(), five);
    for mesh in [folded, unfolded] {
        assert_eq!(mesh.factors().iter().map(|(_, size)| size).product::<usize>(), 64);
        assert_eq!(mesh.groups(GroupKind::Expert).len() * 4, 64);
        assert_eq!(mesh.expert_data_size(), 4, "16 data ranks hold each expert 4 times");
    }
    assert_eq!(
        folded.summary(),
        "64 ranks = tensor 2 x data 16 x pipeline 2 (data: sequence 2 x batch 8), expert 4 within data"
    );
    assert_eq!(
        unfolded.summary(),
        "64 ranks = tensor 2 x data 16 x pipeline 2 (data: sequence 2 x batch 2 x expert 4)"
    );
    // Folded groups may have ranks that share sequences; others have different ones.
    assert_eq!(folded.group(GroupKind::Expert, 0), [0, 2, 4, 6]);
    assert_eq!(unfolded.group(GroupKind::Expert, 0), [0, 4, 8, 12]);
}

#[test]
fn mesh_displays_as_grid() {
    let drawn = mesh(16, [2, 2, 2, 1]).to_string();
    let expected = "\
16 ranks = tensor 2 x data 4 x pipeline 2 (data: sequence 2 x batch 2)
                    stage 0  stage 1
batch 0 sequence 0  [0 1]    [8 9]
batch 0 sequence 1  [2 3]    [10 11]
batch 1 sequence 0  [4 5]    [12 13]
batch 1 sequence 1  [6 7]    [14 15]
";
    assert_eq!(drawn, expected);
    let large = mesh(1 << 24, [1, 1, 1, 1]).to_string();
    assert_eq!((large.lines().count(), large.lines().last()), (20, Some("data 16777215  [16777215]")));
    let plain = mesh(2, [1, 1, 1, 1]).to_string();
    assert_eq!(
        plain,
        "2 ranks = tensor 1 x data 2 x pipeline 1\n        stage 0\ndata 0  [0]\ndata 1  [1]\n"
    );
}

#[test]
fn mesh_of_64_ranks_on_8_hosts_is_drawn() {
    let drawn = MeshOnHosts::even(mesh(64, [4, 2, 1, 1]), 8).unwrap().to_string();
    let expected = "\
64 ranks = tensor 4 x data 8 x pipeline 2, on 8 hosts
        stage 0           stage 1
data 0  [0 1 2 3] h0      [32 33 34 35] h4
data 1  [4 5 6 7] h0      [36 37 38 39] h4
data 2  [8 9 10 11] h1    [40 41 42 43] h5
data 3  [12 13 14 15] h1  [44 45 46 47] h5
data 4  [16 17 18 19] h2  [48 49 50 51] h6
data 5  [20 21 22 23] h2  [52 53 54 55] h6
data 6  [24 25 26 27] h3  [56 57 58 59] h7
data 7  [28 29 30 31] h3  [60 61 62 63] h7
tensor: 16 groups of 4, each within a host
data: 8 groups of 8, each on 4 hosts
pipeline: 32 groups of 2, each on 2 hosts
";
    assert_eq!(drawn, expected);
    let first = with_order(mesh(8, [4, 2, 1, 1]), &AxisOrder::PIPELINE_FIRST.axes());
    let drawn = MeshOnHosts::new(first, &[7, 7, 7, 9, 9, 9, 9, 9].map(HostId)).to_string();
    let expected = "\
8 ranks = tensor 4 x data 1 x pipeline 2, order tensor,pipeline,sequence_data,batch_data, on 2 hosts
        stage 0          stage 1
data 0  [0 1 2 3] h0+h1  [4 5 6 7] h1
tensor: 2 groups of 4, each on 1 to 2 hosts
pipeline: 4 groups of 2, each on 1 to 2 hosts
";
    assert_eq!(drawn, expected);
    assert!(MeshOnHosts::even(first, 0).is_err());
}
