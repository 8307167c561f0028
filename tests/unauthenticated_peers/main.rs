//! Whoever else knocks: a thousand connections of all kinds harm nobody, and keep nobody waiting.

mod attacks;
mod listeners;

#[path = "../support/mod.rs"]
mod support;

use attacks::Flood;
use listeners::listening_addresses;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::UnixStream;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use support::World;
use unisono::{Communicator, Config, Result, Sum, Transport, UniqueId, status};
use unisono_transports::sys::rlimit;

const LOOPBACK: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);
/// What strangers may cost those who belong here.
const EXTRA_MAX: Duration = Duration::from_secs(1);

/// One test at a time: they look at what this process listens on, and at how long things take.
fn exclusive() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    rlimit::raise_fd_limit(8192);
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

fn config() -> Config {
    Config::default().with_transport(Transport::Tcp).with_join_timeout(Duration::from_secs(20))
}

/// The right sum, and how long it took.
fn sum(comm: &Communicator) -> Duration {
    let (begun, mut sum) = (Instant::now(), [comm.rank() as u64 + 1; 3000]);
    comm.all_reduce(&mut sum, Sum).expect("nobody is disturbed");
    assert_eq!(sum, [3; 3000]);
    begun.elapsed()
}

/// Two ranks meet at `id`, the second when `before` has been called and the first listens; how long that took it.
fn bootstrap(id: &UniqueId, before: impl FnOnce(SocketAddr)) -> Duration {
    std::thread::scope(|scope| {
        let join = |rank| -> Result<Communicator> { Communicator::join(id, rank, 2, &config()) };
        let first = scope.spawn(move || join(0).map(|comm| sum(&comm)));
        while !listening_addresses().contains(&id.address()) {
            std::thread::sleep(Duration::from_millis(1));
        }
        before(id.address());
        let begun = Instant::now();
        let second = join(1).expect("it belongs here");
        let took = begun.elapsed();
        sum(&second);
        first.join().expect("no panic").expect("it belongs here");
        took
    })
}

fn id() -> UniqueId {
    UniqueId::new(LOOPBACK).expect("a free port")
}

#[test]
fn unauthenticated_flood_does_not_delay_bootstrap() {
    let _alone = exclusive();
    let usual = bootstrap(&id(), |_| {});
    for kinds in [attacks::ALL, &attacks::ALL[..1]] {
        let (id, mut flood) = (id(), None);
        let took = bootstrap(&id, |address| flood = Some(Flood::begin(address, &id, kinds, 1000)));
        println!("{} kinds of strangers: {took:?} instead of {usual:?}", kinds.len());
        assert!(took < usual + EXTRA_MAX, "it took {took:?} instead of {usual:?}");
        let came = flood.expect("begun").end();
        assert!(came > 50, "only {came} strangers came meanwhile");
    }
}

#[test]
fn unauthenticated_flood_does_not_harm_running_job() {
    let _alone = exclusive();
    let (before, comms) = (listening_addresses(), World::Tcp.communicators(2, &config()));
    let doors: Vec<SocketAddr> =
        listening_addresses().into_iter().filter(|door| !before.contains(door)).collect();
    assert_eq!(doors.len(), 2, "a door for each rank");
    let floods: Vec<_> = doors.iter().map(|&door| Flood::begin(door, &id(), attacks::ALL, 500)).collect();
    // The connections for messages are made by the first of them, through those doors.
    let times = std::thread::scope(|scope| {
        let work = |comm: &Communicator| (0..200).map(|_| sum(comm)).max();
        let threads: Vec<_> = comms.iter().map(|comm| scope.spawn(move || work(comm))).collect();
        threads.into_iter().map(|thread| thread.join().expect("no panic")).collect::<Vec<_>>()
    });
    println!("longest sums beside strangers: {times:?}");
    assert!(times.iter().flatten().all(|&time| time < EXTRA_MAX), "{times:?}");
    let came: usize = floods.into_iter().map(Flood::end).sum();
    assert!(came > 50, "only {came} strangers came meanwhile");
}

#[test]
fn silent_clients_do_not_block_status() {
    let _alone = exclusive();
    let (id, config) = (id(), config().with_status_server(true));
    let comm = Communicator::join(&id, 0, 1, &config).expect("a world of one");
    comm.barrier().expect("it works");
    let name = format!("unisono-status-{}", std::process::id());
    let address = std::os::unix::net::SocketAddr::from_abstract_name(name).expect("a name");
    let silent: Vec<_> = (0..1000).filter_map(|_| UnixStream::connect_addr(&address).ok()).collect();
    assert_eq!(silent.len(), 1000);
    let begun = Instant::now();
    let answer = status::query(std::process::id(), &id).expect("an answer");
    assert!(answer.contains("barrier #0"), "{answer}");
    assert!(begun.elapsed() < EXTRA_MAX, "after {:?}", begun.elapsed());
    assert!(status::query(std::process::id(), &self::id()).is_err(), "of another job");
}

#[test]
fn listeners_bind_loopback_and_never_all_interfaces() {
    let _alone = exclusive();
    let own = |last| IpAddr::V4(Ipv4Addr::new(127, 0, 0, last));
    for (meeting, bind) in [(own(1), None), (own(1), Some(own(3))), ("::1".parse().unwrap(), None)] {
        let id = UniqueId::new(meeting).expect("a free port");
        let config = config().with_bind_addr(bind);
        let before = listening_addresses();
        let new =
            || listening_addresses().into_iter().filter(|door| !before.contains(door)).collect::<Vec<_>>();
        std::thread::scope(|scope| {
            let join = |rank| Communicator::join(&id, rank, 2, &config).expect("met");
            let first = scope.spawn(move || join(0));
            while !new().contains(&id.address()) {
                std::thread::sleep(Duration::from_millis(1));
            }
            let allowed = [Some(meeting), bind];
            assert!(new().iter().all(|door| allowed.contains(&Some(door.ip()))), "{:?}", new());
            let comms = (join(1), first.join().expect("no panic"));
            let doors: Vec<IpAddr> = new().iter().map(SocketAddr::ip).collect();
            assert_eq!(doors, [bind.unwrap_or(meeting); 2]);
            drop(comms);
        });
    }
}
