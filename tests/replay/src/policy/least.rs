//! Which host costs least? Ties are drawn, each of the equal ones alike.

use rand::Rng;
use rand_chacha::ChaCha8Rng;

/// The host of least cost; 0 if there is none.
pub fn least<C: PartialOrd>(hosts: &[usize], random: &mut ChaCha8Rng, cost: impl Fn(usize) -> C) -> usize {
    let mut best: Option<(usize, C)> = None;
    let mut equal = 1_u32;
    for &host in hosts {
        let this = cost(host);
        match &best {
            Some((_, least)) if this > *least => continue,
            Some((_, least)) if this == *least => {
                equal += 1;
                if random.random_range(0..equal) != 0 {
                    continue;
                }
            }
            _ => equal = 1,
        }
        best = Some((host, this));
    }
    best.map_or(0, |(host, _)| host)
}
