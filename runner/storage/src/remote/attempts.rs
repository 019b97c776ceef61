//! Repeats failed attempts, with limits on their number and time.

use std::time::Duration;

use tokio::time::{sleep, timeout};
use tracing::instrument::WithSubscriber;
use tracing::{Dispatch, debug};

use crate::observe::{note, now};
use crate::remote::failure::{Cause, Failure};
use crate::remote::options::{Retries, Timeouts};
use crate::remote::throttle::Throttle;

/// Runs `attempt` until it succeeds or fails permanently, or the number of attempts or the time is used up. The timeouts of each
/// attempt and of all attempts together are extended by `allowance`. Repetitions wait until `throttle` permits them.
///
/// Log messages of SDKs are dropped meanwhile: they contain requests with all their headers.
pub(crate) async fn attempts<T, A: Future<Output = Result<T, Failure>>>(
    retries: Retries,
    timeouts: Timeouts,
    throttle: &Throttle,
    allowance: Duration,
    mut attempt: impl FnMut() -> A,
) -> Result<T, Failure> {
    let start = now();
    let (most, operation) = (timeouts.attempt + allowance, timeouts.operation + allowance);
    let mut made = 0;
    loop {
        note(|parts| parts.begin_attempt((made > 0).then(|| start.elapsed())));
        let left = operation.saturating_sub(start.elapsed());
        let tried = timeout(most.min(left), attempt().with_subscriber(Dispatch::none())).await;
        made += 1;
        let (cause, after) = match tried {
            Ok(Err(Failure::Passing { cause, after })) => (cause, after),
            Ok(ended) => {
                if ended.is_ok() {
                    throttle.on_success();
                }
                return ended;
            }
            Err(_) => (Cause::new(format!("not finished within {:?}", most.min(left))), None),
        };
        let pause = pause(retries, made, after);
        if made >= retries.attempts.get() {
            return Err(gave_up(made, "", &cause));
        }
        let left = operation.saturating_sub(start.elapsed());
        if pause >= left {
            return Err(gave_up(made, &format!(" and {:.1?}", start.elapsed()), &cause));
        }
        let Some(wait) = throttle.reserve(now(), left) else {
            return Err(gave_up(made, " because many requests to this store fail", &cause));
        };
        let wait = wait.max(pause);
        debug!(attempt = made, %cause, ?wait, "attempt failed, will retry");
        sleep(wait).await;
    }
}

/// Wait after attempt number `made`; `after` is the wait that the service requested.
fn pause(retries: Retries, made: u32, after: Option<Duration>) -> Duration {
    let doubled = retries.base.saturating_mul(2_u32.saturating_pow(made - 1)).min(retries.cap);
    let drawn = doubled.mul_f64(fastrand::f64());
    drawn.max(after.unwrap_or_default()).min(retries.cap)
}

fn gave_up(made: u32, time: &str, cause: &Cause) -> Failure {
    match made {
        1 => Failure::Lasting(Cause::new(format!("gave up after 1 attempt{time}: {cause}"))),
        _ => Failure::Lasting(Cause::new(format!("gave up after {made} attempts{time}, the last: {cause}"))),
    }
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroU32;
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::*;

    fn quick(attempts: u32) -> Retries {
        let ms = Duration::from_millis;
        Retries { attempts: NonZeroU32::new(attempts).unwrap(), base: ms(1), cap: ms(4) }
    }

    async fn ended(retries: Retries, timeouts: Timeouts, fails: u32) -> (u32, Result<u32, String>) {
        let (made, throttle) = (AtomicU32::new(0), Throttle::default());
        let result = attempts(retries, timeouts, &throttle, Duration::ZERO, || async {
            let attempt = made.fetch_add(1, Ordering::Relaxed) + 1;
            if attempt <= fails { Err(Failure::passing("busy")) } else { Ok(attempt) }
        });
        let result = result.await.map_err(|failure| match failure {
            Failure::Lasting(cause) => cause.to_string(),
            other => panic!("{other:?}"),
        });
        (made.into_inner(), result)
    }

    #[tokio::test]
    async fn no_more_attempts_are_made_than_allowed() {
        let timeouts = Timeouts::default();
        assert_eq!(ended(quick(5), timeouts, 4).await, (5, Ok(5)));
        let gave_up = "gave up after 5 attempts, the last: busy".to_owned();
        assert_eq!(ended(quick(5), timeouts, 5).await, (5, Err(gave_up)));
        assert_eq!(ended(quick(1), timeouts, 9).await, (1, Err("gave up after 1 attempt: busy".to_owned())));
    }

    #[tokio::test]
    async fn no_attempt_begins_after_the_time_limit() {
        let timeouts = Timeouts { operation: Duration::ZERO, ..Timeouts::default() };
        let (made, result) = ended(quick(5), timeouts, 9).await;
        assert_eq!(made, 1);
        assert!(result.unwrap_err().starts_with("gave up after 1 attempt and "));
    }

    #[tokio::test]
    async fn an_attempt_that_hangs_is_cancelled_and_repeated() {
        let timeouts = Timeouts { attempt: Duration::from_millis(5), ..Timeouts::default() };
        let (made, throttle) = (AtomicU32::new(0), Throttle::default());
        let result = attempts(quick(3), timeouts, &throttle, Duration::ZERO, || {
            made.fetch_add(1, Ordering::Relaxed);
            std::future::pending::<Result<(), Failure>>()
        });
        let Err(Failure::Lasting(cause)) = result.await else { panic!("it cannot succeed") };
        assert_eq!(cause.to_string(), "gave up after 3 attempts, the last: not finished within 5ms");
        assert_eq!(made.into_inner(), 3);
    }

    #[tokio::test]
    async fn an_allowance_extends_each_attempt_and_the_whole_operation() {
        let timeouts = Timeouts { attempt: Duration::ZERO, operation: Duration::ZERO, ..Timeouts::default() };
        let throttle = Throttle::default();
        let with = |allowance, takes: Option<Duration>| {
            attempts(quick(1), timeouts, &throttle, allowance, move || async move {
                match takes {
                    Some(time) => sleep(time).await,
                    None => std::future::pending().await,
                }
                Ok(())
            })
        };
        assert!(with(Duration::from_secs(60), Some(Duration::from_millis(1))).await.is_ok());
        assert!(with(Duration::ZERO, None).await.is_err());
    }

    #[test]
    fn waits_double_up_to_a_cap_that_also_limits_the_requested_wait() {
        let ms = Duration::from_millis;
        let retries = Retries { base: ms(100), cap: ms(1000), ..Retries::default() };
        for _ in 0..100 {
            assert!(pause(retries, 1, None) <= ms(100));
            assert!(pause(retries, 3, None) <= ms(400));
            assert!(pause(retries, u32::MAX, None) <= ms(1000));
            assert!(pause(retries, 1, Some(ms(700))) >= ms(700));
        }
        assert_eq!(pause(retries, 1, Some(ms(60_000))), ms(1000));
    }
}
