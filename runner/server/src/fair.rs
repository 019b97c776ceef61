//! Fair sharing of limited resources between clients: the share that each client may hold, and the order in which waiting entries
//! of clients start. An entry is e.g. a run; its allocation (`part`) is the amount of each resource that it takes, e.g. threads
//! and memory.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use penstock_types::spec::Percent;

/// Client for which shares and turns are counted: a token, an address, or the server's own process, which is the default.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ClientId(Arc<str>);

/// Amounts of each shared resource, e.g. threads and memory.
pub(crate) type Amounts<const N: usize> = [u64; N];

/// Bookkeeping of shared resources: the allocations that clients hold, and the share that each client may hold.
#[derive(Clone, Debug)]
pub(crate) struct Shares<const N: usize> {
    whole: Amounts<N>,
    used: Amounts<N>,
    share_percent: u64,
    /// Maximum number of allocations that one client may hold.
    parts: u64,
    /// Clients that hold at least one allocation.
    held: BTreeMap<ClientId, Held<N>>,
}

/// Number and sum of the allocations that one client holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Held<const N: usize> {
    pub(crate) parts: u64,
    pub(crate) amounts: Amounts<N>,
}

/// Queue of entries that wait for an allocation of shared resources.
///
/// The next entry to start belongs to the client with the smallest share; the share of a client is counted in the resource of
/// which it holds most. Among clients with equal shares, the turn goes to the client whose last start, or whose arrival without
/// another waiting entry, is the longest ago. No entry overtakes the entry whose turn it is, so that small allocations cannot
/// delay a large one for ever. A client that has reached its share gets no turn until one of its entries ends.
#[derive(Debug)]
pub(crate) struct FairLine<T, const N: usize> {
    pub(crate) shares: Shares<N>,
    /// Waiting entries by client; clients without waiting entries are removed.
    lines: BTreeMap<ClientId, ClientLine<T, N>>,
    /// Number of arrivals and starts so far, which serves as a logical clock.
    steps: u64,
}

#[derive(Debug)]
struct ClientLine<T, const N: usize> {
    /// Waiting entries of the client, sorted by `order` and then by arrival.
    waiting: BTreeMap<(u64, u64), (Amounts<N>, T)>,
    /// Step of the client's last start, or of its arrival without another waiting entry, whichever is later.
    since: u64,
}

impl ClientId {
    pub fn new(name: impl Into<Arc<str>>) -> Self {
        Self(name.into())
    }
}

impl Default for ClientId {
    fn default() -> Self {
        Self::new("this server")
    }
}

impl fmt::Display for ClientId {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.0)
    }
}

impl<const N: usize> Held<N> {
    const NOTHING: Self = Self { parts: 0, amounts: [0; N] };
}

impl<const N: usize> Shares<N> {
    /// Creates the bookkeeping of resources with the amounts `whole`. Each client may hold a share of them, in any number of
    /// allocations.
    pub(crate) fn new(whole: Amounts<N>, share_percent: Percent) -> Self {
        let share_percent = share_percent.get().into();
        Self { whole, used: [0; N], share_percent, parts: u64::MAX, held: BTreeMap::new() }
    }

    /// Creates the bookkeeping of unlimited resources, of which each client may hold at most `parts` allocations.
    pub(crate) fn of_parts(parts: u64) -> Self {
        Self { whole: [u64::MAX; N], used: [0; N], share_percent: 100, parts, held: BTreeMap::new() }
    }

    pub(crate) fn whole(&self) -> Amounts<N> {
        self.whole
    }

    pub(crate) fn used(&self) -> Amounts<N> {
        self.used
    }

    pub(crate) fn free(&self) -> Amounts<N> {
        std::array::from_fn(|kind| self.whole[kind].saturating_sub(self.used[kind]))
    }

    pub(crate) fn clients(&self) -> impl Iterator<Item = (&ClientId, &Held<N>)> {
        self.held.iter()
    }

    pub(crate) fn held(&self, client: &ClientId) -> Held<N> {
        self.held.get(client).copied().unwrap_or(Held::NOTHING)
    }

    /// Maximum amounts of a client that holds more than one allocation: its share of the amounts that other clients do not hold.
    pub(crate) fn most(&self, client: &ClientId) -> Amounts<N> {
        let own = self.held(client).amounts;
        let free = self.free();
        let share = |all: u64| u128::from(all) * u128::from(self.share_percent) / 100;
        std::array::from_fn(|kind| {
            u64::try_from(share(own[kind].saturating_add(free[kind]))).unwrap_or(u64::MAX)
        })
    }

    pub(crate) fn fits(&self, part: Amounts<N>) -> bool {
        let free = self.free();
        (0..N).all(|kind| part[kind] <= free[kind])
    }

    /// Returns true if the share of the client allows another allocation of this size, whether or not the amounts are free. The
    /// first allocation of a client may have any size.
    pub(crate) fn may_have(&self, client: &ClientId, part: Amounts<N>) -> bool {
        let own = self.held(client);
        if own.parts == 0 {
            return true;
        }
        let most = self.most(client);
        let is_within = |kind: usize| part[kind] == 0 || own.amounts[kind] + part[kind] <= most[kind];
        own.parts < self.parts && (0..N).all(is_within)
    }

    /// Takes an allocation for the client; the amounts must be free.
    pub(crate) fn take(&mut self, client: &ClientId, part: Amounts<N>) {
        let own = self.held.entry(client.clone()).or_insert(Held::NOTHING);
        own.parts += 1;
        for (kind, amount) in part.into_iter().enumerate() {
            self.used[kind] += amount;
            own.amounts[kind] += amount;
        }
    }

    pub(crate) fn give_back(&mut self, client: &ClientId, part: Amounts<N>) {
        let Some(own) = self.held.get_mut(client) else { return };
        own.parts -= 1;
        for (kind, amount) in part.into_iter().enumerate() {
            self.used[kind] -= amount;
            own.amounts[kind] -= amount;
        }
        if own.parts == 0 {
            self.held.remove(client);
        }
    }

    /// Largest share that a client holds of any resource, in units of 2^-32 of the total amount.
    fn largest(&self, client: &ClientId) -> u128 {
        let own = self.held(client).amounts;
        let share = |kind: usize| (u128::from(own[kind]) << 32) / u128::from(self.whole[kind].max(1));
        (0..N).map(share).max().unwrap_or(0)
    }
}

impl<T, const N: usize> FairLine<T, N> {
    pub(crate) fn new(shares: Shares<N>) -> Self {
        Self { shares, lines: BTreeMap::new(), steps: 0 }
    }

    /// Adds an entry of a client. Among the entries of one client, the entry with the lowest `order` starts first.
    pub(crate) fn join(&mut self, client: ClientId, part: Amounts<N>, order: u64, who: T) {
        self.steps += 1;
        let (waiting, since) = (BTreeMap::new(), self.steps);
        let line = self.lines.entry(client).or_insert(ClientLine { waiting, since });
        line.waiting.insert((order, self.steps), (part, who));
    }

    /// Removes and returns the entry whose turn it is, and takes its allocation; `None` if the amounts are not free.
    pub(crate) fn next(&mut self) -> Option<(ClientId, T)> {
        let (client, part) = self.turn()?;
        if !self.shares.fits(part) {
            return None;
        }
        let client = client.clone();
        self.steps += 1;
        let line = self.lines.get_mut(&client)?;
        let (_, (_, who)) = line.waiting.pop_first()?;
        line.since = self.steps;
        if line.waiting.is_empty() {
            self.lines.remove(&client);
        }
        self.shares.take(&client, part);
        Some((client, who))
    }

    /// Takes an allocation without waiting. Returns false if the amounts are not free, the share of the client does not allow it,
    /// or a waiting entry comes first.
    pub(crate) fn take(&mut self, client: &ClientId, part: Amounts<N>) -> bool {
        let may = self.shares.may_have(client, part) && self.shares.fits(part) && self.turn().is_none();
        if may {
            self.shares.take(client, part);
        }
        may
    }

    /// Removes and returns the entries for which `is_gone` is true.
    pub(crate) fn remove(&mut self, is_gone: impl Fn(&T) -> bool) -> Vec<T> {
        let mut gone = Vec::new();
        for line in self.lines.values_mut() {
            let removed = line.waiting.extract_if(.., |_, (_, who)| is_gone(who));
            gone.extend(removed.map(|(_, (_, who))| who));
        }
        self.lines.retain(|_, line| !line.waiting.is_empty());
        gone
    }

    /// Client whose turn it is, and the allocation for which its first entry waits.
    pub(crate) fn turn(&self) -> Option<(&ClientId, Amounts<N>)> {
        let lines = self.lines.iter().filter_map(|(client, line)| {
            let (part, _) = line.waiting.values().next()?;
            self.shares.may_have(client, *part).then_some((client, line.since, *part))
        });
        let first = lines.min_by_key(|(client, since, _)| (self.shares.largest(client), *since));
        first.map(|(client, _, part)| (client, part))
    }

    pub(crate) fn waits(&self, client: &ClientId) -> bool {
        self.lines.contains_key(client)
    }

    /// Waiting entries by client. The number in each item counts the entries of the same client that come before.
    pub(crate) fn waiting(&self) -> impl Iterator<Item = (&ClientId, usize, Amounts<N>, &T)> {
        self.lines.iter().flat_map(|(client, line)| {
            let waiting = line.waiting.values().enumerate();
            waiting.map(move |(before, (part, who))| (client, before, *part, who))
        })
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use proptest::prelude::*;

    use super::*;

    fn client(name: &str) -> ClientId {
        ClientId::new(name)
    }

    fn line(whole: u64) -> FairLine<&'static str, 1> {
        FairLine::new(Shares::new([whole], Percent::default()))
    }

    fn started(line: &mut FairLine<&'static str, 1>) -> Vec<&'static str> {
        std::iter::from_fn(|| line.next().map(|(_, who)| who)).collect()
    }

    #[test]
    fn a_client_with_many_entries_leaves_parts_for_later_clients() {
        let mut line = line(32);
        for _ in 0..101 {
            line.join(client("many"), [1], 0, "many");
        }
        assert_eq!(started(&mut line).len(), 24);
        for other in ["b", "c", "d"] {
            line.join(client(other), [2], 0, other);
            assert_eq!(started(&mut line), [other]);
        }
        // The other clients now hold 6 of 32, so `many` exceeds its share of the rest even after it has released one allocation.
        line.shares.give_back(&client("many"), [1]);
        assert_eq!(started(&mut line), [""; 0]);
    }

    #[test]
    fn clients_with_equal_shares_take_turns() {
        let mut line = line(1);
        for who in ["a1", "a2", "a3", "b1", "b2", "c1"] {
            line.join(client(&who[..1]), [1], 0, who);
        }
        let mut order = Vec::new();
        while let Some((client, who)) = line.next() {
            order.push(who);
            assert_eq!(line.next(), None);
            // `d` joins later, so the clients that have waited for longer have their turns first.
            if order.len() == 2 {
                line.join(self::client("d"), [1], 0, "d1");
            }
            line.shares.give_back(&client, [1]);
        }
        assert_eq!(order, ["a1", "b1", "c1", "a2", "b2", "d1", "a3"]);
    }

    #[test]
    fn no_entry_overtakes_the_one_whose_turn_it_is_except_of_clients_beyond_their_share() {
        let mut line = line(4);
        line.join(client("a"), [3], 0, "first");
        line.join(client("b"), [4], 0, "large");
        line.join(client("c"), [1], 0, "small");
        assert_eq!(started(&mut line), ["first"]);
        assert!(!line.take(&client("d"), [1]), "it is the turn of another client");
        line.shares.give_back(&client("a"), [3]);
        assert_eq!(started(&mut line), ["large"]);
        line.shares.give_back(&client("b"), [4]);
        assert_eq!(started(&mut line), ["small"]);
        line.join(client("c"), [3], 0, "second of c");
        assert_eq!(started(&mut line), [""; 0]);
        assert!(line.take(&client("d"), [1]) && !line.take(&client("d"), [2]));
    }

    #[test]
    fn within_a_client_the_lowest_order_comes_first_and_removed_entries_are_gone() {
        let mut line = line(2);
        for (size, who) in [(9, "nine"), (5, "five"), (5, "later five"), (1, "one")] {
            line.join(client("a"), [1], size, who);
        }
        let waiting: Vec<_> = line.waiting().map(|(_, before, _, who)| (before, *who)).collect();
        assert_eq!(waiting, [(0, "one"), (1, "five"), (2, "later five"), (3, "nine")]);
        assert_eq!(started(&mut line), ["one"], "one of two parts is kept for other clients");
        assert_eq!(line.remove(|who| who.ends_with("five")), ["five", "later five"]);
        line.shares.give_back(&client("a"), [1]);
        assert_eq!(started(&mut line), ["nine"]);
        assert!(line.lines.is_empty());
    }

    const WHOLE: Amounts<2> = [8, 1_000];
    const CLIENTS: usize = 5;

    fn part(least: u64, most: u64) -> impl Strategy<Value = (usize, Amounts<2>)> {
        let memory = 0..=WHOLE[1] / WHOLE[0] * most;
        (0..CLIENTS, least..=most, memory).prop_map(|(client, threads, memory)| (client, [threads, memory]))
    }

    /// Allocations of similar sizes, of which the smaller ones could overtake the larger ones for ever in an unfair queue.
    fn parts() -> impl Strategy<Value = Vec<(usize, Amounts<2>)>> {
        (1..=WHOLE[0])
            .prop_flat_map(|size| prop::collection::vec(part(size.saturating_sub(1).max(1), size), 10..60))
    }

    proptest! {
        /// Checks that the watched entry starts after a bounded number of other entries. Once it waits, only other clients add
        /// entries, and allocations are released in the order in which they were taken.
        #[test]
        fn each_entry_starts_after_a_bounded_number_of_ends_and_the_ledger_balances(
            parts in parts(), watched in part(1, WHOLE[0]), before in 0_usize..30
        ) {
            let names: Vec<ClientId> = (0..CLIENTS).map(|number| client(&number.to_string())).collect();
            let mut line = FairLine::new(Shares::new(WHOLE, Percent::default()));
            let mut alive: VecDeque<(ClientId, Amounts<2>)> = VecDeque::new();
            let mut coming = parts.iter().cycle().copied();
            let mut ahead = 0;
            for (client, part) in coming.by_ref().take(before) {
                ahead += usize::from(client == watched.0);
                line.join(names[client].clone(), part, 0, (part, false));
            }
            line.join(names[watched.0].clone(), watched.1, 0, (watched.1, true));
            let mut of_others = coming.map(|(client, part)| {
                let other = if client == watched.0 { (client + 1) % CLIENTS } else { client };
                (names[other].clone(), part)
            });
            // At most eight allocations are held at a time. Each other client may start one entry before each of the entries
            // ahead of the watched one, and one before the watched entry itself.
            let most = 8 * (CLIENTS + 1) * (ahead + 1);
            let mut ends = 0;
            let mut has_started = false;
            loop {
                while let Some((client, (part, is_watched))) = line.next() {
                    has_started |= is_watched;
                    let others = line.shares.clients().filter(|(other, _)| **other != client);
                    let others = others.fold([0, 0], |sum: Amounts<2>, (_, held)| {
                        [sum[0] + held.amounts[0], sum[1] + held.amounts[1]]
                    });
                    let held = line.shares.held(&client);
                    let is_within = |kind: usize| {
                        part[kind] == 0 || held.amounts[kind] * 100 <= (WHOLE[kind] - others[kind]) * 75
                    };
                    prop_assert!(held.parts == 1 || (0..2).all(is_within));
                    alive.push_back((client, part));
                }
                let turn = line.turn().map(|(_, part)| part);
                prop_assert!(turn.is_none_or(|part| !line.shares.fits(part)), "a part that fits is not left waiting");
                for kind in 0..2 {
                    let sum = alive.iter().map(|(_, part)| part[kind]).sum::<u64>();
                    let held = line.shares.clients().map(|(_, held)| held.amounts[kind]).sum::<u64>();
                    prop_assert!(sum <= WHOLE[kind] && sum == line.shares.used()[kind] && sum == held);
                }
                if has_started {
                    break;
                }
                let (client, part) = alive.pop_front().expect("an entry starts while everything is free");
                line.shares.give_back(&client, part);
                ends += 1;
                prop_assert!(ends <= most, "{} of {}", ends, most);
                for (client, part) in of_others.by_ref().take(2) {
                    line.join(client, part, 0, (part, false));
                }
            }
            for (client, part) in alive {
                line.shares.give_back(&client, part);
            }
            prop_assert_eq!(line.shares.used(), [0, 0]);
            prop_assert_eq!(line.shares.clients().count(), 0);
        }
    }
}
