//! Settings that sources share.

use std::collections::BTreeMap;
use std::num::NonZeroU32;

use crate::fault::{Pointer, listed};
use crate::plan::Faults;
use crate::spec::{Links, Name, ObjectKey, OnDamage, Suffix, WhenMissing};
use crate::traversal::{Shard, TraversalSettings};

/// Declares a source: its own fields, then those of the groups behind it, then the order and range in which it is visited.
/// (serde's `flatten` could share the fields, but cannot reject unknown ones.)
macro_rules! source {
    ($(#[$doc:meta])* $name:ident { $($own:tt)* } $($groups:tt)*) => {
        source!(@add [$($groups)*] [$(#[$doc])* $name] { $($own)* } [] []);
    };
    (@add [+ listed $($groups:tt)*] $head:tt { $($fields:tt)* } [$($copied:ident)*] $shared:tt) => {
        source!(@add [$($groups)*] $head {
            $($fields)*
            /// Takes keys in folders whose names begin with `.`, and in `__MACOSX`, behind `prefix`, too.
            #[serde(default, skip_serializing_if = "std::ops::Not::not")]
            #[schemars(extend("default" = false))]
            hidden: bool,
            /// Links in a folder that are followed: `all`, or `files` for those to files only.
            #[serde(default, skip_serializing_if = "crate::defaults::is_default")]
            #[schemars(extend("default" = crate::spec::Links::default()))]
            links: crate::spec::Links,
        } [$($copied)* hidden links] $shared);
    };
    (@add [+ missing $($groups:tt)*] $head:tt { $($fields:tt)* } $copied:tt [$($shared:ident)*]) => {
        source!(@add [$($groups)*] $head {
            $($fields)*
            /// Handling of samples that lack a field of the data set, by field: `fail` (the default), `mask`, `drop`, `nan`, or
            /// `{"value": -1}`.
            #[serde(default, skip_serializing_if = "std::collections::BTreeMap::is_empty")]
            missing: std::collections::BTreeMap<String, crate::spec::WhenMissing>,
        } $copied [$($shared)* missing]);
    };
    (@add [+ damaged $($groups:tt)*] $head:tt { $($fields:tt)* } [$($copied:ident)*] $shared:tt) => {
        source!(@add [$($groups)*] $head {
            $($fields)*
            /// Handling of damaged, cut, empty and missing parts: `fail` or `skip`.
            #[serde(default, skip_serializing_if = "crate::defaults::is_default")]
            #[schemars(extend("default" = crate::spec::OnDamage::default()))]
            on_damage: crate::spec::OnDamage,
        } [$($copied)* on_damage] $shared);
    };
    (@add [+ windowed $doc:literal $($groups:tt)*] $head:tt { $($fields:tt)* } [$($copied:ident)*] $shared:tt) => {
        source!(@add [$($groups)*] $head {
            $($fields)*
            #[doc = $doc]
            #[serde(default, skip_serializing_if = "Option::is_none")]
            window: Option<std::num::NonZeroU32>,
        } [$($copied)* window] $shared);
    };
    (@add [] [$(#[$doc:meta])* $name:ident] { $($(#[$field_doc:meta])* $field:ident: $type:ty,)* } [$($copied:ident)*] [$($shared:ident)*]) => {
        $(#[$doc])*
        #[derive(Clone, Debug, PartialEq, serde::Serialize, serde::Deserialize, schemars::JsonSchema)]
        #[serde(deny_unknown_fields)]
        pub struct $name {
            $($(#[$field_doc])* pub $field: $type,)*
            /// Permutes the samples, differently in every epoch.
            #[serde(default)]
            pub shuffle: bool,
            /// Part of the samples that this process reads; all when missing.
            #[serde(default, skip_serializing_if = "Option::is_none")]
            pub shard: Option<crate::traversal::Shard>,
            /// Number of passes over the source; `null` for an endless run.
            #[serde(default = "crate::sources::settings::default_epochs")]
            pub epochs: Option<std::num::NonZeroU32>,
            /// Maximum number of samples in one epoch, over all shards together; all when missing.
            #[serde(default, skip_serializing_if = "Option::is_none")]
            pub limit: Option<u64>,
        }

        impl crate::sources::Shared for $name {
            fn settings(&self) -> crate::sources::SourceSettings<'_> {
                let visited = crate::sources::SourceSettings {
                    shuffle: self.shuffle,
                    shard: self.shard,
                    epochs: self.epochs,
                    limit: self.limit,
                    ..Default::default()
                };
                crate::sources::SourceSettings {
                    $($copied: self.$copied,)*
                    $($shared: Some(&self.$shared),)*
                    ..visited
                }
            }
        }
    };
}

pub(crate) use source;

/// Access to the settings that sources share.
pub trait Shared {
    /// Settings that sources share.
    fn settings(&self) -> SourceSettings<'_>;
}

/// Settings that several kinds of sources have, with the defaults of those that a source lacks.
#[derive(Clone, Copy, Debug, Default)]
pub struct SourceSettings<'a> {
    /// Permutes the samples.
    pub shuffle: bool,
    /// Part of the samples that this process reads.
    pub shard: Option<Shard>,
    /// Number of passes.
    pub epochs: Option<NonZeroU32>,
    /// Maximum number of samples in one epoch.
    pub limit: Option<u64>,
    /// Number of shards whose samples a shuffle mixes at a time.
    pub window: Option<NonZeroU32>,
    /// Takes keys in hidden folders.
    pub hidden: bool,
    /// Links that are followed.
    pub links: Links,
    /// Handling of samples that lack a field, by field.
    pub missing: Option<&'a BTreeMap<String, WhenMissing>>,
    /// Handling of damaged data.
    pub on_damage: OnDamage,
}

impl SourceSettings<'_> {
    /// Settings of the traversal for this `seed`.
    pub fn traversal(&self, seed: u64) -> TraversalSettings {
        let Self { shuffle, window, shard, limit, epochs, .. } = *self;
        TraversalSettings { seed, shuffle, window, shard, limit, epochs, first_epoch: 0 }
    }
}

/// Objects that a source reads.
#[derive(Clone, Debug)]
pub struct Place<'a> {
    /// Store that holds them.
    pub store: &'a Name,
    /// The ways in which the document names them: one, unless a document without faults may name none.
    pub by: Vec<By<'a>>,
}

/// A way to name objects.
#[derive(Clone, Debug)]
pub enum By<'a> {
    /// Key of the only object.
    Key(&'a ObjectKey),
    /// Pattern of keys.
    Shards(&'a ObjectKey),
    /// Beginning and ending of keys.
    Prefix(&'a str, Suffix),
    /// Key of an index of the samples.
    Index(&'a ObjectKey),
}

impl<'a> Place<'a> {
    pub(super) fn new(store: &'a Name, by: impl IntoIterator<Item = Option<By<'a>>>) -> Self {
        Self { store, by: by.into_iter().flatten().collect() }
    }

    /// Reports that the store is unknown, or that not exactly one of `ways` names the `objects`.
    pub(super) fn check(&self, ways: &[&str], objects: &str, faults: &mut Faults<'_>, place: &Pointer) {
        faults.store(self.store, place.key("store"));
        if self.by.len() != 1 {
            let found = format!("one of {} names the {objects}", listed(ways.iter().copied()));
            faults.fault(place.clone(), found, "set exactly one of them");
        }
    }
}

pub(super) fn default_epochs() -> Option<NonZeroU32> {
    Some(NonZeroU32::MIN)
}
