//! Where does a key belong? Rendezvous hashing: all who know the same hosts agree, and a host that comes or goes
//! moves only its own keys.

/// A number's hash: the finalizer of splitmix64.
pub fn mix(number: u64) -> u64 {
    let number = number.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let number = (number ^ (number >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let number = (number ^ (number >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    number ^ (number >> 31)
}

/// How strongly a host claims a key.
pub fn claim(key: u64, host: usize) -> u64 {
    mix(mix(key) ^ mix(host as u64).rotate_left(32))
}

/// The host that claims a key most strongly; 0 if there is none.
pub fn home(key: u64, hosts: impl IntoIterator<Item = usize>) -> usize {
    hosts.into_iter().max_by_key(|host| claim(key, *host)).unwrap_or_default()
}
