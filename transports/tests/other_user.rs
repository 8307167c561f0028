//! A process of another user is refused on both sides of a Unix socket, and so is one that may
//! belong to another user.

#![cfg(not(loom))]

use std::io::{BufRead, BufReader};
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};
use unisono_transports::net::listener::Listener;
use unisono_transports::testing::HANG;
use unisono_transports::{Error, net::unix};

/// Environment variable with the name of the socket, for the process of the other user.
const NAME: &str = "TEST_LOCAL_SOCKET";
/// User `nobody`.
const OTHER_USER: u32 = 65_534;

fn is_of_another_user(error: &Error) -> bool {
    matches!(error, Error::AuthFailed { what, .. } if what.contains("user 65534") && what.contains("user 0"))
}

#[test]
fn other_user_is_refused_on_both_sides() {
    if let Ok(name) = std::env::var(NAME) {
        let error = unix::connect(&name).map(drop).expect_err("another user's");
        assert!(is_of_another_user(&error), "{error}");
        return;
    }
    if !rustix::process::geteuid().is_root() {
        return eprintln!("SKIPPED: only root can be two users");
    }
    let (listener, name) = Listener::unix().expect("a socket");
    let mut command = Command::new(std::env::current_exe().expect("this test"));
    command.args(["--exact", "other_user_is_refused_on_both_sides"]).env(NAME, name);
    let mut other = match command.uid(OTHER_USER).spawn() {
        Ok(other) => other,
        Err(error) => return eprintln!("SKIPPED: another user cannot run this test: {error}"),
    };
    let error = refusal_of(&listener);
    assert!(is_of_another_user(&error), "{error}");
    assert!(other.wait().expect("it ends").success(), "the other side was not refused");
}

/// Returns the error about the first connection.
fn refusal_of(listener: &Listener) -> Error {
    let begun = Instant::now();
    loop {
        match listener.accept() {
            Ok(None) => assert!(begun.elapsed() < HANG, "no connection came"),
            Ok(Some(_)) => panic!("another user was accepted"),
            Err(error) => return error,
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// A process in a user namespace without numbers takes all users for the overflow user, itself
/// included.
#[test]
fn users_without_a_number_are_refused() {
    if std::env::var_os(NAMESPACE).is_some() {
        let (listener, name) = Listener::unix().expect("a socket");
        println!("{MARK}{name}");
        let error = refusal_of(&listener);
        let is_about_it = matches!(&error, Error::AuthFailed { what, .. } if what.contains("no number in this user namespace"));
        return assert!(is_about_it, "{error}");
    }
    let mut command = Command::new("unshare");
    command.arg("--user").arg(std::env::current_exe().expect("this test"));
    command.args(["--exact", "users_without_a_number_are_refused", "--nocapture"]).env(NAMESPACE, "");
    let mut child = match command.stdout(Stdio::piped()).spawn() {
        Ok(inside) => inside,
        Err(error) => return eprintln!("SKIPPED: needs the program `unshare`: {error}"),
    };
    let lines = BufReader::new(child.stdout.take().expect("a pipe")).lines().map_while(Result::ok);
    let mut lines = lines.fuse();
    let name = lines.find_map(|line| Some(line.split_once(MARK)?.1.to_owned()));
    let Some(name) = name else {
        assert_ne!(child.wait().expect("it ends").code(), Some(FAILED_TEST));
        return eprintln!("SKIPPED: this system permits no user namespace");
    };
    let _connected = unix::connect(&name);
    lines.for_each(drop);
    assert!(child.wait().expect("it ends").success(), "a user without a number was accepted");
}

/// Environment variable of the process in a user namespace.
const NAMESPACE: &str = "TEST_USER_NAMESPACE";
/// Stands before the name of a socket.
const MARK: &str = "listens at ";
/// The exit code of a program of tests of which one failed.
const FAILED_TEST: i32 = 101;
