//! The sources of the document.

use std::collections::BTreeMap;
use std::num::NonZeroU32;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use strum::IntoStaticStr;

use super::bounds::{Name, ObjectKey};
use crate::traversal::{Pick, Shard, Stop, Traversal, TraversalSettings};

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
    /// Reads the samples in tar shards.
    Tar(TarSource),
    /// Mixes the samples of several sources.
    Mix(MixSource),
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
                    window: None,
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

source! {
    /// Produces one sample for each group of neighbouring files with one key in tar shards, as WebDataset writes them: a file
    /// `KEY.NAME` is the field `NAME` of the sample `KEY`.
    TarSource {
        /// Store that holds the shards.
        store: Name,
        /// Keys of the shards, e.g. `train-{000..127}.tar`.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        shards: Option<ObjectKey>,
        /// Prefix of the keys of the shards, which end with `.tar`; instead of `shards`.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        prefix: Option<String>,
        /// Key of an index in that store, made by `penstock index create --tar`; instead of `shards`. A shuffle needs an index.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        index: Option<ObjectKey>,
        /// Fields of the samples, each with the names of its file, e.g. `{"bytes": "jpg;jpeg"}`. When missing, each file is a field
        /// with its own name.
        #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
        fields: BTreeMap<Name, String>,
        /// Number of shards whose samples a shuffle mixes at a time; all when missing.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        window: Option<NonZeroU32>,
    }
}

/// Mixes the samples of several sources by their weights. In each block of samples, every source has exactly its share.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct MixSource {
    /// Sources by name. `shuffle` and `limit` of each apply within it; the mixture has the `shard` and the `epochs`.
    pub sources: BTreeMap<Name, MixPart>,
    /// End of an epoch: `first` when a source ends, `all` when all have ended, `cycle` when each was read at least once, or
    /// `{"samples": N}`.
    #[serde(default)]
    pub stop: Stop,
    /// Order within a block: `even` or `random`.
    #[serde(default)]
    pub pick: Pick,
    /// Part of the samples that this process reads; all when missing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shard: Option<Shard>,
    /// Number of epochs; `null` for an endless run.
    #[serde(default = "default_epochs")]
    pub epochs: Option<NonZeroU32>,
    /// Maximum number of samples in one epoch, over all shards together; all when missing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<u64>,
}

/// A source of a mixture.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct MixPart {
    /// Source of the samples; any but `mix`.
    pub source: Source,
    /// Share of the source in relation to the other weights; with 0, the source is never read.
    #[serde(default = "default_weight")]
    pub weight: u32,
}

impl Source {
    /// Kind of the source, as written in the document.
    pub fn kind(&self) -> &'static str {
        self.into()
    }

    /// Store that the source reads from; `None` if it needs none, or several.
    pub fn store(&self) -> Option<&Name> {
        let stores = self.stores();
        stores.first().copied().filter(|first| stores.iter().all(|store| store == first))
    }

    /// Stores that the source reads from.
    pub fn stores(&self) -> Vec<&Name> {
        match self {
            Self::List(source) => vec![&source.store],
            Self::Index(source) => vec![&source.store],
            Self::Records(source) => vec![&source.store],
            Self::Tar(source) => vec![&source.store],
            Self::Range(_) => Vec::new(),
            Self::Mix(mix) => mix.sources.values().flat_map(|part| part.source.stores()).collect(),
        }
    }

    /// Number of samples in one epoch with this traversal; `None` if only reading the source reveals it.
    pub(crate) fn samples(&self, traversal: TraversalSettings) -> Option<u64> {
        match self {
            Self::Range(range) => Traversal::new(range.count, traversal).ok().map(|all| all.len_per_epoch()),
            Self::List(_) | Self::Index(_) | Self::Records(_) | Self::Tar(_) | Self::Mix(_) => None,
        }
    }

    /// Settings of the traversal for this `seed`.
    pub fn traversal(&self, seed: u64) -> TraversalSettings {
        match self {
            Self::List(source) => source.traversal(seed),
            Self::Index(source) => source.traversal(seed),
            Self::Range(source) => source.traversal(seed),
            Self::Records(source) => source.traversal(seed),
            Self::Tar(source) => TraversalSettings { window: source.window, ..source.traversal(seed) },
            Self::Mix(MixSource { shard, epochs, limit, .. }) => TraversalSettings {
                seed,
                shard: *shard,
                epochs: *epochs,
                limit: *limit,
                ..TraversalSettings::IN_ORDER
            },
        }
    }
}

fn default_weight() -> u32 {
    1
}

fn default_epochs() -> Option<NonZeroU32> {
    Some(NonZeroU32::MIN)
}
