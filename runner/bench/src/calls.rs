//! Repetitions of a small action, one after another or in a pool of threads, and the time of each repetition.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread::{self, Builder};

use fastrand::Rng;
use penstock_engine::lock::locked;

use crate::failures::Failures;
use crate::load::{BenchError, Surroundings};
use crate::report::{CallsReport, Spread};
use crate::spec::OnReadError;
use crate::subject::Subject;
use crate::worker::{FailedIn, ReadFailure};

/// Number of bytes that one repetition read or copied, or the failure of the repetition.
pub(crate) type Called = Result<u64, ReadFailure>;

/// A repeatable action; its argument is the number of the repetition.
pub(crate) type Call<'a> = dyn Fn(u32) -> Called + Sync + 'a;

/// State shared by all threads of `play`.
#[derive(Default)]
struct Played {
    times: Vec<u64>,
    bytes: u64,
    failures: Failures,
    first_failure: Option<String>,
}

/// Calls `call` exactly `repeat` times, up to `pool` calls at a time.
pub(crate) fn play(
    surroundings: &Surroundings,
    subject: &Subject,
    action: &str,
    repeat: u32,
    pool: u32,
    call: &Call<'_>,
) -> Result<CallsReport, BenchError> {
    let next = AtomicU32::new(0);
    let played = Mutex::new(Played::default());
    let start = surroundings.clock.now();
    let player = || {
        loop {
            // A counter shared by all threads makes the total number of repetitions exact.
            let number = next.fetch_add(1, Ordering::Relaxed);
            if number >= repeat || surroundings.cancel.is_cancelled() {
                return;
            }
            let begun = surroundings.clock.now();
            let called = call(number);
            let time = surroundings.clock.now() - begun;
            let mut played = locked(&played);
            match called {
                Ok(bytes) => {
                    played.times.push(time);
                    played.bytes += bytes;
                }
                Err(failure) => {
                    played.first_failure.get_or_insert_with(|| failure.message.clone());
                    played.failures.add(subject, vec![failure]);
                    if surroundings.on_error == OnReadError::Fail {
                        next.store(repeat, Ordering::Relaxed);
                    }
                }
            }
        }
    };
    if pool == 0 {
        player();
    } else {
        let player = &player;
        thread::scope(|scope| {
            (0..pool).try_for_each(|number| {
                Builder::new().name(format!("player/{number}")).spawn_scoped(scope, player).map(drop)
            })
        })
        .map_err(|error| BenchError::no_thread("a player", &error))?;
    }
    let elapsed_s = (surroundings.clock.now() - start) as f64 * 1e-9;
    let played = played.into_inner().unwrap_or_else(PoisonError::into_inner);
    if surroundings.cancel.is_cancelled() {
        return Err(BenchError::Stopped);
    }
    let failed = played.first_failure.filter(|_| surroundings.on_error == OnReadError::Fail);
    if let Some(reason) = failed {
        return Err(BenchError::Failed(reason));
    }
    let count = played.times.len() as f64;
    let nothing = || BenchError::Failed(format!("every repetition of `{action}` failed"));
    let time = Spread::of(played.times).ok_or_else(nothing)?;
    Ok(CallsReport {
        action: action.to_owned(),
        pool,
        time,
        elapsed_s,
        per_s: count / elapsed_s.max(1e-9),
        bytes: played.bytes,
        failures: played.failures.into_groups(),
    })
}

pub(crate) fn reading<'a>(
    surroundings: &'a Surroundings,
    subject: &'a Subject,
    pool: u32,
    pick: impl Fn(u32) -> u32 + Sync + 'a,
) -> impl Fn(u32) -> Called + Sync + 'a {
    let store = subject.store_with(pool as usize);
    move |number| {
        let picked = pick(number);
        let object = &subject.objects[picked as usize];
        let read = surroundings.cancel.unless(subject.read_one(&store, picked));
        match surroundings.runtime.block_on(read) {
            Some(Ok(sample)) if !object.is_same(&sample) => {
                let (noun, key) = (subject.noun(), &object.key);
                let message = format!("{noun} {key} has other bytes than in the first read of this {noun}");
                Err(ReadFailure { object: Some(picked), what: FailedIn::Storage, message })
            }
            Some(read) => read.map(|sample| sample.bytes()),
            None => Ok(0),
        }
    }
}

/// Picks a random object of a pass. The choice depends only on the seed and on the number of the repetition, not on the thread.
pub(crate) fn random_object(subject: &Subject, seed: u64) -> impl Fn(u32) -> u32 + Sync + use<'_> {
    let order = subject.order(0);
    move |number| {
        let mut random = Rng::with_seed(
            seed ^ (u64::from(number) << 32 | u64::from(number)).wrapping_mul(0x9e37_79b9_7f4a_7c15),
        );
        order[random.usize(..order.len())]
    }
}

/// Creates a random float32 array and copies it, like filling a page-locked buffer. Returns its size in bytes.
pub(crate) fn copying(shape: [u32; 2], seed: u64) -> impl Fn(u32) -> Called + Sync {
    let numbers = shape.iter().map(|side| *side as usize).product::<usize>();
    move |number| {
        let mut random = Rng::with_seed(seed.wrapping_add(u64::from(number)));
        let array: Vec<f32> = (0..numbers).map(|_| random.f32()).collect();
        let mut device = vec![0.0_f32; numbers];
        device.copy_from_slice(&array);
        Ok(std::mem::size_of_val(std::hint::black_box(device.as_slice())) as u64)
    }
}
