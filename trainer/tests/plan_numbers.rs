//! Numbers in the tables of `plan` and `explain`, against the formulas written out here.

#[path = "support/output.rs"]
mod output;

use output::output_text;

/// Rows of cells with their heading.
struct Table {
    heading: Vec<String>,
    rows: Vec<Vec<String>>,
}

impl Table {
    /// Finds the table whose heading has all cells of `heading`, in this order.
    fn find(text: &str, heading: &[&str]) -> Self {
        let split = |line: &str| -> Vec<String> {
            line.split("  ").map(str::trim).filter(|cell| !cell.is_empty()).map(str::to_owned).collect()
        };
        let mut lines = text.lines().skip_while(|line| split(line) != heading);
        let heading = split(lines.next().unwrap_or_else(|| panic!("no table of {heading:?} in\n{text}")));
        let rows: Vec<_> = lines.map(split).take_while(|cells| cells.len() > 1).collect();
        // The first column may have no name.
        let unnamed = usize::from(rows[0].len() > heading.len());
        let heading = vec![String::new(); unnamed].into_iter().chain(heading).collect();
        Self { heading, rows }
    }

    /// Returns the number below `column` in the row that begins with `name`.
    fn number(&self, name: &str, column: &str) -> f64 {
        let row = self.rows.iter().find(|row| row[0].trim_end_matches(" <") == name);
        let row = row.unwrap_or_else(|| panic!("no row of {name} in {:?}", self.rows));
        let index = self.heading.iter().position(|cell| cell == column);
        number(&row[index.unwrap_or_else(|| panic!("no {column} in {:?}", self.heading))])
    }

    /// Checks a number, which has three digits.
    fn near(&self, name: &str, column: &str, expected: f64) {
        let found = self.number(name, column);
        let apart = (found - expected).abs();
        assert!(apart <= 0.006 * expected.abs() + 1e-12, "{name}, {column}: {found}, not {expected}");
    }
}

/// Parses a number with a unit.
fn number(cell: &str) -> f64 {
    let cell = cell.trim_start_matches("x ");
    let (digits, unit) = cell.split_once(' ').unwrap_or((cell, ""));
    let factor = match unit {
        "" | "B" | "s" => 1.0,
        "kB" => 1e3,
        "MB" => 1e6,
        "GB" => 1e9,
        "ms" => 1e-3,
        "us" => 1e-6,
        "%" => 1e-2,
        other => panic!("the unit `{other}` of `{cell}`"),
    };
    digits.parse::<f64>().unwrap_or_else(|_| panic!("`{cell}` is no number")) * factor
}

const TOKENS: usize = 4_194_304;
const SEQUENCE: f64 = 4096.0;
const BUCKET: f64 = 25.0 * 1024.0 * 1024.0;

/// Returns the number at `path` of a plan.
fn at(plan: &serde_json::Value, path: &[&str]) -> f64 {
    let value = path.iter().fold(plan, |value, key| &value[key]);
    value.as_f64().unwrap_or_else(|| panic!("no {path:?} in {plan}"))
}

/// Runs `plan --json`.
fn planned(arguments: &[&str]) -> serde_json::Value {
    serde_json::from_str(&output_text(&[&["plan", "--json"], arguments].concat())).expect("JSON")
}

/// Returns the seconds of communication that computing hides, from the seconds of a pass over all
/// parameters, and of one collective. A step reduces gradients `reduced` times.
fn hidden(
    name: &str,
    [reduced, micro_batches]: [f64; 2],
    [pass, collective]: [f64; 2],
    [forward, backward]: [f64; 2],
) -> f64 {
    // Passes of a micro-batch, with so many passes over the parameters beside each. One collective
    // has nothing beside it.
    let [forward, backward] = [forward / micro_batches, backward / micro_batches];
    let hidden_beside = |count: f64, passes: f64, seconds: f64| count * seconds.min(passes * pass);
    let hidden = |seconds: f64, passes: f64, exposed: f64| seconds.min(passes * pass - exposed);
    let each = f64::from(reduced > 1.0);
    let earlier = |passes: f64| hidden_beside(micro_batches - 1.0, passes, backward);
    match name {
        "bucketed" => hidden(hidden_beside(1.0, 2.0, backward), 2.0, 2.0 * collective),
        "zero3" => {
            let gathers = hidden(hidden_beside(micro_batches, 1.0, forward), micro_batches, collective);
            let back = earlier(1.0 + each) + hidden_beside(1.0, 2.0, backward);
            gathers + hidden(back, micro_batches + reduced, collective)
        }
        _ => {
            let back = earlier(each) + hidden_beside(1.0, 1.0, backward);
            hidden(back, reduced, collective) + hidden(hidden_beside(1.0, 1.0, forward), 1.0, collective)
        }
    }
}

/// Compares all cells of a plan whose ranks reach 400 TFLOP/s and 3350 GB/s of memory, links within
/// hosts 450 GB/s after 5 us, and links to other hosts 50 GB/s after 10 us.
fn compare_strategies(parameters: &str, ranks: &str, recomputes: bool) {
    let fixed = ["--hardware", "h100-80", "--teraflops", "400", "--across", "50", "--latency", "10"];
    let arguments = [&fixed[..], &["--model", parameters, "-n", ranks]].concat();
    let plan = planned(&arguments);
    let [psi, layers, width] = ["parameters", "layers", "width"].map(|key| at(&plan, &["shape", key]));
    let chosen = |key| at(&plan, &["decision", "parallel", key]);
    let (tensor, stages, data) = (chosen("tensor"), chosen("pipeline"), chosen("data"));
    let micro_batches = at(&plan, &["recipe", "Ok", "accumulation"]);
    let recomputed = plan["decision"]["parallel"]["activation_checkpointing"].as_bool();
    assert_eq!((recomputed, chosen("context")), (Some(recomputes), 1.0), "{plan}");
    let text = output_text(&[&["plan"], &arguments[..]].concat());
    let heading = [
        "weights",
        "gradients",
        "state",
        "sent",
        "operations",
        "its time",
        "step",
        "computing",
        "no overlap",
    ];
    let table = Table::find(&text, &heading);
    let (parameters, others) = (psi / tensor / stages, (data - 1.0) / data);
    // Forward and backward of this rank's samples; attention is causal.
    let flops = TOKENS as f64 / data / tensor / stages * (6.0 * psi + 6.0 * layers * width * SEQUENCE);
    let (third, buckets) = (flops / 400e12 / 3.0, (2.0 * parameters / BUCKET).ceil());
    let backward = third * if recomputes { 3.0 } else { 2.0 };
    // Two sums each way of a block's rows, and again in recomputation.
    let rows = at(&plan, &["recipe", "Ok", "micro_batch"]) * SEQUENCE * width * 2.0;
    let sums = if recomputes { 6.0 } else { 4.0 } * micro_batches * layers / stages;
    let in_layers = 2.0 * sums * (tensor - 1.0) * (5e-6 + rows / tensor / 450e9);
    // At least (P - 1) / M of the work, and more because of messages.
    let bubble = at(&plan["strategies"][0], &["step_time", "bubble"]);
    let least = (third + backward + in_layers) * (stages - 1.0) / micro_batches;
    assert!((0.999 * least..=1.5 * least).contains(&bubble), "a bubble of {bubble}, not from {least}");
    for (name, shards) in [
        ("bucketed", [1.0, 1.0, 1.0]),
        ("zero1", [1.0, 1.0, data]),
        ("zero2", [1.0, data, data]),
        ("zero3", [data, data, data]),
    ] {
        let kept = [2.0, 2.0, 12.0].map(|bytes| bytes * parameters);
        let kept = [0, 1, 2].map(|class| kept[class] / shards[class]);
        for (class, bytes) in heading.into_iter().zip(kept) {
            table.near(name, class, bytes);
        }
        // 2Ψ, or each micro-batch gathers twice. Gradients are reduced once, or in each
        // micro-batch.
        let rows = plan["strategies"].as_array().expect("a list");
        let row = rows.iter().find(|row| row["parallel"]["kind"] == name).expect("a row");
        let reduced = if row["parallel"]["reduces_each"] == true { micro_batches } else { 1.0 };
        let times = if name == "zero3" { 2.0 * micro_batches + reduced } else { 1.0 + reduced };
        let sent = times * others * 2.0 * parameters;
        table.near(name, "sent", sent);
        let count = if name == "zero3" { layers / stages } else { buckets };
        table.near(name, "operations", times * count);
        let pass = count * (data - 1.0) * 10e-6 + others * 2.0 * parameters / 50e9;
        let exchange = times * pass;
        table.near(name, "its time", exchange);
        let hidden = hidden(name, [reduced, micro_batches], [pass, pass / count], [third, backward]);
        let optimizer = 2.0 * kept.iter().sum::<f64>() / 3350e9;
        let step = third + backward + exchange - hidden + in_layers + bubble + optimizer;
        table.near(name, "step", step);
        table.near(name, "no overlap", third + backward + in_layers + bubble + exchange + optimizer);
        let (share, expected) = (table.number(name, "computing"), (third + backward) / step);
        assert!((share - expected).abs() <= 0.006, "{name}: {share}, not {expected}");
    }
}

#[test]
fn comparison_of_strategies_has_the_numbers_of_the_formulas() {
    compare_strategies("7b", "64", false);
    compare_strategies("70b", "64", false);
    compare_strategies("405b", "512", true);
    compare_strategies("13b", "16", false);
}

/// The largest micro-batch that fits, all data ranks, then the largest that goes even, then
/// accumulation.
#[test]
fn recipe_of_one_dimension_follows_its_six_steps() {
    for (model, ranks, tokens, more) in [
        ("70b", "64", 4_194_304usize, &[][..]),
        ("1b", "8", 1 << 20, &[]),
        ("1b", "16", 3 << 20, &["--activation-checkpointing"]),
        ("13b", "32", 1 << 21, &["--activation-checkpointing"]),
    ] {
        let words = ["--model", model, "-n", ranks, "--tokens", &tokens.to_string()].map(str::to_owned);
        let arguments: Vec<&str> = words.iter().map(String::as_str).chain(more.iter().copied()).collect();
        let plan = planned(&arguments);
        let (recipe, parallel) = (&plan["recipe"]["Ok"], &plan["decision"]["parallel"]);
        let number_of = |value: &serde_json::Value| value.as_f64().unwrap_or_else(|| panic!("in {plan}"));
        let integer = |value: &serde_json::Value| number_of(value) as usize;
        let samples = tokens / integer(&plan["shape"]["sequence"]);
        let split = [&parallel["tensor"], &parallel["pipeline"], &parallel["context"]].map(integer);
        let data = ranks.parse::<usize>().expect("a number") / split.iter().product::<usize>();
        assert_eq!((integer(&recipe["samples"]), integer(&recipe["data_ranks"])), (samples, data), "{model}");
        // Step 3, from the printed size of a sample's activations.
        let text = output_text(&[&["plan"], &arguments[..]].concat());
        let line = text.lines().find_map(|line| line.trim().strip_prefix("activations of a sample: "));
        let activations = number(line.and_then(|line| line.split(';').next()).expect("a size"));
        let kind = parallel["kind"].as_str().expect("a name");
        let strategies = plan["strategies"].as_array().expect("rows");
        let strategy = strategies.iter().find(|row| row["parallel"]["kind"] == kind).expect("the strategy");
        let kept: f64 = strategy["kept_bytes"].as_array().expect("classes").iter().map(number_of).sum();
        let [psi, layers, width] =
            [&plan["shape"]["parameters"], &plan["shape"]["layers"], &plan["shape"]["width"]].map(number_of);
        let largest = (psi / layers).max(number_of(&plan["shape"]["vocabulary"]) * width);
        let gathered = if kind == "zero3" { 3.0 * 2.0 * largest / split[0] as f64 } else { 0.0 };
        let room = 0.9 * number_of(&plan["hardware"]["memory"]) - kept - gathered;
        let largest_micro_batch = integer(&recipe["max_micro_batch"]);
        let fits = |micro: usize| micro as f64 * activations;
        assert!(
            fits(largest_micro_batch) <= 1.006 * room && fits(largest_micro_batch + 1) > 0.994 * room,
            "{model}: {largest_micro_batch} in {room}"
        );
        // Steps 5 and 6.
        let each = samples / data;
        let micro = (1..=largest_micro_batch.min(each))
            .rev()
            .find(|micro| each.is_multiple_of(*micro))
            .expect("one does");
        assert_eq!(recipe["is_largest"], true, "{model}: no stages that wait for small micro-batches");
        let found = [integer(&recipe["micro_batch"]), integer(&recipe["accumulation"])];
        assert_eq!((found, samples), ([micro, each / micro], data * each), "{model} on {ranks}");
        let last = format!("{samples} = {micro} x {} x {data}", each / micro);
        assert!(text.contains(&last), "no `{last}` in\n{text}");
    }
}

#[test]
fn explained_tables_have_the_numbers_of_the_formulas() {
    // 7 billion parameters in 32 layers of width 4096 on 64 A100s: replicas, 25 GB/s, 10 us.
    let text =
        output_text(&["explain", "--model", "7b", "--across", "25", "--within", "300", "--latency", "10"]);
    let (psi, layers, width, data) = (7e9, 32.0, 4096.0, 64.0);
    let micro = number(between(&text, "backward of each of ", " micro-batches"));
    let sharing = Table::find(&text, &["waits", "memory", "sent", "grows the batch", "ease"]);
    for (name, memory, sent) in [
        ("bucketed", 16.0, 2.0),
        ("zero1", 4.0 + 12.0 / data, 2.0),
        ("zero2", 2.0 + 14.0 / data, 2.0),
        ("zero3", 16.0 / data, 2.0 * micro + 1.0),
    ] {
        sharing.near(name, "memory", memory * psi);
        sharing.near(name, "sent", sent * 2.0 * psi * (data - 1.0) / data);
        sharing.near(name, "grows the batch", data);
    }
    let heading = ["what, of one layer and sample", "bytes", "within", "across", "belongs"];
    let placement = Table::find(&text, &heading);
    let (layer, rows) = (2.0 * psi / layers, SEQUENCE * width * 2.0);
    for (name, bytes) in [
        ("tensor", 2.0 * 4.0 * rows),
        ("pipeline", 2.0 * rows),
        ("ZeRO-3", 3.0 * layer),
        ("data parallel", 2.0 * layer),
    ] {
        placement.near(name, "bytes", bytes);
        placement.near(name, "within", 5e-6 + bytes / 300e9);
        placement.near(name, "across", 10e-6 + bytes / 25e9);
    }
    let curve = Table::find(&text, &["ranks", "ring", "of which latency", "PAT", "of which latency"]);
    for ranks in [8.0f64, 32.0, 128.0, 512.0, 2048.0] {
        let name = ranks.to_string();
        let bytes = 2.0 * (ranks - 1.0) / ranks * 2.0 * psi / 25e9;
        curve.near(&name, "ring", 2.0 * (ranks - 1.0) * 10e-6 + bytes);
        curve.near(&name, "of which latency", 2.0 * (ranks - 1.0) * 10e-6);
        curve.near(&name, "PAT", 2.0 * ranks.log2().ceil() * 10e-6 + bytes);
        let row = curve.rows.iter().find(|row| row[0] == name).expect("the row");
        let (latency, expected) = (number(&row[4]), 2.0 * ranks.log2().ceil() * 10e-6);
        assert!((latency / expected - 1.0).abs() < 0.006, "{latency}, not {expected}");
    }
    assert_eq!(number(between(&text, "lr_scale = \"sqrt\"), x ", " for plain")), data);
    assert_eq!(number(between(&text, "of one rank: x ", " for Adam")), data.sqrt());
    let attention =
        Table::find(&text, &["ranks that share a sequence", "all scores: S^2/N", "computed again: S/N"]);
    for ranks in [1.0, 2.0, 4.0, 8.0] {
        let name = ranks.to_string();
        assert_eq!(attention.number(&name, "all scores: S^2/N"), SEQUENCE * SEQUENCE / ranks);
        assert_eq!(attention.number(&name, "computed again: S/N"), SEQUENCE / ranks);
    }
    assert!(text.contains(&format!("chosen in {} ways, 2 of 16 in {}", choose(160, 6), choose(16, 2))));
}

fn between<'a>(text: &'a str, start: &str, end: &str) -> &'a str {
    let tail = text.split_once(start).unwrap_or_else(|| panic!("no `{start}` in\n{text}")).1;
    tail.split_once(end).unwrap_or_else(|| panic!("no `{end}` in\n{tail}")).0
}

/// Counts choices by Pascal's triangle.
fn choose(count: usize, chosen: usize) -> u128 {
    let mut row = vec![1u128];
    for _ in 0..count {
        let sums = row.windows(2).map(|pair| pair[0] + pair[1]);
        row = [1].into_iter().chain(sums).chain([1]).collect();
    }
    row[chosen]
}
