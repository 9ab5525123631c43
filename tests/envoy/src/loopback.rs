//! Where may something listen whose address must be known before it starts? Loopback has many addresses, and the kernel
//! gives none but 127.0.0.1 away by itself.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::atomic::{AtomicU8, Ordering};

/// The first of the last bytes that are given here: tests that choose addresses themselves use others.
const FIRST: u8 = 100;

/// An address with this port that no other process, and nothing else in this one, uses.
pub fn own(port: u16) -> SocketAddr {
    static LAST: AtomicU8 = AtomicU8::new(FIRST);
    let [_, _, high, low] = std::process::id().to_be_bytes();
    let n = LAST.fetch_add(1, Ordering::Relaxed);
    SocketAddr::new(Ipv4Addr::new(127, high.max(1), low, n).into(), port)
}
