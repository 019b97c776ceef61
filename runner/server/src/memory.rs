//! Amounts of one resource, such as memory, that clients share fairly.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use penstock_types::spec::Percent;

use crate::fair::{ClientId, Shares};

/// Bounded amount of a resource. A client that holds some of it gets at most a share of what other clients leave. Cheap to clone.
#[derive(Clone, Debug)]
pub struct SharedAmount(Arc<Mutex<Shares<1>>>);

/// Part of a [`SharedAmount`] that a client holds, released on drop.
#[derive(Debug)]
pub struct HeldAmount {
    of: SharedAmount,
    client: ClientId,
    /// Changes only while the shares are locked.
    amount: AtomicU64,
}

impl SharedAmount {
    /// Creates an amount of which one client gets at most `share` of what others leave.
    pub fn new(whole: u64, share: Percent) -> Self {
        Self(Arc::new(Mutex::new(Shares::new([whole], share))))
    }

    /// Creates an empty part for a client.
    pub fn part(&self, client: &ClientId) -> HeldAmount {
        HeldAmount { of: self.clone(), client: client.clone(), amount: AtomicU64::new(0) }
    }

    /// Sum of all parts.
    pub fn used(&self) -> u64 {
        self.lock().used()[0]
    }

    fn lock(&self) -> MutexGuard<'_, Shares<1>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl HeldAmount {
    /// Changes the part to this amount. Returns false, and changes nothing, if that is more than before and not free, or beyond the
    /// share of the client. The only part of a client may take all that is free.
    pub fn set(&self, amount: u64) -> bool {
        let mut shares = self.of.lock();
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
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
        assert_eq!((memory.used(), memory.lock().clients().count()), (0, 0));
    }
}
