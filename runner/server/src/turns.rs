//! Permits for expensive work, which are granted to clients in turn.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::oneshot;
use tokio::time::timeout;

use crate::fair::{ClientId, FairLine, Shares};

/// Limited number of permits, and the requests that wait for a permit. Cheap to clone.
#[derive(Clone, Debug)]
pub(crate) struct Turns(Arc<Mutex<FairLine<oneshot::Sender<Place>, 1>>>);

/// Permit of a client, released on drop.
#[derive(Debug)]
pub struct Place {
    turns: Turns,
    client: ClientId,
    /// Set if the client held or waited for another permit when it got this one.
    pub(crate) is_one_of_several: bool,
}

impl Turns {
    pub(crate) fn new(shares: Shares<1>) -> Self {
        Self(Arc::new(Mutex::new(FairLine::new(shares))))
    }

    /// Takes a permit without waiting. Fails with the current shares if no permit is free or the client has reached its share.
    pub(crate) fn try_take(&self, client: &ClientId) -> Result<Place, Shares<1>> {
        let mut line = self.lock();
        if line.take(client, [1]) {
            return Ok(self.place(&line, client.clone()));
        }
        Err(line.shares().clone())
    }

    /// Waits for a permit in the client's turn; `None` if that takes longer than `most`. Among the requests of one client, the
    /// request with the smallest `size` comes first.
    pub(crate) async fn take(&self, client: &ClientId, size: u64, most: Duration) -> Option<Place> {
        let (request, granted) = oneshot::channel();
        self.lock().join(client.clone(), [1], size, request);
        self.grant();
        timeout(most, granted).await.ok()?.ok()
    }

    /// Grants permits to the requests whose turn it is, and removes requests that no longer wait.
    fn grant(&self) {
        loop {
            let next = {
                let mut line = self.lock();
                line.remove(oneshot::Sender::is_closed);
                line.next().map(|(client, request)| (self.place(&line, client), request))
            };
            let Some((place, request)) = next else { return };
            // If the request was dropped meanwhile, the send fails, and the drop of the permit releases it.
            drop(request.send(place));
        }
    }

    /// Permit that the client has taken from the line.
    fn place(&self, line: &FairLine<oneshot::Sender<Place>, 1>, client: ClientId) -> Place {
        let is_one_of_several = line.waits(&client) || line.shares().held(&client).parts > 1;
        Place { turns: self.clone(), client, is_one_of_several }
    }

    fn lock(&self) -> MutexGuard<'_, FairLine<oneshot::Sender<Place>, 1>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.turns.lock().give_back(&self.client, [1]);
        self.turns.grant();
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;
    use penstock_types::spec::Percent;

    use super::*;

    const LONG: Duration = Duration::from_secs(3600);

    fn turns(places: u64) -> Turns {
        Turns::new(Shares::new([places], Percent::default()))
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
        assert_eq!(turns.lock().shares().used(), [0]);
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
}
