//! Bounded amounts that clients share fairly: memory, and permits for expensive work, which clients get in turn.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use penstock_engine::lock::locked;
use penstock_types::spec::Percent;
use tokio::sync::oneshot;
use tokio::time::timeout;

use crate::fair::{ClientId, FairLine, Shares};

/// Bounded amount of a resource, and the requests that wait for a permit, which is a part of 1. A client that holds some of it gets at
/// most a share of what other clients leave. Cheap to clone.
#[derive(Clone, Debug)]
pub struct SharedAmount(Arc<Mutex<FairLine<oneshot::Sender<HeldAmount>, 1>>>);

/// Part of a [`SharedAmount`] that a client holds, released on drop.
#[derive(Debug)]
pub struct HeldAmount {
    of: SharedAmount,
    client: ClientId,
    /// Changes only while the line is locked.
    amount: AtomicU64,
    /// Set if the client held or waited for another permit when it got this one.
    pub(crate) is_one_of_several: bool,
}

impl SharedAmount {
    /// Creates an amount of which one client gets at most `share` of what others leave.
    pub fn new(whole: u64, share: Percent) -> Self {
        Self::of(Shares::new([whole], share))
    }

    pub(crate) fn of(shares: Shares<1>) -> Self {
        Self(Arc::new(Mutex::new(FairLine::new(shares))))
    }

    /// Creates an empty part.
    pub fn part(&self, client: &ClientId) -> HeldAmount {
        self.held(client, 0, false)
    }

    pub fn used(&self) -> u64 {
        locked(&self.0).shares.used()[0]
    }

    /// Takes a permit without waiting. Fails with the current shares if no permit is free or the client has reached its share.
    pub(crate) fn try_take(&self, client: &ClientId) -> Result<HeldAmount, Shares<1>> {
        let mut line = locked(&self.0);
        if line.take(client, [1]) {
            return Ok(self.permit(&line, client));
        }
        Err(line.shares.clone())
    }

    /// Waits for a permit in the client's turn; `None` if that takes longer than `most`. Among the requests of one client, the
    /// request with the smallest `size` comes first.
    pub(crate) async fn take(&self, client: &ClientId, size: u64, most: Duration) -> Option<HeldAmount> {
        let (request, granted) = oneshot::channel();
        locked(&self.0).join(client.clone(), [1], size, request);
        self.grant();
        timeout(most, granted).await.ok()?.ok()
    }

    /// Grants permits to the requests whose turn it is, and removes requests that no longer wait.
    fn grant(&self) {
        loop {
            let next = {
                let mut line = locked(&self.0);
                line.remove(oneshot::Sender::is_closed);
                line.next().map(|(client, request)| (self.permit(&line, &client), request))
            };
            let Some((permit, request)) = next else { return };
            // If the request was dropped meanwhile, the send fails, and the drop of the permit releases it.
            drop(request.send(permit));
        }
    }

    /// Permit that the client has taken from the line.
    fn permit(&self, line: &FairLine<oneshot::Sender<HeldAmount>, 1>, client: &ClientId) -> HeldAmount {
        let is_one_of_several = line.waits(client) || line.shares.held(client).parts > 1;
        self.held(client, 1, is_one_of_several)
    }

    fn held(&self, client: &ClientId, amount: u64, is_one_of_several: bool) -> HeldAmount {
        HeldAmount {
            of: self.clone(),
            client: client.clone(),
            amount: AtomicU64::new(amount),
            is_one_of_several,
        }
    }
}

impl HeldAmount {
    /// Changes the part to this amount. Returns false, and changes nothing, if that is more than before and not free, or beyond the
    /// share of the client. The only part of a client may take all that is free.
    pub fn set(&self, amount: u64) -> bool {
        let mut line = locked(&self.of.0);
        let shares = &mut line.shares;
        let held = self.amount.load(Ordering::Relaxed);
        if held > 0 {
            shares.give_back(&self.client, [held]);
        }
        let may = amount <= held || shares.fits([amount]) && shares.may_have(&self.client, [amount]);
        let kept = if may { amount } else { held };
        if kept > 0 {
            shares.take(&self.client, [kept]);
        }
        self.amount.store(kept, Ordering::Relaxed);
        may
    }

    /// Grows the part to this amount, if it is smaller, as [`Self::set`] does.
    pub fn grow(&self, amount: u64) -> bool {
        amount <= self.amount.load(Ordering::Relaxed) || self.set(amount)
    }
}

impl Drop for HeldAmount {
    fn drop(&mut self) {
        self.set(0);
        self.of.grant();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures::FutureExt;

    const LONG: Duration = Duration::from_secs(3600);

    fn turns(places: u64) -> SharedAmount {
        SharedAmount::new(places, Percent::default())
    }

    #[tokio::test]
    async fn large_requests_of_one_client_leave_a_place_for_another_client() {
        let turns = turns(2);
        let (one, other) = (ClientId::new("one"), ClientId::new("other"));
        let first = turns.take(&one, 900, LONG).await.unwrap();
        let mut more: Vec<_> = [800, 100, 700].map(|size| Box::pin(turns.take(&one, size, LONG))).into();
        assert!(more.iter_mut().all(|waiting| waiting.now_or_never().is_none()));
        let small =
            turns.take(&other, 5, LONG).now_or_never().flatten().expect("a place is kept for other clients");
        drop(first);
        // The smallest request of the client comes first, although it arrived later.
        assert!(more[0].as_mut().now_or_never().is_none());
        let second = more[1].as_mut().now_or_never().flatten().unwrap();
        assert_eq!([&small, &second].map(|place| place.is_one_of_several), [false, true]);
        drop((second, small, more));
        assert_eq!(locked(&turns.0).shares.used(), [0]);
    }

    #[tokio::test]
    async fn a_dropped_or_late_request_does_not_hold_up_others() {
        let turns = turns(1);
        let (one, other) = (ClientId::new("one"), ClientId::new("other"));
        let held = turns.try_take(&one).unwrap();
        assert_eq!(turns.try_take(&other).unwrap_err().free(), [0]);
        let mut gone = Box::pin(turns.take(&one, 0, LONG));
        let mut last = Box::pin(turns.take(&other, 0, LONG));
        assert!(gone.as_mut().now_or_never().is_none() && last.as_mut().now_or_never().is_none());
        assert!(turns.take(&one, 0, Duration::ZERO).await.is_none());
        drop(gone);
        drop(held);
        let granted = last.as_mut().now_or_never().flatten();
        assert!(granted.is_some());
        drop(granted);
        // The request is dropped after its permit was granted, but before the permit is received.
        let held = turns.try_take(&one).unwrap();
        let mut unread = Box::pin(turns.take(&other, 0, LONG));
        assert!(unread.as_mut().now_or_never().is_none());
        drop(held);
        drop(unread);
        assert!(turns.try_take(&one).is_ok());
    }

    #[test]
    fn a_client_gets_its_share_of_what_others_leave_and_gives_all_back() {
        let memory = SharedAmount::new(100, Percent::default());
        let (one, other) = (ClientId::new("one"), ClientId::new("other"));
        let first = memory.part(&one);
        assert!(first.set(100) && !memory.part(&other).set(1), "the only part may be all that is free");
        assert!(first.set(50) && !first.set(101) && first.grow(10));
        assert_eq!(memory.used(), 50);
        let second = memory.part(&one);
        assert!(!second.set(26) && second.set(25), "75 % for one client");
        let third = memory.part(&other);
        assert!(third.set(25) && !second.set(26) && !memory.part(&ClientId::new("third")).set(1));
        drop((first, second));
        assert!(third.set(100));
        drop(third);
        assert_eq!((memory.used(), locked(&memory.0).shares.clients().count()), (0, 0));
    }
}
