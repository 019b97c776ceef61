//! The sources of the document.

use std::num::NonZeroU32;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use strum::IntoStaticStr;

use super::bounds::{Name, ObjectKey};
use crate::traversal::{Shard, Traversal, TraversalSettings};

/// Where samples come from.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema, IntoStaticStr)]
#[serde(rename_all = "lowercase")]
#[strum(serialize_all = "lowercase")]
pub enum Source {
    /// The keys of a store.
    List(ListSource),
    /// The keys that an index file names.
    Index(IndexSource),
    /// Numbers.
    Range(RangeSource),
    /// The lines of an NDJSON object.
    Records(RecordsSource),
}

/// Declares a source: its own fields, then how it is visited.
macro_rules! source {
    ($(#[$doc:meta])* $name:ident { $($(#[$field_doc:meta])* $field:ident: $type:ty,)* }) => {
        $(#[$doc])*
        #[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
        #[serde(deny_unknown_fields)]
        pub struct $name {
            $($(#[$field_doc])* pub $field: $type,)*
            /// Whether the samples are permuted, differently in every epoch.
            #[serde(default)]
            pub shuffle: bool,
            /// The share of this process; everything when missing.
            #[serde(default, skip_serializing_if = "Option::is_none")]
            pub shard: Option<Shard>,
            /// Passes over the source; `null` for passes without end.
            #[serde(default = "default_epochs")]
            pub epochs: Option<NonZeroU32>,
            /// Most samples of one epoch, over all shards together; all when missing.
            #[serde(default, skip_serializing_if = "Option::is_none")]
            pub limit: Option<u64>,
        }

        impl $name {
            fn traversal(&self, seed: u64) -> TraversalSettings {
                TraversalSettings {
                    seed,
                    shuffle: self.shuffle,
                    shard: self.shard,
                    limit: self.limit,
                    epochs: self.epochs,
                    first_epoch: 0,
                }
            }
        }
    };
}

source! {
    /// One sample for every key of a store, sorted by bytes.
    ListSource {
        /// The store whose keys are listed.
        store: Name,
        /// What a key has to start with.
        #[serde(default)]
        prefix: String,
        /// What a key has to end with, e.g. `.jpg`.
        #[serde(default)]
        suffix: String,
    }
}

source! {
    /// One sample for every key that an index names, in its order.
    IndexSource {
        /// The store that holds the objects.
        store: Name,
        /// Key of the index in that store: a JSON array of keys. When missing, the index that the store's own
        /// configuration names.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        index: Option<ObjectKey>,
    }
}

source! {
    /// Samples numbered from 0, without fields.
    RangeSource {
        /// How many.
        count: u64,
    }
}

source! {
    /// One sample for every line of an NDJSON object: `key`, and the line's other members as fields.
    RecordsSource {
        /// The store the object lies in.
        store: Name,
        /// The object's key.
        key: ObjectKey,
    }
}

impl Source {
    /// The word for its kind, as in the document.
    pub fn kind(&self) -> &'static str {
        self.into()
    }

    /// The store it reads from; `None` when it needs none.
    pub fn store(&self) -> Option<&Name> {
        match self {
            Self::List(source) => Some(&source.store),
            Self::Index(source) => Some(&source.store),
            Self::Records(source) => Some(&source.store),
            Self::Range(_) => None,
        }
    }

    /// Samples of one epoch when it is visited in this way; `None` before it is read.
    pub(crate) fn samples(&self, traversal: TraversalSettings) -> Option<u64> {
        match self {
            Self::Range(range) => Traversal::new(range.count, traversal).ok().map(|all| all.len_per_epoch()),
            Self::List(_) | Self::Index(_) | Self::Records(_) => None,
        }
    }

    /// How it is visited when all randomness starts at `seed`.
    pub(crate) fn traversal(&self, seed: u64) -> TraversalSettings {
        match self {
            Self::List(source) => source.traversal(seed),
            Self::Index(source) => source.traversal(seed),
            Self::Range(source) => source.traversal(seed),
            Self::Records(source) => source.traversal(seed),
        }
    }
}

fn default_epochs() -> Option<NonZeroU32> {
    Some(NonZeroU32::MIN)
}
