//! Many ranks, communicators and processes on one GPU.

use crate::collectives::{case, exercise};
use crate::world::{config, gpu, run};
use std::error::Error as _;
use std::process::Command;
use unisono::device::{DeviceCommunicator, Gpu, GpuError, Stream};
use unisono::schedule::Collective;
use unisono::{Communicator, Config, Error, Sum, Transport, UniqueId};
use unisono_cuda::emulator;
use unisono_transports::testing::warnings::Warnings;

/// Runs `body` in a process of its own with this many hardware queues.
fn with_queues(test: &str, queues: &str, body: impl FnOnce()) {
    if gpu().is_none() {
        return;
    }
    if std::env::var_os(ALONE).is_some_and(|test| test == queues) {
        return body();
    }
    if std::env::var_os(ALONE).is_some() {
        return;
    }
    let mut process = Command::new(std::env::current_exe().unwrap());
    process.args([test, "--exact", "--nocapture"]).env(ALONE, queues);
    let output = process.env("CUDA_DEVICE_MAX_CONNECTIONS", queues).output().unwrap();
    let text = [output.stdout, output.stderr].map(|text| String::from_utf8_lossy(&text).into_owned());
    // A wrong name would run no test and succeed.
    assert!(output.status.success() && text[0].contains("1 passed"), "{test}: {}{}", text[0], text[1]);
}

/// Runs `body` as [`with_queues`] does, on an emulated GPU that runs so many blocks at once.
fn with_blocks(test: &str, blocks: u32, body: impl FnOnce()) {
    if gpu().is_some_and(|gpu| gpu.is_emulated()) {
        with_queues(test, "32", || {
            emulator::set_max_resident_blocks(blocks).unwrap();
            body();
        });
    }
}

/// Tells a process of its own its number of queues.
const ALONE: &str = "UNISONO_TEST_DEVICE_QUEUES";

fn with_channels(channels: usize) -> Config {
    let gpu = config().gpu;
    config().with_gpu(gpu.with_channels(channels))
}

/// Joins `ranks` ranks on one GPU, and returns the errors.
fn join_errors(ranks: usize) -> Vec<Error> {
    let gpu = gpu().unwrap();
    let comms = Communicator::builder().config(&config()).local(ranks).unwrap();
    std::thread::scope(|scope| {
        let join = |comm: Communicator| {
            let gpu = &gpu;
            scope.spawn(move || comm.to_device(gpu).map(drop))
        };
        let threads: Vec<_> = comms.into_iter().map(join).collect();
        threads.into_iter().filter_map(|thread| thread.join().unwrap().err()).collect()
    })
}

fn sum_of_ones(comm: &DeviceCommunicator, stream: &Stream, count: usize) {
    let mut values = comm.gpu().upload(&vec![1i32; count]).unwrap();
    comm.all_reduce(stream, &mut values, Sum).unwrap();
    comm.synchronize(stream).unwrap();
    assert_eq!(values.to_vec(stream).unwrap(), vec![comm.size() as i32; count]);
}

#[test]
fn ranks_beyond_hardware_queues_get_a_remedy() {
    const TEST: &str = "scale::ranks_beyond_hardware_queues_get_a_remedy";
    with_queues(TEST, "8", || {
        assert_eq!(gpu().unwrap().hardware_queues(), 8);
        let errors = join_errors(8);
        assert_eq!(errors.len(), 8, "all ranks are refused");
        for error in errors {
            let source = error.source().and_then(|source| source.downcast_ref::<GpuError>());
            assert_eq!(source, Some(&GpuError::TooFewQueues { ranks: 8, queues: 8 }));
            let error = error.to_string();
            for part in ["8 ranks", "8 hardware queues", "CUDA_DEVICE_MAX_CONNECTIONS=32"] {
                assert!(error.contains(part), "{error}");
            }
        }
        assert!(join_errors(7).is_empty());
    });
}

#[test]
fn ranks_with_queues_of_their_own_are_right() {
    with_queues("scale::ranks_with_queues_of_their_own_are_right", "32", || {
        run(8, &config(), |comm, stream| {
            for count in [2, 16 << 10] {
                sum_of_ones(&comm, &stream, count);
            }
        });
    });
}

/// The GPU that most of this is for has so many.
const MULTIPROCESSORS: u32 = 132;

#[test]
fn sixteen_ranks_share_a_gpu() {
    with_blocks("scale::sixteen_ranks_share_a_gpu", MULTIPROCESSORS, || {
        let config = with_channels(8);
        run(16, &config, |comm, stream| {
            assert_eq!(comm.channels(), 4, "16 x 4 x 2 of 132 blocks");
            for collective in Collective::ALL.into_iter().filter(|collective| !collective.is_scan()) {
                for count in [3, 1500] {
                    exercise::<i32>(&comm, &stream, case(collective, count, false));
                }
            }
            exchange_uneven(&comm, &stream);
            exchange_with_all(&comm, &stream);
        });
    });
}

fn exchange_uneven(comm: &DeviceCommunicator, stream: &Stream) {
    let (rank, ranks) = (comm.rank(), comm.size());
    let count = |sender: usize, receiver: usize| (sender * 7 + receiver * 3) % 5 * 300;
    let value = |sender: usize, receiver: usize, index: usize| {
        (sender * 1_000_000 + receiver * 10_000 + index) as i32
    };
    let sends: Vec<usize> = (0..ranks).map(|receiver| count(rank, receiver)).collect();
    let receives: Vec<usize> = (0..ranks).map(|sender| count(sender, rank)).collect();
    let sent = |receiver: usize| (0..count(rank, receiver)).map(move |index| value(rank, receiver, index));
    let wanted = |sender: usize| (0..count(sender, rank)).map(move |index| value(sender, rank, index));
    let input = comm.gpu().upload(&(0..ranks).flat_map(sent).collect::<Vec<_>>()).unwrap();
    let mut output = comm.gpu().alloc::<i32>(receives.iter().sum()).unwrap();
    comm.all_to_all_v(stream, &input, &sends, &mut output, &receives).unwrap();
    comm.synchronize(stream).unwrap();
    assert_eq!(output.to_vec(stream).unwrap(), (0..ranks).flat_map(wanted).collect::<Vec<_>>());
}

/// One group that sends to all ranks, those of the lowest numbers first, and receives from all.
fn exchange_with_all(comm: &DeviceCommunicator, stream: &Stream) {
    let ranks = comm.size();
    let values = comm.gpu().upload(&vec![comm.rank() as u32; 2500]).unwrap();
    let mut found: Vec<_> = (0..ranks).map(|_| comm.gpu().alloc::<u32>(2500).unwrap()).collect();
    comm.group(stream, |group| {
        for (peer, found) in found.iter_mut().enumerate() {
            group.send(&values, peer).recv(found, peer);
        }
    })
    .unwrap();
    comm.synchronize(stream).unwrap();
    for (peer, found) in found.iter().enumerate() {
        assert_eq!(found.to_vec(stream).unwrap(), vec![peer as u32; 2500]);
    }
}

/// One transfer of a group of all ranks.
#[derive(Clone, Copy)]
struct Planned {
    from: usize,
    to: usize,
    count: usize,
}

/// Returns pseudorandom numbers below a limit.
fn random(seed: u64) -> impl FnMut(usize) -> usize {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    move |limit| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 33) as usize % limit
    }
}

/// Runs one group on this rank, whose transfers all ranks know. Each rank adds them in an order of
/// its own, apart from those between the same two ranks.
fn run_planned(comm: &DeviceCommunicator, stream: &Stream, planned: &[Planned], seed: u64) {
    let (gpu, rank) = (comm.gpu(), comm.rank());
    let data = |number: usize| -> Vec<u16> {
        (0..planned[number].count).map(|index| (number * 1009 + index) as u16).collect()
    };
    let numbers =
        |end: fn(&Planned) -> usize| (0..planned.len()).filter(move |&number| end(&planned[number]) == rank);
    let sent: Vec<_> =
        numbers(|each| each.from).map(|number| (number, gpu.upload(&data(number)).unwrap())).collect();
    let mut received: Vec<_> = numbers(|each| each.to)
        .map(|number| (number, gpu.alloc::<u16>(planned[number].count).unwrap()))
        .collect();
    let mut next = random(seed + rank as u64);
    let keys: Vec<usize> = (0..comm.size()).map(|_| next(1000)).collect();
    let mut sends: Vec<_> = sent.iter().collect();
    sends.sort_by_key(|(number, _)| keys[planned[*number].to]);
    let mut receives: Vec<_> = received.iter_mut().collect();
    receives.sort_by_key(|(number, _)| keys[planned[*number].from]);
    comm.group(stream, |group| {
        for (number, buffer) in sends {
            group.send(buffer, planned[*number].to);
        }
        for (number, buffer) in receives {
            group.recv(buffer, planned[*number].from);
        }
    })
    .unwrap();
    comm.synchronize(stream).unwrap();
    for (number, found) in &received {
        assert_eq!(found.to_vec(stream).unwrap(), data(*number), "transfer {number} to rank {rank}");
    }
}

#[test]
fn random_groups_arrive_on_few_lanes() {
    with_queues("scale::random_groups_arrive_on_few_lanes", "32", || {
        for channels in 1..=3 {
            run(5, &with_channels(channels), |comm, stream| {
                assert_eq!(comm.channels(), channels);
                (1..=8).for_each(|seed| run_random(&comm, &stream, seed));
            });
        }
    });
}

/// Runs a group of up to 40 transfers among all ranks, and of up to three slices each.
fn run_random(comm: &DeviceCommunicator, stream: &Stream, seed: u64) {
    let (mut next, ranks) = (random(seed), comm.size());
    let count = next(40) + 1;
    let planned: Vec<Planned> = (0..count)
        .map(|_| Planned { from: next(ranks), to: next(ranks), count: next(3) * next(3000) })
        .collect();
    run_planned(comm, stream, &planned, seed);
}

#[test]
fn six_communicators_on_a_gpu_work_at_once() {
    with_blocks("scale::six_communicators_on_a_gpu_work_at_once", MULTIPROCESSORS, || {
        let (gpu, config) = (gpu().unwrap(), with_channels(8));
        let worlds: Vec<_> =
            (0..6).map(|_| Communicator::builder().config(&config).local(2).unwrap()).collect();
        let of_rank = |rank: usize| worlds.iter().map(move |world| &world[rank]);
        std::thread::scope(|scope| {
            for rank in 0..2 {
                let (gpu, comms) = (&gpu, of_rank(rank));
                scope.spawn(move || work_at_once(gpu, comms));
            }
        });
    });
}

/// Enqueues operations of all communicators before it waits for any. Each rank uses another order.
fn work_at_once<'c>(gpu: &Gpu, comms: impl Iterator<Item = &'c Communicator>) {
    let comms: Vec<_> = comms.map(|comm| comm.to_device(gpu).unwrap()).collect();
    let channels: Vec<usize> = comms.iter().map(DeviceCommunicator::channels).collect();
    assert_eq!(channels, [8, 8, 8, 4, 2, 1]);
    let mut values: Vec<_> = comms.iter().map(|_| gpu.upload(&vec![1i32; 30_000]).unwrap()).collect();
    let streams: Vec<_> = comms.iter().map(|_| gpu.stream().unwrap()).collect();
    for turn in 0..12 {
        let index = if comms[0].rank() == 0 { turn % 6 } else { 5 - turn % 6 };
        comms[index].all_reduce(&streams[index], &mut values[index], Sum).unwrap();
    }
    for ((comm, stream), values) in comms.iter().zip(&streams).zip(&values) {
        comm.synchronize(stream).unwrap();
        assert_eq!(values.to_vec(stream).unwrap(), vec![4; 30_000]);
    }
}

/// Tells the second process the address of the bootstrap.
const MEETING: &str = "UNISONO_TEST_DEVICE_SHARING";

#[test]
fn processes_on_a_gpu_share_its_blocks() {
    const TEST: &str = "scale::processes_on_a_gpu_share_its_blocks";
    if let Ok(id) = std::env::var(MEETING) {
        emulator::install().and_then(|()| emulator::set_max_resident_blocks(12)).unwrap();
        return share_blocks(&id.parse().unwrap(), 1);
    }
    with_blocks(TEST, 12, || {
        let id = UniqueId::new(std::net::Ipv4Addr::LOCALHOST.into()).unwrap();
        let mut second = Command::new(std::env::current_exe().unwrap());
        let mut second = second.args([TEST, "--exact"]).env(MEETING, id.to_string()).spawn().unwrap();
        share_blocks(&id, 0);
        assert!(second.wait().unwrap().success(), "the second process failed");
    });
}

fn share_blocks(id: &UniqueId, rank: usize) {
    let gpu = gpu().unwrap();
    let comm = Communicator::join(id, rank, 2, &with_channels(8).with_transport(Transport::Tcp)).unwrap();
    let stream = gpu.stream().unwrap();
    let warnings = Warnings::of("device");
    let first = tracing::subscriber::with_default(warnings.clone(), || comm.to_device(&gpu).unwrap());
    let texts = warnings.texts();
    let about_mps = texts.iter().filter(|text| text.contains("nvidia-cuda-mps-control"));
    assert_eq!(about_mps.count(), 1 - rank, "one rank tells that the driver shares out time: {texts:?}");
    assert_eq!(first.channels(), 3, "both processes together have 12 blocks");
    sum_of_ones(&first, &stream, 3000);
    let error = comm.to_device(&gpu).map(drop).unwrap_err().to_string();
    assert!(error.contains("blocks at once"), "{error}");
}
