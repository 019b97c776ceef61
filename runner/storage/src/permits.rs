//! Permits of a store, which are granted to its users in turns.

use std::collections::{BTreeMap, VecDeque};
use std::num::NonZeroUsize;
use std::sync::{Arc, Mutex};

use penstock_engine::lock::locked;
use tokio::sync::oneshot;

/// The permits of one store.
///
/// A free permit goes to the waiting user with the fewest permits; if several users have equally few, the one whose last grant is
/// the oldest gets it. Reads of equal length thus alternate between the users, and a user gains nothing from slow reads or from
/// more requests at a time. The requests of one user are granted in the order of their arrival.
#[derive(Debug)]
pub(crate) struct Permits {
    most: NonZeroUsize,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    /// Number of free permits; above zero only if no request waits.
    free: usize,
    users: BTreeMap<u64, UserState>,
    /// Id of the next user to be added.
    next: u64,
    grants: u64,
}

#[derive(Debug, Default)]
struct UserState {
    held: usize,
    /// Sequence number of the user's last grant; 0 before the first grant.
    last: u64,
    waiting: VecDeque<oneshot::Sender<Permit>>,
    /// Set once all handles of the user are dropped while it still holds permits.
    is_gone: bool,
}

/// One user of a store, usually a run; clones count as the same user.
#[derive(Clone, Debug)]
pub(crate) struct PermitUser(Arc<User>);

#[derive(Debug)]
struct User {
    permits: Arc<Permits>,
    id: u64,
}

/// A permit of the store; dropping it returns it.
#[derive(Debug)]
pub(crate) struct Permit {
    permits: Arc<Permits>,
    user: u64,
}

impl Permits {
    pub(crate) fn new(most: NonZeroUsize) -> Arc<Self> {
        let state = State { free: most.get(), users: BTreeMap::new(), next: 0, grants: 0 };
        Arc::new(Self { most, state: Mutex::new(state) })
    }

    pub(crate) fn add_user(self: &Arc<Self>) -> PermitUser {
        let mut state = locked(&self.state);
        let id = state.next;
        state.next += 1;
        state.users.insert(id, UserState::default());
        drop(state);
        PermitUser(Arc::new(User { permits: self.clone(), id }))
    }
}

impl State {
    fn user(&mut self, id: u64) -> &mut UserState {
        self.users.get_mut(&id).expect("a user is known as long as it has a handle or a permit")
    }

    fn grant(&mut self, id: u64) {
        self.free -= 1;
        self.grants += 1;
        let grants = self.grants;
        let user = self.user(id);
        user.held += 1;
        user.last = grants;
    }

    fn take_back(&mut self, id: u64) {
        self.free += 1;
        let user = self.user(id);
        user.held -= 1;
        if user.is_gone && user.held == 0 {
            self.users.remove(&id);
        }
    }

    /// Grants a free permit to the next request in turn, and removes requests that were dropped.
    fn grant_next(&mut self) -> Option<(u64, oneshot::Sender<Permit>)> {
        loop {
            let waiting = self.users.iter_mut().filter(|(_, user)| !user.waiting.is_empty());
            let (&id, user) = waiting.min_by_key(|(_, user)| (user.held, user.last))?;
            if let Some(request) = user.waiting.pop_front().filter(|request| !request.is_closed()) {
                self.grant(id);
                return Some((id, request));
            }
        }
    }
}

impl PermitUser {
    /// Adds another user of the same permits.
    pub(crate) fn another(&self) -> Self {
        self.0.permits.add_user()
    }

    /// Number of permits, shared by all users.
    pub(crate) fn most(&self) -> NonZeroUsize {
        self.0.permits.most
    }

    /// Permits held now, by all users together.
    pub(crate) fn used(&self) -> usize {
        self.0.permits.most.get() - locked(&self.0.permits.state).free
    }

    /// Waits until the permit for this request is granted. Dropping the returned future does not delay other requests.
    pub(crate) async fn permit(&self) -> Permit {
        let User { permits, id } = &*self.0;
        let granted = {
            let mut state = locked(&permits.state);
            if state.free > 0 {
                state.grant(*id);
                return Permit { permits: permits.clone(), user: *id };
            }
            let (request, granted) = oneshot::channel();
            state.user(*id).waiting.push_back(request);
            granted
        };
        granted.await.expect("a request is kept as long as its user, which this future borrows")
    }
}

impl Drop for User {
    fn drop(&mut self) {
        let mut state = locked(&self.permits.state);
        let user = state.user(self.id);
        user.is_gone = true;
        if user.held == 0 {
            state.users.remove(&self.id);
        }
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        let mut state = locked(&self.permits.state);
        state.take_back(self.user);
        let next = state.grant_next();
        drop(state);
        if let Some((user, request)) = next {
            // If the request was dropped in the meantime, `send` returns the permit, and dropping the permit here grants it to
            // the next request.
            drop(request.send(Self { permits: self.permits.clone(), user }));
        }
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;
    use futures::future::{BoxFuture, select_all};

    use super::*;

    fn permits(most: usize) -> Arc<Permits> {
        Permits::new(NonZeroUsize::new(most).unwrap())
    }

    /// Queues `count` requests of one user; each completes with `name` and its permit.
    fn requests(
        user: &PermitUser,
        name: char,
        count: usize,
    ) -> Vec<BoxFuture<'static, (char, usize, Permit)>> {
        let request = |number| {
            let user = user.clone();
            async move { (name, number, user.permit().await) }.boxed()
        };
        (0..count).map(request).collect()
    }

    /// Order in which these requests are granted, if each permit is returned before the next request is polled.
    fn order(
        mut waiting: Vec<BoxFuture<'static, (char, usize, Permit)>>,
        first: Permit,
    ) -> Vec<(char, usize)> {
        for request in &mut waiting {
            assert!(request.now_or_never().is_none());
        }
        drop(first);
        let mut order = Vec::new();
        while !waiting.is_empty() {
            let ((name, number, permit), _, rest) =
                select_all(waiting).now_or_never().expect("one has its permit");
            order.push((name, number));
            waiting = rest;
            drop(permit);
        }
        order
    }

    #[test]
    fn permits_alternate_between_users_and_follow_arrival_order_within_a_user() {
        let permits = permits(1);
        let [large, small, third] = std::array::from_fn(|_| permits.add_user());
        let first = large.permit().now_or_never().unwrap();
        let mut waiting = requests(&large, 'l', 100);
        waiting.extend(requests(&small, 's', 2));
        waiting.extend(requests(&third, 't', 1));
        let order = order(waiting, first);
        let names: String = order.iter().map(|(name, _)| name).collect();
        assert!(names.starts_with("stlsll"), "{names}");
        let numbers = |of: char| order.iter().filter(move |(name, _)| *name == of).map(|(_, number)| *number);
        assert!(numbers('l').eq(0..100) && numbers('s').eq(0..2), "{order:?}");
    }

    #[test]
    fn a_user_with_slow_reads_holds_no_more_than_its_share() {
        let permits = permits(4);
        let (slow, fast) = (permits.add_user(), permits.add_user());
        // The slow user holds all permits and has as many further requests waiting.
        let mut held: VecDeque<Permit> =
            (0..4).map(|_| slow.permit().now_or_never().expect("all are free")).collect();
        let mut asked = requests(&slow, 'l', 4);
        asked.extend(requests(&fast, 'f', 4));
        asked.iter_mut().for_each(|request| assert!(request.now_or_never().is_none()));
        let mut granted = String::new();
        for _ in 0..2 {
            held.pop_front();
            let ((name, _, permit), _, rest) = select_all(asked).now_or_never().unwrap();
            granted.push(name);
            held.push_back(permit);
            asked = rest;
        }
        // Each user now has two permits. Even if the fast user returns its permits often, the slow user gets no third permit.
        assert_eq!(granted, "ff");
        for _ in 0..2 {
            held.pop_back();
            let ((name, _, permit), _, rest) = select_all(asked).now_or_never().unwrap();
            assert_eq!(name, 'f');
            held.push_back(permit);
            asked = rest;
        }
    }

    #[test]
    fn a_dropped_request_keeps_no_permit() {
        let permits = permits(1);
        let (one, other) = (permits.add_user(), permits.add_user());
        let first = one.permit().now_or_never().unwrap();
        let [mut gone, mut unread, mut last] =
            [&other, &other, &one].map(|user| requests(user, 'r', 1).remove(0));
        for request in [&mut gone, &mut unread, &mut last] {
            assert!(request.now_or_never().is_none());
        }
        drop(gone);
        drop(first);
        // The permit was granted, but the request is dropped before the permit is taken from it.
        drop(unread);
        drop(other);
        assert!(last.now_or_never().is_some());
        drop(one);
        let state = locked(&permits.state);
        assert_eq!((state.free, state.users.len()), (1, 0));
    }
}
