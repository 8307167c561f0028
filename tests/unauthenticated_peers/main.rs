//! A thousand connections of unauthenticated peers neither harm nor delay a job.

mod attacks;
mod listeners;

#[path = "../support/mod.rs"]
mod support;

use attacks::Flood;
use listeners::listening_addresses;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::UnixStream;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use support::World;
use unisono::{Communicator, Config, Interface, Result, Sum, Transport, UniqueId, status};
use unisono_transports::sys::rlimit;
use unisono_transports::testing::{HANG, NEVER, has_ipv6};

const LOOPBACK: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);
/// Connections that the ranks of a test and their pools may have, beside those of attackers.
const FDS_OF_RANKS: usize = 640;

/// Returns how many of `wanted` attackers the descriptors of this process allow, more than one pool
/// of connections holds.
fn attackers(wanted: usize) -> usize {
    let room = rlimit::raise_fd_limit(wanted + FDS_OF_RANKS);
    let attackers = wanted.min(room.saturating_sub(FDS_OF_RANKS));
    assert!(attackers > POOL, "only {room} descriptors: `ulimit -n` must be 1024 at least");
    attackers
}

/// Connections that a listener holds before they are authenticated.
const POOL: usize = 256;

/// Serializes the tests, because they look at the listeners of the process and need many
/// descriptors.
fn exclusive() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

fn config() -> Config {
    Config::default().with_transport(Transport::Tcp).with_join_timeout(NEVER).with_timeout(NEVER)
}

/// Checks an all_reduce, and returns its time.
fn sum(comm: &Communicator) -> Duration {
    let (begun, mut sum) = (Instant::now(), [comm.rank() as u64 + 1; 3000]);
    comm.all_reduce(&mut sum, Sum).expect("the attacks do no harm");
    assert_eq!(sum, [3; 3000]);
    begun.elapsed()
}

/// Joins two ranks at `id`, and returns the time of the second, which joins after rank 0 listens
/// and `interlude` returns.
fn bootstrap(id: &UniqueId, interlude: impl FnOnce(SocketAddr)) -> Duration {
    std::thread::scope(|scope| {
        let join = |rank| -> Result<Communicator> { Communicator::join(id, rank, 2, &config()) };
        let first = scope.spawn(move || join(0).map(|comm| sum(&comm)));
        while !listening_addresses().contains(&id.address()) {
            std::thread::sleep(Duration::from_millis(1));
        }
        interlude(id.address());
        let begun = Instant::now();
        let second = join(1).expect("an authenticated rank");
        let took = begun.elapsed();
        sum(&second);
        first.join().expect("no panic").expect("an authenticated rank");
        took
    })
}

fn id() -> UniqueId {
    UniqueId::new(LOOPBACK).expect("a free port")
}

#[test]
fn unauthenticated_flood_does_not_delay_bootstrap() {
    let _alone = exclusive();
    let (usual, attackers) = (bootstrap(&id(), |_| {}), attackers(1000));
    for kinds in [attacks::ALL, &attacks::ALL[..1]] {
        let (id, mut flood) = (id(), None);
        let took = bootstrap(&id, |address| flood = Some(Flood::begin(address, &id, kinds, attackers)));
        println!("{} kinds of {attackers} attacks: {took:?} instead of {usual:?}", kinds.len());
        // One after the other, the silent ones would cost two seconds each.
        assert!(took < HANG, "it took {took:?} instead of {usual:?}");
        let came = flood.expect("begun").end();
        assert!(came > 50, "only {came} attackers connected");
    }
}

#[test]
fn unauthenticated_flood_does_not_harm_running_job() {
    let _alone = exclusive();
    let (earlier, comms) = (listening_addresses(), World::Tcp.communicators(2, &config()));
    let listeners: Vec<SocketAddr> =
        listening_addresses().into_iter().filter(|address| !earlier.contains(address)).collect();
    assert_eq!(listeners.len(), 2, "a listener for each rank");
    let each = attackers(1000) / 2;
    let floods: Vec<_> =
        listeners.iter().map(|&address| Flood::begin(address, &id(), attacks::ALL, each)).collect();
    // The first operation makes the data connections, through these listeners.
    let times = std::thread::scope(|scope| {
        let work = |comm: &Communicator| (0..200).map(|_| sum(comm)).max();
        let threads: Vec<_> = comms.iter().map(|comm| scope.spawn(move || work(comm))).collect();
        threads.into_iter().map(|thread| thread.join().expect("no panic")).collect::<Vec<_>>()
    });
    println!("longest operations during the attacks: {times:?}");
    assert!(times.iter().flatten().all(|&time| time < HANG), "{times:?}");
    let came: usize = floods.into_iter().map(Flood::end).sum();
    assert!(came > 50, "only {came} attackers connected");
}

#[test]
fn silent_clients_do_not_block_status() {
    let _alone = exclusive();
    let (id, config) = (id(), config().with_status_server(true));
    let comm = Communicator::join(&id, 0, 1, &config).expect("a world of one");
    comm.barrier().expect("it works");
    let name = format!("unisono-status-{}", std::process::id());
    let address = std::os::unix::net::SocketAddr::from_abstract_name(name).expect("a name");
    let attackers = attackers(1000);
    let silent: Vec<_> = (0..attackers).filter_map(|_| UnixStream::connect_addr(&address).ok()).collect();
    assert_eq!(silent.len(), attackers);
    let begun = Instant::now();
    let answer = status::query(std::process::id(), &id).expect("an answer");
    assert!(answer.contains("barrier #0"), "{answer}");
    assert!(begun.elapsed() < HANG, "after {:?}", begun.elapsed());
    assert!(status::query(std::process::id(), &self::id()).is_err(), "of another job");
}

#[test]
fn listeners_bind_loopback_and_never_all_interfaces() {
    let _alone = exclusive();
    let loopback = |last| IpAddr::V4(Ipv4Addr::new(127, 0, 0, last));
    let mut cases = vec![(loopback(1), None), (loopback(1), Some(loopback(3)))];
    if has_ipv6("a listener") {
        cases.push((Ipv6Addr::LOCALHOST.into(), None));
    }
    for (meeting, bind) in cases {
        let id = UniqueId::new(meeting).expect("a free port");
        let config = config().with_bind_addr(bind.map(Interface::from));
        let earlier = listening_addresses();
        let new = || {
            listening_addresses().into_iter().filter(|address| !earlier.contains(address)).collect::<Vec<_>>()
        };
        std::thread::scope(|scope| {
            let join = |rank| Communicator::join(&id, rank, 2, &config).expect("met");
            let first = scope.spawn(move || join(0));
            while !new().contains(&id.address()) {
                std::thread::sleep(Duration::from_millis(1));
            }
            let allowed = [Some(meeting), bind];
            assert!(new().iter().all(|address| allowed.contains(&Some(address.ip()))), "{:?}", new());
            let comms = (join(1), first.join().expect("no panic"));
            let listeners: Vec<IpAddr> = new().iter().map(SocketAddr::ip).collect();
            assert_eq!(listeners, [bind.unwrap_or(meeting); 2]);
            drop(comms);
        });
    }
}
