//! Limit of the number of open connections, shared fairly among client addresses. Each connection occupies one place; a new
//! connection may take the place of an idle connection, which is then closed.

use std::collections::{BTreeMap, HashMap};
use std::net::{IpAddr, Ipv6Addr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio_util::sync::CancellationToken;

/// Lower 64 bits of an IPv6 address, which usually belong to one customer of a provider.
const OWN_BITS: u128 = 0xffff_ffff_ffff_ffff;

/// All places for connections. The limits of `tower` apply to requests, not to connections or addresses.
#[derive(Clone, Debug)]
pub(crate) struct ConnectionPlaces {
    most: usize,
    /// Number of connections in addition to `most`, for `/health` and sign-in only.
    kept_free: usize,
    taken: Arc<Mutex<Taken>>,
}

#[derive(Debug, Default)]
struct Taken {
    /// Open connections by number, in order of arrival.
    places: BTreeMap<u64, Taker>,
    /// Number of the latest arrival or end of a response, which serves as a logical clock.
    last: u64,
}

#[derive(Debug)]
struct Taker {
    network: IpAddr,
    is_kept_free: bool,
    /// Time on the logical clock at which the connection became idle: its arrival or the end of its last response; `None` while a request is being answered.
    waits_since: Option<u64>,
    leave: CancellationToken,
}

/// Place of one connection, released on drop.
#[derive(Debug)]
pub(crate) struct ConnectionPlace {
    /// Address of the client.
    pub(crate) address: IpAddr,
    places: ConnectionPlaces,
    number: u64,
    /// Set if this is one of the places in addition to the limit, in which only the paths that are always answered are served.
    pub(crate) is_kept_free: bool,
    /// Cancelled when another connection has taken the place of this connection.
    pub(crate) leave: CancellationToken,
}

/// Guard of a request that is being answered: until the drop, no other connection can take the place.
#[derive(Debug)]
pub(crate) struct Answering(Arc<ConnectionPlace>);

impl ConnectionPlaces {
    /// Creates `most` places, and those in addition to them.
    pub(crate) fn new(most: usize, kept_free: usize) -> Self {
        Self { most, kept_free, taken: Arc::default() }
    }

    /// Takes a place for a client of this address: a free place, else the place of an idle connection, else one of the additional
    /// places. `None` if all places are busy.
    pub(crate) fn take(&self, address: IpAddr) -> Option<ConnectionPlace> {
        let network = network(address);
        let mut taken = self.taken();
        let usual = || taken.places.values().filter(|taker| !taker.is_kept_free);
        // One network gets at most half of the places; loopback addresses have no such limit.
        let share = (self.most / 2).max(1);
        let has_share =
            !network.is_loopback() && usual().filter(|taker| taker.network == network).count() >= share;
        let is_kept_free = if usual().count() < self.most && !has_share {
            false
        } else {
            !taken.evict(|taker| !taker.is_kept_free && (!has_share || taker.network == network))
        };
        if is_kept_free {
            let kept = taken.places.values().filter(|taker| taker.is_kept_free).count();
            if kept >= self.kept_free && !taken.evict(|taker| taker.is_kept_free) {
                return None;
            }
        }
        let number = taken.next();
        let leave = CancellationToken::new();
        let taker = Taker { network, is_kept_free, waits_since: Some(number), leave: leave.clone() };
        taken.places.insert(number, taker);
        drop(taken);
        Some(ConnectionPlace { address, places: self.clone(), number, is_kept_free, leave })
    }

    fn taken(&self) -> MutexGuard<'_, Taken> {
        self.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Returns the address under which a client is counted: an IPv4 address itself, or the /64 network of an IPv6 address.
pub(crate) fn network(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) if !address.is_loopback() => {
            Ipv6Addr::from_bits(address.to_bits() & !OWN_BITS).into()
        }
        address => address,
    }
}

impl Taken {
    fn next(&mut self) -> u64 {
        self.last += 1;
        self.last
    }

    /// Evicts one idle connection that `may_go` accepts: in the network with the most connections, the connection that has been
    /// idle for longest. Returns false if there is no such connection.
    fn evict(&mut self, may_go: impl Fn(&Taker) -> bool) -> bool {
        let mut of_network: HashMap<IpAddr, usize> = HashMap::new();
        self.places.values().for_each(|taker| *of_network.entry(taker.network).or_default() += 1);
        let waiting = self.places.iter().filter(|(_, taker)| may_go(taker)).filter_map(|(number, taker)| {
            Some((of_network[&taker.network], std::cmp::Reverse(taker.waits_since?), *number))
        });
        let Some((.., number)) = waiting.max() else { return false };
        if let Some(taker) = self.places.remove(&number) {
            taker.leave.cancel();
        }
        true
    }
}

impl ConnectionPlace {
    /// Marks the connection as busy until the returned guard is dropped, after the response has been sent.
    pub(crate) fn begin_answer(self: &Arc<Self>) -> Answering {
        if let Some(taker) = self.places.taken().places.get_mut(&self.number) {
            taker.waits_since = None;
        }
        Answering(self.clone())
    }
}

impl Drop for Answering {
    fn drop(&mut self) {
        let mut taken = self.0.places.taken();
        let now = taken.next();
        if let Some(taker) = taken.places.get_mut(&self.0.number) {
            taker.waits_since = Some(now);
        }
    }
}

impl Drop for ConnectionPlace {
    fn drop(&mut self) {
        self.places.taken().places.remove(&self.number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HERE: &str = "127.0.0.1";
    const ONE: &str = "10.0.0.1";
    const OTHER: &str = "10.0.0.2";

    fn places(connections: usize, kept_free: usize) -> ConnectionPlaces {
        ConnectionPlaces::new(connections, kept_free)
    }

    fn take(places: &ConnectionPlaces, address: &str) -> Option<Arc<ConnectionPlace>> {
        places.take(address.parse().unwrap()).map(Arc::new)
    }

    /// Opens a connection whose request is being answered.
    fn busy(places: &ConnectionPlaces, address: &str) -> Answering {
        take(places, address).unwrap().begin_answer()
    }

    #[test]
    fn a_remote_machine_gets_at_most_half_of_the_places() {
        let places = places(4, 0);
        let held = [busy(&places, ONE), busy(&places, ONE)];
        assert!(take(&places, ONE).is_none() && take(&places, "::ffff:10.0.0.1").is_none());
        let others = [busy(&places, OTHER), busy(&places, HERE)];
        assert!(take(&places, OTHER).is_none() && take(&places, HERE).is_none(), "all are taken");
        drop((held, others));
        assert!(places.taken().places.is_empty());
    }

    #[test]
    fn addresses_of_one_ipv6_network_count_as_one_client() {
        let places = places(4, 0);
        let held = [busy(&places, "2001:db8:0:1::1"), busy(&places, "2001:db8:0:1:ffff::2")];
        assert!(take(&places, "2001:db8:0:1::3").is_none());
        let _other = busy(&places, "2001:db8:0:2::1");
        // Loopback addresses have no limit, since a proxy on this machine may forward the requests of all clients.
        let _here = busy(&places, "::1");
        drop(held);
        let _more = [busy(&places, "::1"), busy(&places, "::1")];
    }

    #[test]
    fn the_longest_idle_connection_gives_way_and_a_busy_one_stays() {
        let places = places(3, 0);
        let answered = take(&places, HERE).unwrap();
        let answering = answered.begin_answer();
        let (oldest, newer) = (take(&places, HERE).unwrap(), take(&places, HERE).unwrap());
        let _first = busy(&places, HERE);
        assert!(oldest.leave.is_cancelled() && !newer.leave.is_cancelled());
        let _second = busy(&places, HERE);
        assert!(newer.leave.is_cancelled() && !answered.leave.is_cancelled());
        assert!(take(&places, HERE).is_none());
        drop(answering);
        let _third = busy(&places, HERE);
        assert!(answered.leave.is_cancelled(), "its answer was sent");
    }

    #[test]
    fn the_client_with_the_most_connections_loses_one_first() {
        let places = places(4, 0);
        let alone = take(&places, ONE).unwrap();
        let many = [take(&places, OTHER).unwrap(), take(&places, OTHER).unwrap()];
        let _here = busy(&places, HERE);
        let _more = busy(&places, HERE);
        assert!(many[0].leave.is_cancelled() && !alone.leave.is_cancelled());
    }

    #[test]
    fn places_kept_free_are_used_when_all_others_are_busy() {
        let places = places(2, 1);
        let _held = [busy(&places, HERE), busy(&places, HERE)];
        let first = take(&places, HERE).unwrap();
        assert!(first.is_kept_free);
        let second = take(&places, HERE).unwrap();
        assert!(second.is_kept_free && first.leave.is_cancelled());
        let _answering = second.begin_answer();
        assert!(take(&places, HERE).is_none());
    }
}
