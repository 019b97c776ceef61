//! Access to the data of a source.

use penstock_storage::BoundedStore;

use crate::damage::Damage;

/// Store of a source, and what bounds and handles its reading.
#[derive(Clone, Debug)]
pub struct Access {
    pub store: BoundedStore,
    pub damage: Damage,
    /// Maximum size of what is kept in memory, and of a sample, in bytes.
    pub most_bytes: u64,
}
