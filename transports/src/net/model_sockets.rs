//! Local sockets in place of TCP sockets for models, because they deliver before a call returns.

use crate::Result;
use crate::net::listener::Listener;
use crate::net::stream::Stream;
use crate::net::unix;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::atomic::{AtomicU16, Ordering};

/// Returns a listener and the address to connect to.
pub(crate) fn listener() -> (Listener, SocketAddr) {
    static NEXT: AtomicU16 = AtomicU16::new(1);
    let address = (Ipv4Addr::LOCALHOST, NEXT.fetch_add(1, Ordering::Relaxed)).into();
    (Listener::unix_named(&socket_name(address)).expect("a local socket"), address)
}

/// Connects to that listener.
pub(crate) fn start_connect(address: SocketAddr) -> Result<Stream> {
    unix::connect(&socket_name(address))
}

fn socket_name(address: SocketAddr) -> String {
    format!("model-{}-{}", std::process::id(), address.port())
}
