//! Chaos and soak tests: a real server and the command under random documents, modules, clients and faults, and under a steady
//! load.
//!
//! Each round is derived from the seed: the actions of each client, and the number of actions after which a fault is injected.
//! The actions in progress at that time depend on the machine: a seed reproduces the same work, and usually the same findings.
#![expect(
    clippy::unwrap_used,
    reason = "a failure here fails the test; `allow-unwrap-in-tests` does not cover helpers"
)]

mod clients;
mod documents;
mod machine;
mod model;
mod round;
mod slope;
mod soak;
mod world;

use std::env;
use std::time::{Duration, Instant};

use crate::machine::{enter_namespaces, tell};
use crate::round::{Fault, Round};
use crate::world::World;

/// Number of rounds of one world; after them, a new world starts with the next seed.
const ROUNDS: u64 = 8;
/// Number of runs that a server keeps: more than the clients submit.
const KEPT: u32 = 100_000;

/// Plays one round, created from `seed`, and prints its result. Returns true if no violation was found.
#[expect(clippy::disallowed_methods, reason = "the duration is printed, not checked")]
fn play(world: &mut World, seed: u64, round: &Round) -> bool {
    let Round { number, clients, faults, clock_jumps } = round;
    tell(&format!("seed {seed}, round {number}: {faults:?}, clock {clock_jumps:?}"));
    clients.iter().zip(0..).for_each(|(actions, client)| tell(&format!("  client {client}: {actions:?}")));
    let start = Instant::now();
    let found = world.play(round);
    let took_s = start.elapsed().as_secs_f64();
    if found.is_empty() {
        tell(&format!(
            "seed {seed}, round {number} ok in {took_s:.1} s: nothing is lost or left; {}",
            world.told()
        ));
        return true;
    }
    tell(&format!(
        "seed {seed}, round {number} FAILED; the end of the server's log:\n{}",
        world.last_logged()
    ));
    found.iter().for_each(|found| tell(&format!("  {found:.4000}")));
    tell(&format!("to reproduce it: make chaos SEED={seed}"));
    false
}

#[test]
fn a_short_chaos_loses_nothing_and_leaves_nothing() {
    let Some(mounts) = enter_namespaces("a_short_chaos_loses_nothing_and_leaves_nothing") else { return };
    let mut world = World::new(1, mounts, KEPT);
    assert!(play(&mut world, 1, &Round::new(1, 0)));
    let faults = vec![(3, Fault::SlowClients(200)), (8, Fault::FullDisk(60 << 10)), (16, Fault::Memory)];
    assert!(play(&mut world, 1, &Round { faults, ..Round::new(1, 1) }));
    assert!(play(&mut world, 1, &Round { faults: vec![(20, Fault::Kill)], ..Round::new(1, 2) }));
}

#[test]
#[ignore = "takes minutes: `make chaos`"]
#[expect(clippy::disallowed_methods, reason = "it runs for a set time")]
fn chaos() {
    let Some(mounts) = enter_namespaces("chaos") else { return };
    let (start, time, first) = (Instant::now(), seconds(900), asked("SEED").unwrap_or(1));
    let mut failed = Vec::new();
    for seed in first.. {
        let mut world = World::new(seed, mounts, KEPT);
        for number in 0..ROUNDS {
            if start.elapsed() >= time {
                tell(&format!("seeds {first} to {seed}; failed: {failed:?}"));
                assert!(failed.is_empty());
                return;
            }
            if !play(&mut world, seed, &Round::new(seed, number)) {
                failed.push(seed);
                break;
            }
        }
    }
}

#[test]
#[ignore = "takes an hour: `make soak`"]
fn soak() {
    soak::soak(seconds(3600));
}

/// Duration of the test, from the variable TIME or the default.
fn seconds(usual: u64) -> Duration {
    Duration::from_secs(asked("TIME").unwrap_or(usual))
}

fn asked(variable: &str) -> Option<u64> {
    let text = env::var(variable).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("found {variable}={text}, expected a whole number")))
}
