//! The simulated network keeps its promises, and its runs can be replayed.

use super::*;
use crate::{Control, Error, Event, Gathering, Result, Tag};
use unisono_cuda::Source;

const GEOMETRY: Geometry =
    Geometry { lanes: 3, slots: 2, slot_bytes: 256, channels: 1, window_bytes: 4096, heap_bytes: 0 };

/// Every rank sends `count` messages to every other on every lane, and checks what it receives.
fn all_to_all(mesh: &mut Mesh, count: u64) -> Result<()> {
    let (rank, ranks, lanes) = (mesh.rank, mesh.ranks, mesh.geometry.lanes);
    let pairs: Vec<_> = (0..ranks)
        .filter(|&peer| peer != rank)
        .flat_map(|peer| (0..lanes).map(move |lane| (peer, lane)))
        .collect();
    let mut counts = vec![(0u64, 0u64); pairs.len()];
    let mut rounds = 0;
    while counts.iter().any(|&counted| counted != (count, count)) {
        let before = counts.clone();
        for (&(peer, lane), (sent, received)) in pairs.iter().zip(&mut counts) {
            let link = mesh.links[peer].as_mut().unwrap();
            let body = [rank as u8, *sent as u8, lane as u8];
            let tag = Tag([*sent, rank as u64, lane as u64, 7]);
            if *sent < count && link.try_send(lane, &tag, 3, &mut body.chunks(2).map(Source::from))? {
                *sent += 1;
            }
            if let Some(head) = link.head(lane)? {
                assert_eq!((head.bytes, head.tag), (3, Tag([*received, peer as u64, lane as u64, 7])));
                let mut body = [0; 3];
                assert!(link.take(lane, body[..].as_mut().into())?);
                assert_eq!(body, [peer as u8, *received as u8, lane as u8]);
                *received += 1;
            }
        }
        rounds = if before == counts { rounds + 1 } else { 0 };
        if mesh.pace.now() > Duration::from_secs(10) {
            return Err(Error::Timeout { what: "ten virtual seconds".to_owned() });
        }
        mesh.pace.pause(rounds);
    }
    Ok(())
}

/// Runs `body` on every rank; results by rank, trace and time.
fn run<R: Send>(
    ranks: usize,
    weather: Weather,
    body: impl Fn(&mut Mesh) -> R + Sync,
) -> (Vec<R>, u64, Duration) {
    let (meshes, observer) = observed(ranks, GEOMETRY, weather);
    let results = std::thread::scope(|scope| {
        let body = &body;
        let threads: Vec<_> =
            meshes.into_iter().map(|mut mesh| scope.spawn(move || body(&mut mesh))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    (results, observer.trace(), observer.now())
}

#[test]
fn messages_arrive_in_order_whatever_the_seed() {
    for seed in 0..20 {
        let (results, ..) = run(4, Weather::fair(seed), |mesh| all_to_all(mesh, 20));
        assert!(results.iter().all(Result::is_ok), "seed {seed}: {results:?}");
    }
}

#[test]
fn a_seed_replays_its_run_and_no_other() {
    let play = |seed| {
        let (_, trace, time) = run(3, Weather::fair(seed), |mesh| all_to_all(mesh, 10).unwrap());
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
fn lanes_overtake_each_other() {
    let first_lane = |seed| {
        let (results, ..) = run(2, Weather::fair(seed), |mesh| {
            if mesh.rank == 0 {
                let link = mesh.links[1].as_mut().unwrap();
                (0..3).for_each(|lane| {
                    assert!(link.try_send(lane, &Tag::default(), 0, &mut [].into_iter()).unwrap())
                });
                return 0;
            }
            loop {
                let link = mesh.links[0].as_mut().unwrap();
                if let Some(lane) = (0..3).find(|&lane| link.head(lane).unwrap().is_some()) {
                    return lane;
                }
                mesh.pace.pause(1);
            }
        });
        results[1]
    };
    let firsts: std::collections::BTreeSet<_> = (0..30).map(first_lane).collect();
    assert_eq!(firsts.len(), 3);
}

#[test]
fn a_full_lane_has_room_again_only_after_a_release() {
    let millisecond = Duration::from_millis(1);
    let weather = Weather { delay_min: millisecond, delay_max: millisecond, ..Weather::fair(1) };
    run(2, weather, |mesh| {
        let rank = mesh.rank;
        let peer = 1 - rank;
        if rank == 1 {
            while mesh.pace.now() < Duration::from_millis(10) {
                mesh.pace.pause(100);
            }
            let link = mesh.links[peer].as_mut().unwrap();
            assert!(link.head(0).unwrap().is_some());
            link.release(0);
            return;
        }
        let send = |mesh: &mut Mesh| {
            mesh.links[peer].as_mut().unwrap().try_send(0, &Tag::default(), 0, &mut [].into_iter()).unwrap()
        };
        assert!(send(mesh) && send(mesh) && !send(mesh));
        while !send(mesh) {
            mesh.pace.pause(100);
        }
        // The news of it needs its time as well.
        assert!(mesh.pace.now() >= Duration::from_millis(11), "{:?}", mesh.pace.now());
    });
}

#[test]
fn a_stalled_rank_only_takes_longer() {
    let stall = Fault::Stall { rank: 1, from: Duration::from_micros(100), lasts: Duration::from_secs(2) };
    let weather = Weather { faults: vec![stall], ..Weather::fair(3) };
    let (results, _, time) = run(3, weather, |mesh| all_to_all(mesh, 30));
    assert!(results.iter().all(Result::is_ok), "{results:?}");
    assert!(time > Duration::from_secs(2) && time < Duration::from_secs(3), "{time:?}");
}

#[test]
fn a_death_ends_the_calls_of_the_dead_and_is_told_to_the_others_once() {
    let at = Moment::Time(Duration::from_micros(80));
    let weather = Weather { faults: vec![Fault::Death { rank: 2, at, told: true }], ..Weather::fair(4) };
    let (results, ..) = run(3, weather, |mesh| {
        if mesh.rank == 2 {
            return (
                all_to_all(mesh, 1000).is_err_and(|error| matches!(error, Error::Lost { peer: 2, .. })),
                0,
            );
        }
        let mut news = Vec::new();
        while mesh.pace.now() < Duration::from_millis(1) {
            news.extend(std::iter::from_fn(|| mesh.control.poll()));
            mesh.pace.pause(50);
        }
        let told = news.iter().filter(|event| **event == Event::Closed { from: 2 }).count();
        (mesh.links[2].as_mut().unwrap().head(0).is_ok(), told)
    });
    assert_eq!(results, [(true, 1), (true, 1), (true, 0)]);
}

#[test]
fn notes_come_before_the_news_that_their_sender_is_gone() {
    for seed in 0..20 {
        let (results, ..) = run(2, Weather::fair(seed), |mesh| {
            if mesh.rank == 0 {
                mesh.control.post(b"farewell");
                return Vec::new();
            }
            let mut news = Vec::new();
            while news.len() < 2 && mesh.pace.now() < Duration::from_secs(1) {
                mesh.pace.pause(10);
                news.extend(std::iter::from_fn(|| mesh.control.poll()));
            }
            news
        });
        let note = Event::Note { from: 0, bytes: b"farewell".to_vec() };
        assert_eq!(results[1], [note, Event::Closed { from: 0 }], "seed {seed}");
    }
}

/// The moments at which rank 1 gets what rank 0 sends it at the start and again at two milliseconds.
fn arrivals(fault: Fault) -> (Vec<Duration>, Vec<Event>) {
    let (results, ..) = run(2, Weather { faults: vec![fault], ..Weather::fair(1) }, |mesh| {
        let (mut times, mut news, mut sent) = (Vec::new(), Vec::new(), 0);
        while mesh.pace.now() < Duration::from_millis(20) {
            let (now, peer) = (mesh.pace.now(), 1 - mesh.rank);
            let link = mesh.links[peer].as_mut().unwrap();
            if mesh.rank == 0 && now >= Duration::from_millis(2 * sent) && sent < 2 {
                sent +=
                    link.try_send(0, &Tag::default(), 0, &mut [].into_iter()).is_ok_and(|gone| gone) as u64;
            }
            if mesh.rank == 1 && link.head(0).unwrap().is_some() {
                link.release(0);
                times.push(now);
            }
            news.extend(std::iter::from_fn(|| mesh.control.poll()));
            mesh.pace.pause(1);
        }
        (times, news)
    });
    results.into_iter().nth(1).unwrap()
}

#[test]
fn what_is_sent_into_a_cut_arrives_after_it_or_never() {
    let at = Duration::from_millis(1);
    let cut =
        |(from, to), lasts| Fault::Cut { from: Ranks(from), to: Ranks(to), both_ways: false, at, lasts };
    let healed = arrivals(cut((1, 2), Some(Duration::from_millis(8)))).0;
    assert!(healed[0] < at && healed[1] > Duration::from_millis(9), "{healed:?}");
    assert_eq!(arrivals(cut((1, 2), None)).0.len(), 1);
    assert_eq!(arrivals(cut((2, 1), None)).0.len(), 2, "the other way is open");
}

#[test]
fn only_of_a_told_death_there_is_news() {
    let death = |told| Fault::Death { rank: 0, at: Moment::Time(Duration::from_millis(1)), told };
    for told in [true, false] {
        let (times, news) = arrivals(death(told));
        assert_eq!((times.len(), news), (1, if told { vec![Event::Closed { from: 0 }] } else { Vec::new() }));
    }
    let counted = Fault::Death { rank: 0, at: Moment::Deliveries(1), told: true };
    assert_eq!(arrivals(counted).0.len(), 1, "the first delivery was its last");
}

/// A rank that takes no part in notes.
struct Deaf;

impl Control for Deaf {
    fn post(&mut self, _: &[u8]) {}

    fn poll(&mut self) -> Option<Event> {
        None
    }
}

/// What two ranks hear of each other around a cut that ends when some kernels have given up and others not. In its last moment
/// the first one drops what it has, if it `leaves`, but maybe not its door, or it dies, if that is among the faults.
fn parted(seed: u64, faults: Vec<Fault>, (leaves, holds): (bool, bool)) -> Vec<Vec<Event>> {
    let silence = Duration::from_millis(100);
    let (at, lasts) = (Duration::from_millis(1), Some(silence * 115 / 100));
    let cut = Fault::Cut { from: Ranks(1), to: Ranks(2), both_ways: true, at, lasts };
    let faults = [vec![cut], faults].concat();
    let weather = Weather { silence: Some(silence), faults, ..Weather::fair(seed) };
    let (results, ..) = run(2, weather, |mesh| {
        let (mut news, mut door) = (Vec::new(), None);
        while mesh.pace.now() < 3 * silence {
            if mesh.rank == 0 && leaves && door.is_none() && mesh.pace.now() >= MOMENT {
                door = Some(mesh.control.door().filter(|_| holds));
                mesh.control = Box::new(Deaf);
            }
            news.extend(std::iter::from_fn(|| mesh.control.poll()));
            mesh.pace.pause(1);
        }
        news
    });
    results
}

/// Within that cut, after some have given up.
const MOMENT: Duration = Duration::from_millis(112);

#[test]
fn who_is_reset_by_a_kernel_that_gave_up_is_cut_off_and_no_more() {
    let all: Vec<_> = (0..40).map(|seed| parted(seed, Vec::new(), (false, false))).collect();
    let (silent, cut) = (|from| vec![Event::Silent { from }], |from| vec![Event::Cut { from }]);
    let possible = [[silent(1), silent(0)], [silent(1), cut(0)], [cut(1), silent(0)], [vec![], vec![]]];
    assert!(all.iter().all(|news| possible.contains(&[news[0].clone(), news[1].clone()])), "{all:?}");
    assert!(possible.iter().all(|one| all.contains(&one.to_vec())), "{all:?}");
}

#[test]
fn who_is_reset_by_the_dead_or_by_who_left_hears_it_at_the_door_unless_that_is_held() {
    let death = vec![Fault::Death { rank: 0, at: Moment::Time(MOMENT), told: true }];
    let mut held = 0;
    for seed in 0..40 {
        let second = |faults, leaving| parted(seed, faults, leaving).remove(1);
        let (of_a_death, of_a_farewell) =
            (second(death.clone(), (false, false)), second(vec![], (true, false)));
        let closed = vec![Event::Closed { from: 0 }];
        assert!(of_a_death == closed || of_a_death == [Event::Silent { from: 0 }], "{seed}: {of_a_death:?}");
        assert_eq!(of_a_farewell, of_a_death, "{seed}");
        let with_a_door = second(vec![], (true, true));
        held += usize::from(of_a_death == closed && with_a_door == [Event::Cut { from: 0 }]);
        assert!(
            with_a_door == of_a_death || with_a_door == [Event::Cut { from: 0 }],
            "{seed}: {with_a_door:?}"
        );
    }
    assert!(held > 0, "nobody knocked at a door that was held");
}

#[test]
fn those_who_mean_the_same_meet_and_others_do_not() {
    let (places, observer) = world(3, GEOMETRY, Weather::fair(9));
    let begun = std::sync::Barrier::new(3);
    let ended: Vec<_> = std::thread::scope(|scope| {
        let meet = |(rank, (mesh, venue)): (usize, Place)| {
            let begun = &begun;
            scope.spawn(move || {
                begun.wait();
                // The third one means others.
                let label = [rank as u8 / 2];
                let gathering = Gathering { place: "here", label: &label, rank: rank % 2, ranks: 2 };
                let met = venue.meet(gathering, Duration::from_millis(50));
                drop(mesh);
                met.map(|mesh| (mesh.rank, mesh.ranks)).map_err(|error| error.to_string())
            })
        };
        let ranks: Vec<_> = places.into_iter().enumerate().map(meet).collect();
        ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
    });
    assert_eq!(ended[..2], [Ok((0, 2)), Ok((1, 2))]);
    assert!(ended[2].as_ref().is_err_and(|text| text.contains("did not all meet")), "{ended:?}");
    assert_eq!(observer.members("here", &[0]), Some(vec![0, 1]));
}
