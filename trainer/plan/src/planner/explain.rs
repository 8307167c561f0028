//! Formulas with the numbers of a plan.

use crate::cost::format::{row_of, sections, size, table, time};
use crate::cost::{MAX_USEFUL_DATA_RANKS, bucket_count, effective_bandwidth, ring, tree};
use crate::planner::batch_recipe::scaled_rates;
use crate::planner::counts::{attention_score_elements, expert_combinations};
use crate::planner::report::{PlanReport, StrategyRow};
use unisono_nn::counted;
use unisono_nn::ops::InstructionSets;
use unisono_parallel::data_parallel::ParallelKind;
use unisono_parallel::data_parallel::ShardGroups;
use unisono_parallel::pipeline::{Order, StageCosts, play};

/// Returns all formulas.
pub(crate) fn text(answer: &PlanReport) -> String {
    sections(&[
        ("What data ranks share, and what that costs here", sharing(answer)),
        ("Where each kind of parallelism belongs", placement(answer)),
        ("An all-reduce of all gradients across hosts, by ranks", curve(answer)),
        ("Communication", communication(answer)),
        ("Pipelines", pipelines(answer)),
        ("The mesh", mesh(answer)),
        ("Attention and experts", attention_and_experts(answer)),
        ("Learning rate", learning_rate(answer)),
        ("Instruction sets of this machine", InstructionSets::current().to_string()),
    ])
}

/// Compares synchronization, memory, bandwidth, batch and ease of the four strategies.
fn sharing(answer: &PlanReport) -> String {
    let heading = row_of(["", "waits", "memory", "sent", "grows the batch", "ease"]);
    let row = |row: &StrategyRow| {
        let waits = match row.parallel.kind {
            ParallelKind::Zero3 => "at every layer",
            _ => "once a step",
        };
        let ease = match row.parallel.kind {
            ParallelKind::Replicated => "a call after backward",
            ParallelKind::Zero3 => "layers are announced",
            _ => "an optimizer in shares",
        };
        let (kept, sent) = (size(row.kept_bytes.iter().sum()), size(row.sent_bytes.iter().sum()));
        vec![
            row.parallel.kind.name().to_owned(),
            waits.to_owned(),
            kept,
            sent,
            format!("x {}", row.parallel.data),
            ease.to_owned(),
        ]
    };
    let rows: Vec<_> = std::iter::once(heading).chain(answer.strategies.iter().map(row)).collect();
    let micro = answer.recipe.as_ref().map_or(1, |recipe| recipe.accumulation);
    format!(
        "{}\nall-reduce = reduce-scatter + all-gather: 2 each; zero3 gathers forward and backward of each of {micro} micro-batches{}",
        table(&rows),
        groups(answer)
    )
}

/// Describes the groups within which data ranks divide state, if there are several.
fn groups(answer: &PlanReport) -> String {
    let ShardGroups { shards, groups } =
        ShardGroups::new(answer.shape.shard_ranks, answer.decision.parallel.data);
    if groups == 1 {
        return String::new();
    }
    format!(
        "\nzero1, zero2 and zero3 divide state among {} of a group; {groups} groups add up their shards of gradients, \
         2({groups}-1)/{groups} of 1/{shards} sent by each rank",
        counted(shards, "rank")
    )
}

/// Describes the traffic of each link, and the time of a layer's traffic on it.
fn placement(answer: &PlanReport) -> String {
    let PlanReport { shape, hardware, .. } = answer;
    let layer = shape.bytes.weight * shape.parameters / shape.gpt.layers as f64;
    let rows = (shape.gpt.context * shape.gpt.width * shape.activation_bytes) as f64;
    let kinds = [
        ("tensor", "sums of activations, twice a layer each way", 4.0 * 2.0 * rows, "within a host"),
        ("pipeline", "activations between stages", 2.0 * rows, "across hosts"),
        ("ZeRO-3", "weights, twice, and gradients", 3.0 * layer, "across hosts, behind computing"),
        ("data parallel", "gradients", 2.0 * layer, "anywhere, behind backward"),
    ];
    let row = |(name, what, bytes, place): (&str, &str, f64, &str)| {
        let [in_host, across] =
            [hardware.intra_host, hardware.inter_host].map(|link| time(link.time(1.0, bytes)));
        vec![name.to_owned(), what.to_owned(), size(bytes), in_host, across, place.to_owned()]
    };
    let heading = row_of(["", "what, of one layer and sample", "bytes", "within", "across", "belongs"]);
    table(&std::iter::once(heading).chain(kinds.into_iter().map(row)).collect::<Vec<_>>())
}

/// Describes latency over ranks: linear for rings, logarithmic for trees.
fn curve(answer: &PlanReport) -> String {
    let (link, shape) = (answer.hardware.inter_host, &answer.shape);
    let gradients = shape.bytes.weight * shape.parameters;
    let row = |ranks: usize| {
        let [by_ring, by_trees] =
            [ring(), tree()].map(|algorithm| link.collective(algorithm, ranks, gradients));
        let latency = link.collective(ring(), ranks, 0.0);
        vec![
            ranks.to_string(),
            time(by_ring),
            time(latency),
            time(by_trees),
            time(link.collective(tree(), ranks, 0.0)),
        ]
    };
    let heading = row_of(["ranks", "ring", "of which latency", "PAT", "of which latency"]);
    let rows: Vec<_> = std::iter::once(heading).chain([8, 32, 128, 512, 2048].map(row)).collect();
    let (half, bucket) = (answer.bucket / (link.alpha * link.beta), size(answer.bucket));
    let hosts = within_host(answer, gradients);
    format!(
        "{}\n{hosts}\nbeyond N = D/(alpha beta) = {half:.0} ranks, latency is most of the ring's time for a bucket of {bucket}; \
         beyond {MAX_USEFUL_DATA_RANKS} data ranks little is hidden",
        table(&rows)
    )
}

/// Compares the link between hosts, of which the table is, with that within one.
fn within_host(answer: &PlanReport, gradients: f64) -> String {
    let (hardware, link) = (&answer.hardware, answer.hardware.intra_host);
    let assumption = "each rank with the link to other hosts";
    match hardware.per_host {
        1 => format!("{assumption}, as a host has one rank"),
        ranks => {
            let seconds = link.collective(ring(), ranks, gradients);
            format!("{assumption}; on the {ranks} ranks of one host, a ring takes {}", time(seconds))
        }
    }
}

fn communication(answer: &PlanReport) -> String {
    let (cut, hardware) = (&answer.decision.parallel, &answer.hardware);
    let link = hardware.link(cut.data, cut.tensor);
    let parameters = answer.estimate().parameters();
    let gradients = answer.shape.bytes.weight * parameters;
    let seconds = link.collective(ring(), cut.data, gradients);
    let effective = if cut.data > 1 {
        size(effective_bandwidth(link.beta, cut.data))
    } else {
        "any number of bytes".to_owned()
    };
    format!(
        "2(N-1) alpha + 2(N-1)/N D/beta = {} for {} of gradients on {}; {effective}/s are reduced\n\
         {:.0} buckets of {}, not {:.0} parameters",
        time(seconds),
        size(gradients),
        counted(cut.data, "rank"),
        bucket_count(gradients, answer.bucket),
        size(answer.bucket),
        parameters,
    )
}

/// Plays every schedule with passes of equal length.
fn pipelines(answer: &PlanReport) -> String {
    let micro = answer.recipe.as_ref().map_or(1, |recipe| recipe.accumulation).clamp(8, 256);
    let micro = micro.next_multiple_of(16);
    let played = |order: &Order, ranks: usize| {
        let schedule = order.schedule(ranks, micro, order.usual_chunks())?;
        play(&schedule, &vec![StageCosts::new([1.0; 3], schedule.chunks, 0.0); schedule.stages()])
    };
    let cell = |order: &Order, ranks: usize| match played(order, ranks) {
        Ok(time) => format!("{:.0} %, {}", 100.0 * time.bubble(), time.holdings.activations[0]),
        Err(_) => "-".to_owned(),
    };
    let row = |ranks: usize| {
        let cells = Order::ALL.iter().map(|order| cell(order, ranks));
        std::iter::once(ranks.to_string()).chain(cells).collect()
    };
    let names = Order::ALL.iter().map(|order| order.name.to_owned());
    let heading = std::iter::once("stages".to_owned()).chain(names).collect();
    let rows: Vec<Vec<String>> = std::iter::once(heading).chain([2, 4, 8, 16].map(row)).collect();
    format!(
        "idle with {micro} micro-batches, and the activations that the first rank holds: those of a micro-batch in a stage\n{}",
        table(&rows)
    )
}

fn mesh(answer: &PlanReport) -> String {
    let cut = &answer.decision.parallel;
    let product =
        cut.mesh().map_or_else(|error| error.to_string(), |mesh| counted(mesh.world_size(), "rank"));
    format!(
        "tensor {} x pipeline {} x data {} = {product}\n\
         sequence parallel ranks are the tensor parallel ones; of the data parallel ones {} share each sequence (context) and {} divide the experts; \
         mesh.expert_folded = false divides experts between ranks with different sequences only",
        cut.tensor, cut.pipeline, cut.data, cut.context, cut.expert
    )
}

fn attention_and_experts(answer: &PlanReport) -> String {
    let sequence = answer.shape.gpt.context;
    let row = |ranks: usize| {
        let numbers =
            [true, false].map(|keeps| format!("{:.0}", attention_score_elements(sequence, ranks, keeps)));
        [vec![ranks.to_string()], numbers.to_vec()].concat()
    };
    let heading = row_of(["ranks that share a sequence", "all scores: S^2/N", "computed again: S/N"]);
    let rows: Vec<_> = std::iter::once(heading).chain([1, 2, 4, 8].map(row)).collect();
    let [many, few] = [(160, 6), (16, 2)].map(|(experts, chosen)| expert_combinations(experts, chosen));
    format!(
        "numbers kept of a sequence and head\n{}\n6 of 160 experts can be chosen in {many} ways, 2 of 16 in {few}",
        table(&rows)
    )
}

fn learning_rate(answer: &PlanReport) -> String {
    let data = answer.decision.parallel.data;
    let [root, straight] = scaled_rates(data);
    format!(
        "a batch {data} times that of one rank: x {root:.2} for Adam (schedule.lr_scale = \"sqrt\"), x {straight:.0} for plain descent (\"linear\"), \
         and no more beyond the critical batch size, where larger batches no longer save steps"
    )
}
