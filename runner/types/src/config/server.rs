//! What `penstock serve` reads beside stores and limits.

use std::net::SocketAddr;
use std::num::NonZeroU32;

use serde::Deserialize;

use crate::spec::{DeadlineMs, MemoryMib};

/// What runs may use of the machine at a time, all together. A run that does not fit waits until others have ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Budget {
    /// Worker threads; four for each core, but at least 32, when missing.
    pub threads: Option<NonZeroU32>,
    /// Memory of instances and queues, in MiB; three quarters of what the system lets it use when missing.
    pub memory_mib: Option<NonZeroU32>,
}

/// What runs of a server may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct RunBounds {
    /// Runs that wait for their turn at a time; more are refused.
    pub queued: NonZeroU32,
    /// Memory one instance of a module may ask for, in MiB.
    pub instance_memory_mib: NonZeroU32,
    /// CPU time one sample may ask for, in milliseconds.
    pub deadline_ms: NonZeroU32,
    /// Tasks of all stages together that a run may have at a time: the sum of their `concurrency`.
    pub concurrency: NonZeroU32,
    /// Assets of all modules of a run together, in MiB.
    pub assets_mib: NonZeroU32,
    /// Dead letters that are kept of one run, in MiB; what comes on top is counted.
    pub dead_letters_mib: NonZeroU32,
    /// Runs that are kept; of more, the oldest that are over go with all that is kept of them.
    pub kept: NonZeroU32,
}

/// Where a server listens: an address and a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ListenAddress(pub(super) SocketAddr);

/// A name that a server goes by, in lower case.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostName(pub(super) String);

impl Default for RunBounds {
    fn default() -> Self {
        let least = |value| NonZeroU32::new(value).expect("the built-in bounds are not zero");
        Self {
            queued: least(100),
            instance_memory_mib: least(MemoryMib::MOST),
            deadline_ms: least(DeadlineMs::MOST),
            concurrency: least(4_096),
            assets_mib: least(256),
            dead_letters_mib: least(1024),
            kept: least(10_000),
        }
    }
}

impl ListenAddress {
    /// The address.
    pub fn address(self) -> SocketAddr {
        self.0
    }
}

impl HostName {
    /// The name.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}
