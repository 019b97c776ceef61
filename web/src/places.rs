//! Places of connections: shared among addresses, with eviction of silent ones.

use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, timeout};
use tokio_util::sync::CancellationToken;

/// Silence after which a connection from this machine loses its place to a new one.
const SILENCE: Duration = Duration::from_secs(5);
/// Longest wait for the place of an evicted connection.
const LEAVING: Duration = Duration::from_secs(1);

/// Places of connections, shared fairly among addresses; a limit of tower knows no addresses.
#[derive(Clone, Debug)]
pub(crate) struct ConnectionPlaces {
    free: Arc<Semaphore>,
    /// Places that one address of another machine may have.
    share: usize,
    guests: Arc<Mutex<Guests>>,
}

#[derive(Debug, Default)]
struct Guests {
    /// Number of connections from other machines, by address.
    others: HashMap<IpAddr, usize>,
    /// Connections from this machine that have sent no byte yet, oldest first.
    silent: BTreeMap<u64, (Instant, CancellationToken)>,
    last: u64,
}

/// A place, given back when this is dropped.
#[derive(Debug)]
pub(crate) struct ConnectionPlace {
    places: ConnectionPlaces,
    address: IpAddr,
    number: u64,
    /// Cancelled when the connection is evicted.
    pub(crate) leave: CancellationToken,
    _permit: OwnedSemaphorePermit,
}

impl ConnectionPlaces {
    pub(crate) fn new(places: usize) -> Self {
        Self { free: Arc::new(Semaphore::new(places)), share: (places / 2).max(1), guests: Arc::default() }
    }

    /// Takes a place for a client of this address, if one is left for it.
    pub(crate) async fn take(&self, address: IpAddr) -> Option<ConnectionPlace> {
        let address = address.to_canonical();
        if !address.is_loopback() && self.guests().others.get(&address).is_some_and(|has| *has >= self.share)
        {
            return None;
        }
        let permit = match self.free.clone().try_acquire_owned() {
            Ok(permit) => permit,
            Err(_) => {
                self.guests().evict_oldest_silent(Instant::now())?;
                timeout(LEAVING, self.free.clone().acquire_owned()).await.ok()?.ok()?
            }
        };
        let leave = CancellationToken::new();
        let mut guests = self.guests();
        guests.last += 1;
        let number = guests.last;
        if address.is_loopback() {
            guests.silent.insert(number, (Instant::now(), leave.clone()));
        } else {
            *guests.others.entry(address).or_default() += 1;
        }
        drop(guests);
        Some(ConnectionPlace { places: self.clone(), address, number, leave, _permit: permit })
    }

    fn guests(&self) -> MutexGuard<'_, Guests> {
        self.guests.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Guests {
    /// Evicts the oldest silent connection, if it has been silent for long enough.
    fn evict_oldest_silent(&mut self, now: Instant) -> Option<()> {
        let oldest = self.silent.first_entry()?;
        if now.duration_since(oldest.get().0) < SILENCE {
            return None;
        }
        oldest.remove().1.cancel();
        Some(())
    }
}

impl ConnectionPlace {
    /// Protects the connection from eviction.
    pub(crate) fn mark_active(&self) {
        self.places.guests().silent.remove(&self.number);
    }
}

impl Drop for ConnectionPlace {
    fn drop(&mut self) {
        let mut guests = self.places.guests();
        guests.silent.remove(&self.number);
        if let Some(has) = guests.others.get_mut(&self.address) {
            *has -= 1;
            if *has == 0 {
                guests.others.remove(&self.address);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;

    const HERE: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);
    const ONE: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 0, 0, 1));
    const OTHER: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 0, 0, 2));

    #[tokio::test]
    async fn no_other_machine_has_more_than_half_of_the_places() {
        let places = ConnectionPlaces::new(4);
        let (first, second) = (places.take(ONE).await.unwrap(), places.take(ONE).await.unwrap());
        let mapped = IpAddr::V6(Ipv4Addr::new(10, 0, 0, 1).to_ipv6_mapped());
        assert!(places.take(ONE).await.is_none() && places.take(mapped).await.is_none());
        let others = (places.take(OTHER).await.unwrap(), places.take(HERE).await.unwrap());
        assert!(places.take(OTHER).await.is_none(), "all are taken");
        drop((first, others));
        assert!(places.take(ONE).await.is_some());
        drop(second);
        assert!(places.guests().others.is_empty() && places.guests().silent.is_empty());
    }

    #[tokio::test]
    async fn the_oldest_silent_connection_goes_when_places_run_short() {
        let places = ConnectionPlaces::new(3);
        let speaks = places.take(HERE).await.unwrap();
        speaks.mark_active();
        let (oldest, newer) = (places.take(HERE).await.unwrap(), places.take(HERE).await.unwrap());
        assert!(places.take(HERE).await.is_none(), "none of them has been silent for long");
        let later = Instant::now() + SILENCE;
        places.guests().evict_oldest_silent(later).unwrap();
        assert!(oldest.leave.is_cancelled() && !newer.leave.is_cancelled() && !speaks.leave.is_cancelled());
        places.guests().evict_oldest_silent(later).unwrap();
        assert!(places.guests().evict_oldest_silent(later).is_none(), "one that speaks stays");
        drop(oldest);
        assert!(places.take(ONE).await.is_some());
    }
}
