//! The sources of the document.

use std::num::NonZeroU32;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use strum::IntoStaticStr;

use super::bounds::{Name, ObjectKey};
use crate::traversal::{Shard, Traversal, TraversalSettings};

/// Source of the samples.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema, IntoStaticStr)]
#[serde(rename_all = "lowercase")]
#[strum(serialize_all = "lowercase")]
pub enum Source {
    /// Reads the keys of a store.
    List(ListSource),
    /// Reads the keys of an index file.
    Index(IndexSource),
    /// Counts numbers from 0.
    Range(RangeSource),
    /// Reads the lines of an NDJSON object.
    Records(RecordsSource),
}

/// Declares a source: its own fields, then the order and range in which it is visited.
macro_rules! source {
    ($(#[$doc:meta])* $name:ident { $($(#[$field_doc:meta])* $field:ident: $type:ty,)* }) => {
        $(#[$doc])*
        #[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
        #[serde(deny_unknown_fields)]
        pub struct $name {
            $($(#[$field_doc])* pub $field: $type,)*
            /// Permutes the samples, differently in every epoch.
            #[serde(default)]
            pub shuffle: bool,
            /// Part of the samples that this process reads; all when missing.
            #[serde(default, skip_serializing_if = "Option::is_none")]
            pub shard: Option<Shard>,
            /// Number of passes over the source; `null` for an endless run.
            #[serde(default = "default_epochs")]
            pub epochs: Option<NonZeroU32>,
            /// Maximum number of samples in one epoch, over all shards together; all when missing.
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
    /// Produces one sample for every key of a store, sorted by bytes.
    ListSource {
        /// Store whose keys are listed.
        store: Name,
        /// Prefix of the keys to list; all keys when empty.
        #[serde(default)]
        prefix: String,
        /// Suffix of the keys to list, e.g. `.jpg`; all keys when empty.
        #[serde(default)]
        suffix: String,
    }
}

source! {
    /// Produces one sample for every key in an index, in the order of the index.
    IndexSource {
        /// Store that holds the objects.
        store: Name,
        /// Key of the index in that store: a JSON array of keys. When missing, the `index` in the configuration of the store.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        index: Option<ObjectKey>,
    }
}

source! {
    /// Produces samples numbered from 0, without fields.
    RangeSource {
        /// Number of samples in one epoch.
        count: u64,
    }
}

source! {
    /// Produces one sample for every line of an NDJSON object: `key`, and the other members of the line as fields.
    RecordsSource {
        /// Store that holds the object.
        store: Name,
        /// Key of the object in the store.
        key: ObjectKey,
    }
}

impl Source {
    /// Kind of the source, as written in the document.
    pub fn kind(&self) -> &'static str {
        self.into()
    }

    /// Store that the source reads from; `None` if it needs none.
    pub fn store(&self) -> Option<&Name> {
        match self {
            Self::List(source) => Some(&source.store),
            Self::Index(source) => Some(&source.store),
            Self::Records(source) => Some(&source.store),
            Self::Range(_) => None,
        }
    }

    /// Number of samples in one epoch with this traversal; `None` if only reading the source reveals it.
    pub(crate) fn samples(&self, traversal: TraversalSettings) -> Option<u64> {
        match self {
            Self::Range(range) => Traversal::new(range.count, traversal).ok().map(|all| all.len_per_epoch()),
            Self::List(_) | Self::Index(_) | Self::Records(_) => None,
        }
    }

    /// Settings of the traversal for this `seed`.
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
