//! A process of another user is refused on both sides of a Unix socket.

#![cfg(not(loom))]

use std::os::unix::process::CommandExt;
use std::process::Command;
use std::time::{Duration, Instant};
use unisono_transports::sys::listener::Listener;
use unisono_transports::testing::HANG;
use unisono_transports::{Error, sys::unix};

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
    let begun = Instant::now();
    let error = loop {
        match listener.accept() {
            Ok(None) => assert!(begun.elapsed() < HANG, "no connection came"),
            Ok(Some(_)) => panic!("another user was accepted"),
            Err(error) => break error,
        }
        std::thread::sleep(Duration::from_millis(1));
    };
    assert!(is_of_another_user(&error), "{error}");
    assert!(other.wait().expect("it ends").success(), "the other side was not refused");
}
