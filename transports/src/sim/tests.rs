//! Tests that the simulated network keeps its contracts, and that its runs can be replayed.

use super::*;
use crate::{ControlChannel, Error, PeerEvent, RegroupRequest, Result, Tag};
use unisono_reducers::Source;

const GEOMETRY: Geometry =
    Geometry { lanes: 3, slots: 2, slot_bytes: 256, signal_lanes: 1, window_bytes: 4096, heap_bytes: 0 };

/// Sends `count` messages from every rank to every other on every lane, and checks what arrives.
fn all_to_all(fabric: &mut Fabric, count: u64) -> Result<()> {
    let (rank, ranks, lanes) = (fabric.rank, fabric.ranks, fabric.geometry.lanes);
    let pairs: Vec<_> = (0..ranks)
        .filter(|&peer| peer != rank)
        .flat_map(|peer| (0..lanes).map(move |lane| (peer, lane)))
        .collect();
    let mut counts = vec![(0u64, 0u64); pairs.len()];
    let mut rounds = 0;
    while counts.iter().any(|&counted| counted != (count, count)) {
        let earlier = counts.clone();
        for (&(peer, lane), (sent, received)) in pairs.iter().zip(&mut counts) {
            let link = fabric.links[peer].as_mut().unwrap();
            let body = [rank as u8, *sent as u8, lane as u8];
            let tag = Tag([*sent, rank as u64, lane as u64, 7]);
            if *sent < count && link.try_send(lane, &tag, 3, &mut body.chunks(2).map(Source::from))? {
                *sent += 1;
            }
            if let Some(head) = link.header(lane)? {
                assert_eq!((head.bytes, head.tag), (3, Tag([*received, peer as u64, lane as u64, 7])));
                let mut body = [0; 3];
                assert!(link.recv_into(lane, body[..].as_mut().into())?);
                assert_eq!(body, [peer as u8, *received as u8, lane as u8]);
                *received += 1;
            }
        }
        rounds = if earlier == counts { rounds + 1 } else { 0 };
        if fabric.wait.now() > Duration::from_secs(10) {
            return Err(Error::Timeout { what: "ten virtual seconds".to_owned() });
        }
        fabric.wait.pause(rounds);
    }
    Ok(())
}

/// Runs `body` on every rank. Returns the results by rank, the trace and the time.
fn run<R: Send>(
    ranks: usize,
    fault_plan: FaultPlan,
    body: impl Fn(&mut Fabric) -> R + Sync,
) -> (Vec<R>, u64, Duration) {
    let (fabrics, observer) = observed_fabrics(ranks, GEOMETRY, fault_plan);
    let results = std::thread::scope(|scope| {
        let body = &body;
        let threads: Vec<_> =
            fabrics.into_iter().map(|mut fabric| scope.spawn(move || body(&mut fabric))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    (results, observer.trace(), observer.now())
}

#[test]
fn messages_arrive_in_order_for_any_seed() {
    for seed in 0..20 {
        let (results, ..) = run(4, FaultPlan::none(seed), |fabric| all_to_all(fabric, 20));
        assert!(results.iter().all(Result::is_ok), "seed {seed}: {results:?}");
    }
}

#[test]
fn seed_replays_only_its_own_run() {
    let play = |seed| {
        let (_, trace, time) = run(3, FaultPlan::none(seed), |fabric| all_to_all(fabric, 10).unwrap());
        (trace, time)
    };
    let traces: Vec<_> = (0..8).map(play).collect();
    for (seed, trace) in traces.iter().enumerate() {
        for _ in 0..5 {
            assert_eq!(play(seed as u64), *trace, "seed {seed}");
        }
        assert!(!traces[..seed].contains(trace), "seed {seed} is like another");
    }
}

#[test]
fn messages_of_different_lanes_may_reorder() {
    let first_lane = |seed| {
        let (results, ..) = run(2, FaultPlan::none(seed), |fabric| {
            if fabric.rank == 0 {
                let link = fabric.links[1].as_mut().unwrap();
                (0..3).for_each(|lane| {
                    assert!(link.try_send(lane, &Tag::default(), 0, &mut [].into_iter()).unwrap())
                });
                return 0;
            }
            loop {
                let link = fabric.links[0].as_mut().unwrap();
                if let Some(lane) = (0..3).find(|&lane| link.header(lane).unwrap().is_some()) {
                    return lane;
                }
                fabric.wait.pause(1);
            }
        });
        results[1]
    };
    let firsts: std::collections::BTreeSet<_> = (0..30).map(first_lane).collect();
    assert_eq!(firsts.len(), 3);
}

#[test]
fn full_lane_accepts_again_after_release() {
    let millisecond = Duration::from_millis(1);
    let fault_plan = FaultPlan { delay_min: millisecond, delay_max: millisecond, ..FaultPlan::none(1) };
    run(2, fault_plan, |fabric| {
        let rank = fabric.rank;
        let peer = 1 - rank;
        if rank == 1 {
            while fabric.wait.now() < Duration::from_millis(10) {
                fabric.wait.pause(100);
            }
            let link = fabric.links[peer].as_mut().unwrap();
            assert!(link.header(0).unwrap().is_some());
            link.release(0);
            return;
        }
        let send = |fabric: &mut Fabric| {
            fabric.links[peer].as_mut().unwrap().try_send(0, &Tag::default(), 0, &mut [].into_iter()).unwrap()
        };
        assert!(send(fabric) && send(fabric) && !send(fabric));
        while !send(fabric) {
            fabric.wait.pause(100);
        }
        // The report of the death takes its time as well.
        assert!(fabric.wait.now() >= Duration::from_millis(11), "{:?}", fabric.wait.now());
    });
}

#[test]
fn stalled_rank_only_takes_longer() {
    let stall = Fault::Stall { rank: 1, from: Duration::from_micros(100), duration: Duration::from_secs(2) };
    let fault_plan = FaultPlan { faults: vec![stall], ..FaultPlan::none(3) };
    let (results, _, time) = run(3, fault_plan, |fabric| all_to_all(fabric, 30));
    assert!(results.iter().all(Result::is_ok), "{results:?}");
    let expected = Duration::from_secs(2)..Duration::from_secs(3);
    assert!(expected.contains(&time), "{time:?}");
}

#[test]
fn death_fails_own_calls_and_is_announced_once() {
    let trigger = Trigger::Time(Duration::from_micros(80));
    let fault_plan = FaultPlan {
        faults: vec![Fault::Death { rank: 2, at: trigger, announced: true }],
        ..FaultPlan::none(4)
    };
    let (results, ..) = run(3, fault_plan, |fabric| {
        if fabric.rank == 2 {
            return (
                all_to_all(fabric, 1000)
                    .is_err_and(|error| matches!(error, Error::ConnectionLost { peer: 2, .. })),
                0,
            );
        }
        let mut news = Vec::new();
        while fabric.wait.now() < Duration::from_millis(1) {
            news.extend(std::iter::from_fn(|| fabric.control.poll()));
            fabric.wait.pause(50);
        }
        let told = news.iter().filter(|event| **event == PeerEvent::Exited { from: 2 }).count();
        (fabric.links[2].as_mut().unwrap().header(0).is_ok(), told)
    });
    assert_eq!(results, [(true, 1), (true, 1), (true, 0)]);
}

#[test]
fn control_messages_arrive_before_exit_event() {
    for seed in 0..20 {
        let (results, ..) = run(2, FaultPlan::none(seed), |fabric| {
            if fabric.rank == 0 {
                fabric.control.post(b"farewell");
                return Vec::new();
            }
            let mut news = Vec::new();
            while news.len() < 2 && fabric.wait.now() < Duration::from_secs(1) {
                fabric.wait.pause(10);
                news.extend(std::iter::from_fn(|| fabric.control.poll()));
            }
            news
        });
        let note = PeerEvent::Message { from: 0, bytes: b"farewell".to_vec() };
        assert_eq!(results[1], [note, PeerEvent::Exited { from: 0 }], "seed {seed}");
    }
}

/// Returns the moments at which rank 1 receives two messages of rank 0, sent at the start and at
/// two milliseconds.
fn arrival_times_and_events(fault: Fault) -> (Vec<Duration>, Vec<PeerEvent>) {
    let (results, ..) = run(2, FaultPlan { faults: vec![fault], ..FaultPlan::none(1) }, |fabric| {
        let (mut times, mut news, mut sent) = (Vec::new(), Vec::new(), 0);
        while fabric.wait.now() < Duration::from_millis(20) {
            let (now, peer) = (fabric.wait.now(), 1 - fabric.rank);
            let link = fabric.links[peer].as_mut().unwrap();
            if fabric.rank == 0 && now >= Duration::from_millis(2 * sent) && sent < 2 {
                sent +=
                    link.try_send(0, &Tag::default(), 0, &mut [].into_iter()).is_ok_and(|gone| gone) as u64;
            }
            if fabric.rank == 1 && link.header(0).unwrap().is_some() {
                link.release(0);
                times.push(now);
            }
            news.extend(std::iter::from_fn(|| fabric.control.poll()));
            fabric.wait.pause(1);
        }
        (times, news)
    });
    results.into_iter().nth(1).unwrap()
}

#[test]
fn message_into_partition_arrives_after_it_or_never() {
    let start = Duration::from_millis(1);
    let cut = |(senders, receivers), lasts| Fault::Partition {
        from: RankSet(senders),
        to: RankSet(receivers),
        both_ways: false,
        at: start,
        duration: lasts,
    };
    let healed = arrival_times_and_events(cut((1, 2), Some(Duration::from_millis(8)))).0;
    assert!(healed[0] < start && healed[1] > Duration::from_millis(9), "{healed:?}");
    assert_eq!(arrival_times_and_events(cut((1, 2), None)).0.len(), 1);
    assert_eq!(arrival_times_and_events(cut((2, 1), None)).0.len(), 2, "the other way is open");
}

#[test]
fn only_announced_death_raises_an_event() {
    let death = |told| Fault::Death { rank: 0, at: Trigger::Time(Duration::from_millis(1)), announced: told };
    for told in [true, false] {
        let (times, news) = arrival_times_and_events(death(told));
        assert_eq!(
            (times.len(), news),
            (1, if told { vec![PeerEvent::Exited { from: 0 }] } else { Vec::new() })
        );
    }
    let counted = Fault::Death { rank: 0, at: Trigger::Deliveries(1), announced: true };
    assert_eq!(arrival_times_and_events(counted).0.len(), 1, "the first delivery was its last");
}

/// A rank that ignores control messages.
struct NullControl;

impl ControlChannel for NullControl {
    fn post(&mut self, _: &[u8]) {}

    fn poll(&mut self) -> Option<PeerEvent> {
        None
    }
}

/// Returns the events that two ranks see around a partition. It ends when some kernels have given
/// up and others have not. In its last moment the first rank drops its endpoint if it `leaves`, but
/// maybe not its listener. It dies instead if a death is among the faults.
fn events_around_partition(
    seed: u64,
    faults: Vec<Fault>,
    (leaves, holds): (bool, bool),
) -> Vec<Vec<PeerEvent>> {
    let silence = Duration::from_millis(100);
    let (start, lasts) = (Duration::from_millis(1), Some(silence * 115 / 100));
    let cut =
        Fault::Partition { from: RankSet(1), to: RankSet(2), both_ways: true, at: start, duration: lasts };
    let faults = [vec![cut], faults].concat();
    let fault_plan = FaultPlan { keepalive_timeout: Some(silence), faults, ..FaultPlan::none(seed) };
    let (results, ..) = run(2, fault_plan, |fabric| {
        let (mut news, mut door) = (Vec::new(), None);
        while fabric.wait.now() < 3 * silence {
            if fabric.rank == 0 && leaves && door.is_none() && fabric.wait.now() >= WITHIN_PARTITION {
                door = Some(fabric.control.listener_guard().filter(|_| holds));
                fabric.control = Box::new(NullControl);
            }
            news.extend(std::iter::from_fn(|| fabric.control.poll()));
            fabric.wait.pause(1);
        }
        news
    });
    results
}

/// Moment within that partition, after some kernels have given up.
const WITHIN_PARTITION: Duration = Duration::from_millis(112);

#[test]
fn keepalive_reset_is_not_reported_as_exit() {
    let outcomes: Vec<_> =
        (0..40).map(|seed| events_around_partition(seed, Vec::new(), (false, false))).collect();
    let (silent, cut) =
        (|peer| vec![PeerEvent::Unreachable { from: peer }], |peer| vec![PeerEvent::Reset { from: peer }]);
    let possible = [[silent(1), silent(0)], [silent(1), cut(0)], [cut(1), silent(0)], [vec![], vec![]]];
    assert!(
        outcomes.iter().all(|news| possible.contains(&[news[0].clone(), news[1].clone()])),
        "{outcomes:?}"
    );
    assert!(possible.iter().all(|events| outcomes.contains(&events.to_vec())), "{outcomes:?}");
}

#[test]
fn reset_by_exited_peer_is_exit_unless_listener_is_held() {
    let death = vec![Fault::Death { rank: 0, at: Trigger::Time(WITHIN_PARTITION), announced: true }];
    let mut held = 0;
    for seed in 0..40 {
        let second = |faults, leaving| events_around_partition(seed, faults, leaving).remove(1);
        let (of_a_death, of_a_farewell) =
            (second(death.clone(), (false, false)), second(vec![], (true, false)));
        let closed = vec![PeerEvent::Exited { from: 0 }];
        assert!(
            of_a_death == closed || of_a_death == [PeerEvent::Unreachable { from: 0 }],
            "{seed}: {of_a_death:?}"
        );
        assert_eq!(of_a_farewell, of_a_death, "{seed}");
        let with_a_door = second(vec![], (true, true));
        held += usize::from(of_a_death == closed && with_a_door == [PeerEvent::Reset { from: 0 }]);
        assert!(
            with_a_door == of_a_death || with_a_door == [PeerEvent::Reset { from: 0 }],
            "{seed}: {with_a_door:?}"
        );
    }
    assert!(held > 0, "no probe reached a listener that was held open");
}

#[test]
fn reconnect_joins_only_ranks_of_the_same_group() {
    let (places, observer) = world(3, GEOMETRY, FaultPlan::none(9));
    let begun = std::sync::Barrier::new(3);
    let ended: Vec<_> = std::thread::scope(|scope| {
        let meet = |(rank, (fabric, reconnect)): (usize, Node)| {
            let begun = &begun;
            scope.spawn(move || {
                begun.wait();
                // The third rank names other members.
                let label = [rank as u8 / 2];
                let request = RegroupRequest { endpoint: "here", group_id: &label, rank: rank % 2, ranks: 2 };
                let met = reconnect.connect(request, Duration::from_millis(50));
                drop(fabric);
                met.map(|fabric| (fabric.rank, fabric.ranks)).map_err(|error| error.to_string())
            })
        };
        let ranks: Vec<_> = places.into_iter().enumerate().map(meet).collect();
        ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
    });
    assert_eq!(ended[..2], [Ok((0, 2)), Ok((1, 2))]);
    assert!(ended[2].as_ref().is_err_and(|text| text.contains("did not all meet")), "{ended:?}");
    assert_eq!(observer.members("here", &[0]), Some(vec![0, 1]));
}
