//! Real processes that are killed at any moment, in the middle of a recovery too: the others go on within seconds, again and
//! again, and keep nothing of those that are gone. `TEST_KILLED_CYCLES` asks for more cycles than CI has time for.

use std::io::{BufRead, BufReader, Write};
use std::net::{IpAddr, Ipv4Addr};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::thread::sleep;
use std::time::{Duration, Instant};
use unisono::{Communicator, Config, Sum, UniqueId};

const RANKS: usize = 5;
/// Of each cycle: they are killed, the others are not.
const VICTIMS: usize = 2;
const CYCLES: usize = 10;

/// A process that takes part in one world after the other.
struct Process {
    child: Child,
    orders: ChildStdin,
    lines: Receiver<String>,
}

impl Process {
    fn start() -> Self {
        let mut command = Command::new(std::env::current_exe().expect("this test"));
        command.args(["--exact", "--nocapture", "takes_part"]).env("TEST_KILLED", "1");
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .expect("it starts");
        let (said, lines) = channel();
        let out = BufReader::new(child.stdout.take().expect("piped"));
        std::thread::spawn(move || {
            let told = out
                .lines()
                .map_while(Result::ok)
                .filter_map(|line| Some(line.strip_prefix("> ")?.to_owned()));
            told.for_each(|line| drop(said.send(line)));
        });
        Self { orders: child.stdin.take().expect("piped"), child, lines }
    }

    fn order(&mut self, order: &str) {
        writeln!(self.orders, "{order}").expect("it listens");
    }

    fn hear(&self) -> String {
        self.lines.recv_timeout(Duration::from_secs(20)).expect("it says something")
    }

    fn kill(&mut self) {
        self.child.kill().expect("it lives");
        self.child.wait().expect("it ends");
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Not a test of its own: what the processes of the next one do.
#[test]
fn takes_part() {
    if std::env::var_os("TEST_KILLED").is_none() {
        return;
    }
    for order in std::io::stdin().lines().map_while(Result::ok) {
        let [id, rank, transport] = order.split(' ').collect::<Vec<_>>()[..] else { panic!("{order}") };
        let transport = transport.parse().expect("a transport");
        let config = Config { transport, timeout: Duration::from_secs(10), ..Config::default() };
        let number = rank.parse().expect("a rank");
        let comm = Communicator::join(&id.parse().expect("an id"), number, RANKS, &config).expect("all come");
        println!("> there");
        println!("> {}", survive(comm, number));
    }
}

/// Sums until the victims are gone, and says what this process keeps then.
fn survive(mut comm: Communicator, number: usize) -> String {
    loop {
        let mut values = vec![1.0f32 + number as f32; 20_000];
        match comm.all_reduce(&mut values, Sum) {
            Err(_) => comm = comm.shrink().expect("some are left"),
            Ok(()) if comm.ranks() > RANKS - VICTIMS => {}
            Ok(()) => {
                assert!(values.iter().all(|value| *value == values[0]));
                let (rank, ranks, sum) = (comm.rank(), comm.ranks(), values[0]);
                drop(comm);
                return format!("{rank} {ranks} {sum} {}", kept());
            }
        }
    }
}

/// Descriptors, threads and resident KiB of this process, once the last doorman has gone.
fn kept() -> String {
    sleep(Duration::from_millis(30));
    let status = std::fs::read_to_string("/proc/self/status").expect("proc");
    let field = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name)).expect("a field");
        line.trim_end_matches("kB").trim().to_owned()
    };
    let descriptors = std::fs::read_dir("/proc/self/fd").expect("proc").count();
    format!("{descriptors} {} {}", field("Threads:"), field("VmRSS:"))
}

/// Numbers that look random.
struct Random(u64);

impl Random {
    fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % end
    }
}

/// What the three survivors of one cycle keep, and how long it took them to go on.
fn cycle(survivors: &mut [Process], transport: &str, random: &mut Random) -> (Vec<Vec<usize>>, Duration) {
    let id = UniqueId::new(IpAddr::V4(Ipv4Addr::LOCALHOST)).expect("an id");
    let mut victims = [Process::start(), Process::start()];
    let mut numbers: Vec<usize> = (0..RANKS).collect();
    (1..RANKS).rev().for_each(|end| numbers.swap(end, random.below(end as u64 + 1) as usize));
    let (dying, staying) = numbers.split_at_mut(VICTIMS);
    staying.sort_unstable();
    for (process, number) in victims.iter_mut().zip(dying).chain(survivors.iter_mut().zip(&mut *staying)) {
        process.order(&format!("{id} {number} {transport}"));
    }
    survivors.iter().chain(&victims).for_each(|process| assert_eq!(process.hear(), "there"));
    sleep(Duration::from_millis(random.below(30)));
    victims[0].kill();
    sleep(Duration::from_micros(random.below(20_000)));
    victims[1].kill();
    let killed = Instant::now();
    let sum: usize = staying.iter().map(|number| number + 1).sum();
    let keep = |(rank, process): (usize, &Process)| {
        let words: Vec<String> = process.hear().split(' ').map(str::to_owned).collect();
        assert_eq!(words[..3], [rank.to_string(), staying.len().to_string(), sum.to_string()], "{transport}");
        words[3..].iter().map(|word| word.parse().expect("a number")).collect()
    };
    (survivors.iter().enumerate().map(keep).collect(), killed.elapsed())
}

#[test]
fn survivors_go_on_within_three_seconds_and_nothing_grows() {
    let cycles = std::env::var("TEST_KILLED_CYCLES").map_or(CYCLES, |text| text.parse().expect("a number"));
    for transport in ["shm", "tcp"] {
        let mut survivors = [0; RANKS - VICTIMS].map(|_| Process::start());
        let mut random = Random(cycles as u64 + transport.len() as u64);
        let mut times = Vec::new();
        let mut first = Vec::new();
        for number in 0..cycles {
            let (kept, elapsed) = cycle(&mut survivors, transport, &mut random);
            assert!(elapsed < Duration::from_secs(3), "{transport}, cycle {number}: {elapsed:?}");
            times.push(elapsed);
            if number == cycles / 4 {
                first = kept;
            } else if number + 1 == cycles {
                for (now, before) in kept.iter().zip(&first) {
                    assert_eq!(now[..2], before[..2], "{transport}: descriptors, threads");
                    assert!(
                        now[2] < before[2] + SLACK_KIB,
                        "{transport}: {} KiB became {}",
                        before[2],
                        now[2]
                    );
                }
            }
        }
        times.sort_unstable();
        println!("{transport}: half within {:?}, all within {:?}", times[cycles / 2], times[cycles - 1]);
    }
}

/// What an allocator keeps.
const SLACK_KIB: usize = 24 << 10;
