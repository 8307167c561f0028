use super::*;
use unisono::schedule::{Collective, ProgramBuilder};

/// Writes the step of a thread block.
fn step(kind: &str, source: &str, target: &str, waits_for: Option<(usize, usize)>) -> String {
    let [(source, source_index), (target, target_index)] = [source, target].map(|cell| cell.split_at(1));
    let (block, earlier) = waits_for.map_or(("-1".to_owned(), "-1".to_owned()), |(block, earlier)| {
        (block.to_string(), earlier.to_string())
    });
    format!(
        r#"<step s="0" type="{kind}" srcbuf="{source}" srcoff="{source_index}" dstbuf="{target}" dstoff="{target_index}" cnt="1" depid="{block}" deps="{earlier}" hasdep="0"/>"#
    )
}

fn block(id: usize, peers: Option<(usize, usize)>, steps: &[String]) -> String {
    let (send, receive) = peers.map_or((-1, -1), |(send, receive)| (send as isize, receive as isize));
    format!(r#"<tb id="{id}" send="{send}" recv="{receive}" chan="0">{}</tb>"#, steps.concat())
}

fn algo(name: &str, coll: &str, (ranks, chunks): (usize, usize), blocks: impl Fn(usize) -> String) -> String {
    let in_place = u8::from(coll == "allreduce");
    let gpus: String = (0..ranks).map(|rank| format!(r#"<gpu id="{rank}">{}</gpu>"#, blocks(rank))).collect();
    format!(
        r#"<algo name="{name}" nchunksperloop="{chunks}" ngpus="{ranks}" coll="{coll}" inplace="{in_place}">{gpus}</algo>"#
    )
}

/// A ring that reduces in place, and passes sums and results on without a step of its own.
fn ring(ranks: usize) -> String {
    algo("ring", "allreduce", (ranks, ranks), |rank| {
        let chunk = |distance: usize| format!("i{}", (rank + 2 * ranks - distance) % ranks);
        let hop = |kind: &str, distance: usize| step(kind, &chunk(distance), &chunk(distance), None);
        let mut steps = vec![hop("s", 0)];
        steps.extend((1..ranks - 1).map(|distance| hop("rrs", distance)));
        steps.push(hop("rrcs", ranks - 1));
        steps.extend((0..ranks - 2).map(|distance| hop("rcs", distance)));
        steps.push(hop("r", ranks - 2));
        block(0, Some(((rank + 1) % ranks, (rank + ranks - 1) % ranks)), &steps)
    })
}

/// Every pair of ranks exchanges buffers, and thread block 0 adds when the others have received.
fn all_pairs(ranks: usize) -> String {
    algo("all_pairs", "allreduce", (ranks, 1), |rank| {
        let peers: Vec<usize> = (0..ranks).filter(|&peer| peer != rank).collect();
        let blocks = peers.iter().enumerate().map(|(id, &peer)| {
            let mut steps =
                vec![step("s", "i0", &format!("s{rank}"), None), step("r", "i0", &format!("s{peer}"), None)];
            if id == 0 {
                steps.extend((1..peers.len()).map(|other| step("nop", "i0", "i0", Some((other, 1)))));
                steps.extend(peers.iter().map(|peer| step("re", &format!("s{peer}"), "i0", None)));
            }
            block(id, Some((peer, peer)), &steps)
        });
        blocks.collect()
    })
}

/// A ring whose results are stored and passed on, and a thread block without peers that copies.
fn all_gather_ring(ranks: usize) -> String {
    algo("all_gather_ring", "allgather", (ranks, ranks), |rank| {
        let chunk_behind = |distance: usize| format!("o{}", (rank + ranks - distance) % ranks);
        let mut steps = vec![step("s", "i0", "o0", None)];
        steps.extend(
            (1..ranks - 1)
                .map(|distance| step("rcs", &chunk_behind(distance), &chunk_behind(distance), None)),
        );
        steps.push(step("r", "i0", &chunk_behind(ranks - 1), None));
        let copies = [step("cpy", "i0", &chunk_behind(0), None)];
        block(0, None, &copies) + &block(1, Some(((rank + 1) % ranks, (rank + ranks - 1) % ranks)), &steps)
    })
}

fn exchange(ranks: usize) -> String {
    algo("exchange", "alltoall", (ranks, ranks), |rank| {
        let copies = [step("cpy", &format!("i{rank}"), &format!("o{rank}"), None)];
        let blocks = (0..ranks).filter(|&peer| peer != rank).enumerate().map(|(id, peer)| {
            let steps =
                [step("s", &format!("i{peer}"), "o0", None), step("r", "i0", &format!("o{peer}"), None)];
            block(id, Some((peer, peer)), &steps)
        });
        blocks.collect::<String>() + &block(ranks - 1, None, &copies)
    })
}

#[test]
fn programs_of_msccl_become_schedules_that_are_proved() {
    for ranks in 2..=6 {
        let programs = [
            (ring(ranks), Collective::AllReduce, "ring"),
            (all_gather_ring(ranks), Collective::AllGather, "all_gather_ring"),
            (exchange(ranks), Collective::AllToAll, "exchange"),
        ];
        for (text, collective, name) in programs {
            let schedule = parse(&text).unwrap_or_else(|error| panic!("{name} of {ranks}: {error}"));
            assert_eq!((schedule.collective, schedule.algorithm.as_str()), (collective, name));
            prove(&schedule).unwrap_or_else(|violation| panic!("{name} of {ranks}: {violation}"));
        }
    }
    let pair = parse(&all_pairs(2)).expect("a right one");
    prove(&pair).expect("two operands have one order");
    // Each rank begins with its own input, so results differ in their last bits.
    let violation = prove(&parse(&all_pairs(4)).expect("it is read")).expect_err("refused");
    assert!(violation.to_string().contains("another order"), "{violation}");
}

#[test]
fn wrong_programs_of_msccl_are_refused_with_the_place() {
    let refused = |text: &str| parse(text).expect_err(text);
    let ring = ring(4);
    for (old, new, part) in [
        ("type=\"rrcs\"", "type=\"rrcx\"", "no step has the type `rrcx`"),
        ("ngpus=\"4\"", "ngpus=\"5\"", "GPU 4 is missing"),
        ("ngpus=\"4\"", "ngpus=\"99999999\"", "there can be 2 to 4096 GPUs"),
        ("coll=\"allreduce\"", "coll=\"custom\"", "`coll` is `custom`"),
        ("srcoff=\"0\"", "srcoff=\"-1\"", "`srcoff` of `step` is `-1`, and no whole number"),
        ("cnt=\"1\"", "cnt=\"999999999\"", "its steps name more than"),
        ("send=\"1\"", "send=\"7\"", "send is GPU 7 of 4 GPUs"),
        ("type=\"s\"", "type=\"nop\"", "waits forever in step"),
        ("send=\"1\"", "send=\"0\"", "exchanges a message with its own GPU"),
        ("gpu id=\"1\"", "gpu id=\"0\"", "GPU 0 is there twice"),
    ] {
        let error = refused(&ring.replacen(old, new, 1));
        assert!(error.contains(part), "{error}");
    }
    assert!(refused("<graph/>").contains("no `algo`"));
    assert!(!refused("<algo").is_empty());
}

/// Nothing that a file says ends the process: it is refused, or it is a schedule.
#[test]
fn damaged_programs_of_msccl_end_nothing() {
    let texts = [ring(4), all_pairs(3), all_gather_ring(5), exchange(3)];
    let (mut refused, mut random) = (0, 0x5eed_u64);
    let mut number_below = |end: usize| {
        random = random.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (random >> 33) as usize % end
    };
    for turn in 0..2000 {
        let mut bytes = texts[turn % texts.len()].clone().into_bytes();
        for _ in 0..1 + number_below(3) {
            let index = number_below(bytes.len());
            match number_below(3) {
                0 => bytes[index] = 32 + number_below(95) as u8,
                1 => _ = bytes.remove(index),
                _ => {
                    if let Some(digit) = bytes.iter_mut().skip(index).find(|byte| byte.is_ascii_digit()) {
                        *digit = b'0' + number_below(10) as u8;
                    }
                }
            }
        }
        let text = String::from_utf8_lossy(&bytes);
        refused += usize::from(parse(&text).is_err());
        fuzz(&text);
    }
    assert!(refused > 500, "{refused}");
}

#[test]
fn algorithms_of_a_program_are_known_without_a_proof() {
    // No rank gets what the root has.
    let silent = |name: &'static str, collective| {
        Algorithm::new(name, collective, |_, rank| ProgramBuilder::new(rank).finish(0, 0))
    };
    let refused = set_algorithms(&[silent("ring", Collective::AllReduce)]).unwrap_err();
    assert!(refused.contains("all_reduce has an algorithm `ring` already"), "{refused}");
    set_algorithms(&[silent("silent", Collective::Broadcast)]).unwrap();
    assert!(algorithms().iter().any(|row| row.name == "silent"));
}
