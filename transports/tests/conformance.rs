//! What every transport promises, checked on each of them.

mod support;

use std::time::Duration;
use support::{GEOMETRY, Transport, contents, receive, run, run_with, send, until};
use unisono_transports::{Event, Geometry, Tag};

/// Stamps the suite on one transport.
macro_rules! conformance {
    ($name:ident, $transport:expr) => {
        mod $name {
            use super::*;
            const TRANSPORT: Transport = $transport;

            #[test]
            fn messages_arrive_whole_and_in_order() {
                super::messages_arrive_whole_and_in_order(TRANSPORT);
            }
            #[test]
            fn a_full_lane_says_so_and_holds_up_no_other() {
                super::a_full_lane_says_so_and_holds_up_no_other(TRANSPORT);
            }
            #[test]
            fn both_directions_at_once_do_not_deadlock() {
                super::both_directions_at_once_do_not_deadlock(TRANSPORT);
            }
            #[test]
            fn messages_longer_than_any_buffer_pass_in_pieces() {
                super::messages_longer_than_any_buffer_pass_in_pieces(TRANSPORT);
            }
            #[test]
            fn random_traffic_survives() {
                super::random_traffic_survives(TRANSPORT);
            }
            #[test]
            fn everybody_talks_to_everybody() {
                super::everybody_talks_to_everybody(TRANSPORT);
            }
            #[test]
            fn a_window_shows_what_was_written_before_the_signal() {
                super::a_window_shows_what_was_written_before_the_signal(TRANSPORT);
            }
            #[test]
            fn notes_arrive_in_order_and_the_end_once() {
                super::notes_arrive_in_order_and_the_end_once(TRANSPORT);
            }
            #[test]
            fn what_was_sent_before_leaving_still_arrives() {
                super::what_was_sent_before_leaving_still_arrives(TRANSPORT);
            }
            #[test]
            fn sending_to_the_gone_returns() {
                super::sending_to_the_gone_returns(TRANSPORT);
            }
        }
    };
}

conformance!(threads, Transport::Threads);
conformance!(shm, Transport::Shm);
conformance!(tcp_one_socket, Transport::Tcp { sockets: 1 });
conformance!(tcp_two_sockets, Transport::Tcp { sockets: 2 });
conformance!(sim, Transport::Sim);

fn messages_arrive_whole_and_in_order(transport: Transport) {
    let sizes = [0, 1, 63, 64, 65, 4000, GEOMETRY.slot_bytes];
    run(transport, 2, |mesh| {
        for round in 0..3u64 {
            for (index, &size) in sizes.iter().enumerate() {
                for lane in 0..GEOMETRY.lanes {
                    let seed = round << 32 | (index << 8 | lane) as u64;
                    if mesh.rank == 0 {
                        // In one part, in two, in very many small ones: the receiver cannot tell.
                        let part_bytes = [size, size / 2 + 1, size / 100 + 1][round as usize].max(1);
                        send(mesh, 1, lane, seed, &contents(seed, size), part_bytes);
                    } else {
                        let by_body = (index + round as usize) % 2 == 0;
                        assert_eq!(receive(mesh, 0, lane, seed, by_body), contents(seed, size));
                    }
                }
            }
        }
    });
}

fn a_full_lane_says_so_and_holds_up_no_other(transport: Transport) {
    run(transport, 2, |mesh| {
        if mesh.rank == 0 {
            let body = [7; 100];
            let mut sent = 0;
            // A lane that never fills up would run out of numbers instead.
            while sent <= GEOMETRY.slots as u64 && support::try_send(mesh, 1, 0, sent, &body, 100) {
                sent += 1;
            }
            assert!(
                (1..=GEOMETRY.slots as u64).contains(&sent),
                "{sent} messages fit into {} slots",
                GEOMETRY.slots
            );
            for lane in 1..GEOMETRY.lanes {
                send(mesh, 1, lane, sent, &body, 100);
            }
            for number in sent..2 * GEOMETRY.slots as u64 + 2 {
                send(mesh, 1, 0, number, &body, 100);
            }
        } else {
            for lane in 1..GEOMETRY.lanes {
                until(mesh, "the other lanes", |mesh| mesh.links[0].as_mut()?.head(lane).unwrap());
            }
            for number in 0..2 * GEOMETRY.slots as u64 + 2 {
                assert_eq!(receive(mesh, 0, 0, number, number % 2 == 0), [7; 100]);
            }
        }
    });
}

/// Both ranks fill every lane with the largest messages before they receive anything.
fn both_directions_at_once_do_not_deadlock(transport: Transport) {
    run(transport, 2, |mesh| {
        let peer = 1 - mesh.rank;
        let body = contents(1, GEOMETRY.slot_bytes);
        for number in 0..GEOMETRY.slots as u64 {
            for lane in 0..GEOMETRY.lanes {
                send(mesh, peer, lane, number, &body, GEOMETRY.slot_bytes);
            }
        }
        for lane in (0..GEOMETRY.lanes).rev() {
            for number in 0..GEOMETRY.slots as u64 {
                assert_eq!(receive(mesh, peer, lane, number, lane % 2 == 0), body);
            }
        }
    });
}

/// More than the kernel keeps for a connection: sent in several calls, from several parts, and received
/// partly before anybody asks for it.
fn messages_longer_than_any_buffer_pass_in_pieces(transport: Transport) {
    let geometry = Geometry { lanes: 2, slots: 2, slot_bytes: 12 << 20, ..GEOMETRY };
    run_with(transport, 2, geometry, |mesh| {
        for number in 0..4 {
            for lane in 0..geometry.lanes {
                let body = contents(number << 8 | lane as u64, geometry.slot_bytes);
                if mesh.rank == 0 {
                    send(mesh, 1, lane, number, &body, body.len() / 5);
                    continue;
                }
                until(mesh, "a head", |mesh| mesh.links[0].as_mut()?.head(lane).unwrap());
                (0..number as u32).for_each(|_| support::rest(mesh, 1, "more of the body"));
                // Not `assert_eq`: nobody wants to read twelve megabytes.
                assert!(
                    receive(mesh, 0, lane, number, number == 3) == body,
                    "message {number} of lane {lane}"
                );
            }
        }
    });
}

/// Each rank moves messages of random sizes on all lanes, whichever is ready, in random turns.
fn random_traffic_survives(transport: Transport) {
    const COUNT: u64 = 400;
    run(transport, 2, |mesh| {
        let peer = 1 - mesh.rank;
        let size = |from: usize, lane: usize, number: u64| {
            let dice = support::stir((from as u64) << 48 | (lane as u64) << 32 | number);
            (dice >> 8) as usize % [8, 300, GEOMETRY.slot_bytes + 1][dice as usize % 3]
        };
        let mut dice = mesh.rank as u64;
        let mut moved = [(0, 0); GEOMETRY.lanes];
        let mut rounds = 0;
        while moved.iter().any(|&lane| lane != (COUNT, COUNT)) {
            dice = support::stir(dice);
            let lane = dice as usize % GEOMETRY.lanes;
            let (sent, received) = moved[lane];
            let before = moved[lane];
            if sent < COUNT {
                let body = contents(sent, size(mesh.rank, lane, sent));
                // A half-sent message must be sent on before anything else: never roll dice for it.
                let part_bytes = body.len() / 3 + 1;
                moved[lane].0 += u64::from(support::try_send(mesh, peer, lane, sent, &body, part_bytes));
            }
            if received < COUNT {
                let body = support::try_receive(mesh, peer, lane, received, dice >> 40 & 1 == 0);
                if let Some(body) = body {
                    assert_eq!(body, contents(received, size(peer, lane, received)));
                    moved[lane].1 += 1;
                }
            }
            rounds = if moved[lane] == before { rounds + 1 } else { 0 };
            support::rest(mesh, rounds, "random traffic");
        }
    });
}

fn everybody_talks_to_everybody(transport: Transport) {
    run(transport, 4, |mesh| {
        for number in 0..50 {
            for shift in 1..mesh.ranks {
                let (to, from) =
                    ((mesh.rank + shift) % mesh.ranks, (mesh.rank + mesh.ranks - shift) % mesh.ranks);
                send(mesh, to, shift % GEOMETRY.lanes, number, &contents(mesh.rank as u64, 1000), 1000);
                let body = receive(mesh, from, shift % GEOMETRY.lanes, number, shift == 2);
                assert_eq!(body, contents(from as u64, 1000));
            }
        }
    });
}

fn a_window_shows_what_was_written_before_the_signal(transport: Transport) {
    let windows = run(transport, 3, |mesh| {
        let Some(mut window) = mesh.window.take() else {
            return false;
        };
        assert_eq!(window.bytes(), GEOMETRY.window_bytes);
        let next = (mesh.rank + 1) % mesh.ranks;
        for value in 1..200u64 {
            let body = contents(value << 8 | mesh.rank as u64, 3000);
            let (channel, bank) = (value as usize % GEOMETRY.channels, value as usize % 2);
            unisono_cuda::copy(window.target(mesh.rank, 64 * bank, 3000), body[..].into());
            window.set_tag(channel, bank, &Tag([value, mesh.rank as u64, 3, 4]));
            window.signal(channel, value);
            until(mesh, "a signal", |_| (window.signals(next, channel) >= value).then_some(()));
            let mut seen = vec![0; 3000];
            unisono_cuda::copy(seen[..].as_mut().into(), window.source(next, 64 * bank, 3000));
            assert_eq!(seen, contents(value << 8 | next as u64, 3000), "value {value}");
            assert_eq!(window.tag(next, channel, bank), Tag([value, next as u64, 3, 4]));
            window.done(channel, value);
            for peer in 0..mesh.ranks {
                until(mesh, "the others", |_| (window.dones(peer, channel) >= value).then_some(()));
            }
        }
        true
    });
    let expected = matches!(transport, Transport::Threads | Transport::Shm);
    assert_eq!(windows, [expected; 3]);
}

fn notes_arrive_in_order_and_the_end_once(transport: Transport) {
    run(transport, 3, |mesh| {
        if mesh.rank == 2 {
            for peer in 0..2 {
                for size in [0, 1, unisono_transports::MAX_NOTE_BYTES] {
                    mesh.control.post(peer, &vec![size as u8; size]);
                }
            }
            return;
        }
        let mut news = Vec::new();
        until(mesh, "three notes and the end", |mesh| {
            news.extend(std::iter::from_fn(|| mesh.control.poll()).filter(|event| is_from(event, 2)));
            (news.len() >= 4).then_some(())
        });
        let note = |size: usize| Event::Note { from: 2, bytes: vec![size as u8; size] };
        let expected =
            [note(0), note(1), note(unisono_transports::MAX_NOTE_BYTES), Event::Closed { from: 2 }];
        assert_eq!(news, expected);
        assert!((0..10).all(|_| mesh.control.poll().is_none_or(|event| !is_from(&event, 2))));
    });
}

/// The last messages before the end are the ones that a careless close loses. More is sent than the
/// receiver's kernel takes unasked, and the receiver answers with room that nobody will read.
fn what_was_sent_before_leaving_still_arrives(transport: Transport) {
    let geometry = Geometry { lanes: 2, slots: 8, slot_bytes: 512 << 10, ..GEOMETRY };
    for _ in 0..3 {
        run_with(transport, 2, geometry, |mesh| {
            for number in 0..geometry.slots as u64 {
                for lane in 0..geometry.lanes {
                    let body = contents(number, geometry.slot_bytes);
                    match mesh.rank {
                        0 => send(mesh, 1, lane, number, &body, geometry.slot_bytes),
                        _ => assert!(receive(mesh, 0, lane, number, number % 2 == 0) == body),
                    }
                }
                // The receiver begins when the sender is about to leave.
                while mesh.rank == 1 && number == 0 && mesh.pace.now() < Duration::from_millis(30) {
                    mesh.pace.pause(1000);
                }
            }
        });
    }
}

fn sending_to_the_gone_returns(transport: Transport) {
    run(transport, 2, |mesh| {
        if mesh.rank == 1 {
            return;
        }
        until(mesh, "the end", |mesh| mesh.control.poll());
        let start = mesh.pace.now();
        // Refused, or accepted for nobody; but never waited for.
        for number in 0..100 {
            let link = mesh.links[1].as_mut().unwrap();
            let body = [1u8; 1000];
            let sent = link.try_send(0, &Tag([number; 4]), 1000, &mut std::iter::once(body[..].into()));
            let head = link.head(0);
            if sent.is_err() || head.is_err() {
                break;
            }
            assert_eq!(head.unwrap(), None);
        }
        assert!(mesh.pace.now() - start < Duration::from_secs(1));
    });
}

fn is_from(event: &Event, rank: usize) -> bool {
    matches!(event, Event::Note { from, .. } | Event::Closed { from } if *from == rank)
}
