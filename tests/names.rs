//! Ranks of two hosts meet by names and addresses as networks have them: names that resolve late,
//! to several addresses, or to loopback, and link-local addresses. Each host is a network namespace
//! with a table of names of its own.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use unisono::{Communicator, Sum};

/// Names the part of a process that a test starts.
const ROLE: &str = "TEST_NAMES_ROLE";
const NAME: &str = "rank-0.example";

/// Not a test of its own: a rank on one of the hosts.
#[test]
fn started_rank() {
    if std::env::var_os(ROLE).is_none() {
        return;
    }
    match Communicator::from_env() {
        Ok(comm) => {
            // The first rank of the new communicator is on the other host.
            let reversed = comm.split(Some(0), -(comm.rank() as i32)).expect("a split").expect("a member");
            for comm in [&comm, &reversed] {
                let mut value = [comm.rank() as u64 + 1];
                comm.all_reduce(&mut value, Sum).expect("a sum");
                println!("sum {} of {} over {}", value[0], comm.size(), comm.transport());
            }
        }
        Err(error) => println!("error: {error}"),
    }
}

/// Two hosts with a link between them, `near` of rank 0 and `far` of rank 1.
struct Hosts {
    folder: PathBuf,
    /// Variables of both ranks, of rank 0, and of rank 1.
    variables: [String; 3],
    /// Commands of the shell while the ranks run.
    meanwhile: String,
}

/// The addresses are chosen so that the system tries 10.0.0.3, which nobody has, before 10.0.0.9.
const SETUP: &str = r#"
    set -e
    ip link set lo up
    unshare --net --mount sleep 300 & far=$!
    while [ "$(readlink /proc/$far/ns/net)" = "$(readlink /proc/self/ns/net)" ]; do sleep 0.02; done
    on_far() { nsenter --target $far --net --mount "$@"; }
    ip link add pad type veth peer name pad2
    ip link add near type veth peer name far netns $far
    ip addr add 10.0.0.9/24 dev near; ip addr add fe80::9/64 dev near nodad; ip link set near up
    on_far ip link set lo up
    on_far ip addr add 10.0.0.2/24 dev far; on_far ip addr add fe80::2/64 dev far nodad
    on_far ip link set far up
    for file in hosts resolv.conf; do
        mount --bind $FOLDER/near.$file /etc/$file; on_far mount --bind $FOLDER/far.$file /etc/$file
    done
"#;

impl Hosts {
    /// Hosts whose tables of names have these lines.
    fn new(test: &str, local: &str, remote: &str) -> Self {
        let folder =
            Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("names-{test}-{}", std::process::id()));
        std::fs::create_dir_all(&folder).expect("a folder");
        let hosts = |lines: &str| format!("127.0.0.1 localhost\n{lines}\n");
        for (file, text) in [("near.hosts", hosts(local)), ("far.hosts", hosts(remote))] {
            std::fs::write(folder.join(file), text).expect("a table");
        }
        for file in ["near.resolv.conf", "far.resolv.conf"] {
            std::fs::write(folder.join(file), "").expect("a file");
        }
        let common = format!(
            "{ROLE}=1 WORLD_SIZE=2 LOCAL_WORLD_SIZE=1 MASTER_PORT=29500 UNISONO_SECRET={}",
            "5a".repeat(32)
        );
        Self { folder, variables: [common, String::new(), String::new()], meanwhile: String::new() }
    }

    fn variables(mut self, common: &str, local: &str, remote: &str) -> Self {
        for (variables, more) in self.variables.iter_mut().zip([common, local, remote]) {
            *variables += &format!(" {more}");
        }
        self
    }

    /// Runs both ranks and returns what they print. `None` if this system cannot have such hosts.
    fn run(self) -> Option<[String; 2]> {
        let Self { folder, variables: [both, near, far], meanwhile } = &self;
        let script = format!(
            r#"{SETUP}
            rank="$PROGRAM --exact --nocapture started_rank"
            env {both} {near} RANK=0 $rank > $FOLDER/near.out 2>&1 & first=$!
            on_far env {both} {far} RANK=1 $rank > $FOLDER/far.out 2>&1 & second=$!
            {meanwhile}
            wait $first; wait $second; kill $far"#
        );
        let is_possible = |script: &str| {
            let mut command = Command::new("unshare");
            command.args(["--net", "--mount", "sh", "-c", script]).env("FOLDER", folder);
            command.env("PROGRAM", std::env::current_exe().expect("this test")).stdout(Stdio::null());
            command.stderr(Stdio::null()).status().is_ok_and(|status| status.success())
        };
        if !is_possible(&format!("{SETUP} kill $far")) {
            println!("SKIPPED: network namespaces need root, `ip`, `unshare` and `nsenter`");
            return None;
        }
        assert!(is_possible(&script), "a rank ended badly: {:?}", folder);
        let said =
            ["near.out", "far.out"].map(|file| std::fs::read_to_string(folder.join(file)).expect("text"));
        std::fs::remove_dir_all(folder).expect("it is there");
        Some(said)
    }

    /// Runs both ranks, which have to meet, and returns what rank 0 prints.
    fn meet(self) -> Option<String> {
        let [local, remote] = self.run()?;
        for said in [&local, &remote] {
            assert_eq!(said.matches("sum 3 of 2 over tcp").count(), 2, "{local}\n{remote}");
        }
        Some(local)
    }
}

#[test]
fn name_that_resolves_late_is_waited_for() {
    let hosts = Hosts::new("late", "", "").variables(&format!("MASTER_ADDR={NAME}"), "", "");
    let late = format!("sleep 0.7; echo 10.0.0.9 {NAME} | tee -a $FOLDER/near.hosts >> $FOLDER/far.hosts");
    Hosts { meanwhile: late, ..hosts }.meet();
}

#[test]
fn name_that_never_resolves_is_told_with_reason() {
    let variables = format!("MASTER_ADDR={NAME} UNISONO_JOIN_TIMEOUT_MS=500");
    let Some([local, remote]) = Hosts::new("never", "", "").variables(&variables, "", "").run() else {
        return;
    };
    assert!(local.contains(&format!("cannot listen at {NAME}:29500: failed to lookup address")), "{local}");
    assert!(remote.contains("rank 0 could not be reached at rank-0.example:29500"), "{remote}");
    assert!(remote.contains("its name has no address: failed to lookup address"), "{remote}");
}

#[test]
fn every_address_of_a_name_is_tried() {
    let table = format!("10.0.0.3 {NAME}\n10.0.0.9 {NAME}");
    Hosts::new("two", &table, &table).variables(&format!("MASTER_ADDR={NAME}"), "", "").meet();
}

#[test]
fn own_name_on_loopback_is_told_at_rank_0() {
    let hosts = |test| Hosts::new(test, &format!("127.0.1.1 {NAME}"), &format!("10.0.0.9 {NAME}"));
    let common = format!("MASTER_ADDR={NAME}");
    let short = format!("{common} UNISONO_JOIN_TIMEOUT_MS=1500");
    let Some([local, remote]) = hosts("loopback").variables(&short, "", "").run() else { return };
    let words = [
        "rank 0 listens at 127.0.1.1:29500 only, which is rank-0.example:29500 on this host",
        "1 of 2 ranks did not come in time: 1",
        "rank 0 listened at 127.0.1.1:29500, which no other host reaches",
        "UNISONO_BIND_ADDR",
    ];
    for words in words {
        assert!(local.contains(words), "`{words}` is not in: {local}");
    }
    assert!(remote.contains("rank 0 could not be reached at rank-0.example:29500"), "{remote}");
    hosts("bound").variables(&common, "UNISONO_BIND_ADDR=10.0.0.9", "").meet();
}

#[test]
fn rank_0_without_the_address_is_told_the_remedy() {
    // As behind an address translation.
    let variables = "MASTER_ADDR=10.7.7.7 UNISONO_JOIN_TIMEOUT_MS=1000";
    let Some([local, _]) = Hosts::new("nat", "", "").variables(variables, "", "").run() else { return };
    let refused = "cannot listen at 10.7.7.7:29500: Cannot assign requested address";
    for words in [refused, "this host has no such address", "set UNISONO_BIND_ADDR on rank 0"] {
        assert!(local.contains(words), "`{words}` is not in: {local}");
    }
    assert!(!local.contains("another job") && !local.contains("the job that uses it"), "{local}");
}

#[test]
fn link_local_addresses_keep_their_scopes() {
    Hosts::new("link", "", "").variables("", "MASTER_ADDR=fe80::9%near", "MASTER_ADDR=fe80::9%far").meet();
}

#[test]
fn connection_of_a_socket_to_itself_is_tried_again() {
    // Rank 1 comes first, and the system has few ports for it, of which one is that of rank 0.
    let hosts = Hosts::new("itself", "", "").variables("MASTER_ADDR=127.0.0.1 UNISONO_TRANSPORT=tcp", "", "");
    let script = format!(
        r#"ip link set lo up
        echo 29500 29509 > /proc/sys/net/ipv4/ip_local_port_range
        rank="$PROGRAM --exact --nocapture started_rank"
        env {both} RANK=1 $rank > $FOLDER/far.out 2>&1 & second=$!
        sleep 1.5
        env {both} RANK=0 $rank > $FOLDER/near.out 2>&1
        wait $second"#,
        both = hosts.variables[0]
    );
    let mut command = Command::new("unshare");
    command.args(["--net", "--mount", "sh", "-c", &script]).env("FOLDER", &hosts.folder);
    command.env("PROGRAM", std::env::current_exe().expect("this test"));
    if !command.status().is_ok_and(|status| status.success()) {
        return println!("SKIPPED: network namespaces need root, `ip` and `unshare`");
    }
    for file in ["near.out", "far.out"] {
        let said = std::fs::read_to_string(hosts.folder.join(file)).expect("text");
        assert_eq!(said.matches("sum 3 of 2 over tcp").count(), 2, "{file}: {said}");
    }
    std::fs::remove_dir_all(&hosts.folder).expect("it is there");
}
