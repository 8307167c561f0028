//! Sends and receives between GPUs.

use crate::world::{config, run};

#[test]
fn groups_match_in_any_order() {
    run(3, &config(), |comm, stream| {
        let (rank, ranks) = (comm.rank(), comm.size());
        let (next, previous) = ((rank + 1) % ranks, (rank + ranks - 1) % ranks);
        let long = comm.gpu().upload(&vec![rank as u32; 10_000]).unwrap();
        let short = comm.gpu().upload(&[rank as u8; 3]).unwrap();
        let mut long_in = comm.gpu().alloc::<u32>(10_000).unwrap();
        let (mut short_in, mut own_in) =
            (comm.gpu().alloc::<u8>(3).unwrap(), comm.gpu().alloc::<u8>(3).unwrap());
        for _ in 0..3 {
            comm.group(&stream, |group| {
                group.recv(&mut long_in, previous).send(&short, previous).send(&long, next);
                group.recv(&mut short_in, next).send(&short, rank).recv(&mut own_in, rank);
            })
            .unwrap();
        }
        comm.synchronize(&stream).unwrap();
        assert_eq!(long_in.to_vec(&stream).unwrap(), vec![previous as u32; 10_000]);
        assert_eq!(short_in.to_vec(&stream).unwrap(), [next as u8; 3]);
        assert_eq!(own_in.to_vec(&stream).unwrap(), [rank as u8; 3]);
    });
}

#[test]
fn send_recv_involves_only_its_ranks() {
    run(3, &config(), |comm, stream| {
        let mut value = comm.gpu().upload(&[comm.rank() as i64]).unwrap();
        match comm.rank() {
            0 => comm.send(&stream, &value, 2).unwrap(),
            2 => comm.recv(&stream, &mut value, 0).unwrap(),
            _ => {}
        }
        comm.barrier(&stream).unwrap();
        comm.synchronize(&stream).unwrap();
        assert_eq!(value.to_vec(&stream).unwrap(), [[0, 1, 0][comm.rank()]]);
    });
}

#[test]
fn self_send_must_be_received() {
    run(1, &config(), |comm, stream| {
        let value = comm.gpu().upload(&[1i32]).unwrap();
        let error = comm.send(&stream, &value, 0).unwrap_err();
        assert!(error.is_invalid_usage(), "{error}");
        assert!(comm.send(&stream, &value, 1).unwrap_err().is_invalid_usage(), "no such rank");
        comm.check().unwrap();
    });
}
