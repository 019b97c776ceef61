//! Throttling of wrong tokens by the network that sends them.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use crate::connections::network;

/// Time without a wrong token after which the count of a network is reset.
const MEMORY: Duration = Duration::from_secs(60);
/// Pause after the first wrong token; each further wrong token doubles the pause.
const FIRST_PAUSE: Duration = Duration::from_millis(300);
/// Number of doublings up to the maximum pause of 2.4 s.
const DOUBLINGS: u32 = 3;
/// Maximum number of networks with a count; a further network replaces the one whose last wrong token is the oldest.
const NETWORKS: usize = 4_096;

/// Wrong tokens of the last minute, by network.
#[derive(Debug, Default)]
pub(crate) struct WrongTokens(Mutex<HashMap<IpAddr, Wrong>>);

#[derive(Debug)]
struct Wrong {
    count: u32,
    last: Instant,
}

impl WrongTokens {
    /// Counts and logs a wrong token; returns the pause before its response. Valid tokens are never delayed.
    pub(crate) fn add(&self, from: IpAddr, now: Instant) -> Duration {
        let network = network(from);
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if all.len() >= NETWORKS
            && !all.contains_key(&network)
            && let Some((&oldest, _)) = all.iter().min_by_key(|(_, wrong)| wrong.last)
        {
            all.remove(&oldest);
        }
        let wrong = all.entry(network).or_insert(Wrong { count: 0, last: now });
        if now >= wrong.last + MEMORY {
            wrong.count = 0;
        }
        *wrong = Wrong { count: wrong.count.saturating_add(1), last: now };
        // Only counts that are powers of two are logged, so that a flood of wrong tokens writes few lines.
        if wrong.count.is_power_of_two() {
            tracing::warn!(address = %from.to_canonical(), count = wrong.count, "received a wrong token");
        }
        FIRST_PAUSE * 2_u32.pow((wrong.count - 1).min(DOUBLINGS))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_per_network_and_reset_after_a_minute() {
        let (wrong, now) = (WrongTokens::default(), Instant::now());
        let add = |from: &str, now| wrong.add(from.parse().unwrap(), now);
        assert_eq!(add("10.0.0.1", now), FIRST_PAUSE);
        assert_eq!(add("::ffff:10.0.0.1", now), FIRST_PAUSE * 2);
        assert_eq!(add("10.0.0.2", now), FIRST_PAUSE);
        assert_eq!(add("2001:db8::1", now), FIRST_PAUSE);
        assert_eq!(add("2001:db8::2", now), FIRST_PAUSE * 2);
        let longest = (0..40).map(|_| add("10.0.0.3", now)).max();
        assert_eq!(longest, Some(FIRST_PAUSE * 8));
        assert_eq!(add("10.0.0.1", now + MEMORY), FIRST_PAUSE);
    }

    #[test]
    fn many_networks_take_bounded_memory_and_do_not_evict_an_active_guesser() {
        let (wrong, start) = (WrongTokens::default(), Instant::now());
        let guesser = IpAddr::from([10, 0, 0, 1]);
        for number in 0..2 * NETWORKS as u32 {
            let now = start + Duration::from_micros(number.into());
            wrong.add(IpAddr::from((number + (11 << 24)).to_be_bytes()), now);
            if number % 1_000 == 0 {
                wrong.add(guesser, now);
            }
        }
        assert_eq!(wrong.0.lock().unwrap().len(), NETWORKS);
        assert_eq!(wrong.add(guesser, start + Duration::from_secs(1)), FIRST_PAUSE * 8);
    }
}
