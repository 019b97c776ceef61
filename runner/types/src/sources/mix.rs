use std::collections::BTreeMap;
use std::num::NonZeroU32;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::part::MixPart;
use super::rules::SourceRules;
use super::settings::{Shared, SourceSettings, default_epochs};
use crate::fault::Pointer;
use crate::plan::{Faults, Fields};
use crate::spec::Name;
use crate::traversal::{Pick, Shard, Stop, check_weights};

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

impl Shared for MixSource {
    fn settings(&self) -> SourceSettings<'_> {
        let Self { shard, epochs, limit, .. } = *self;
        SourceSettings { shard, epochs, limit, ..SourceSettings::default() }
    }
}

impl SourceRules for MixSource {
    fn parts(&self) -> Option<&BTreeMap<Name, MixPart>> {
        Some(&self.sources)
    }

    fn fields(&self) -> Fields {
        let drawn = self.sources.values().filter(|part| part.weight > 0);
        drawn.map(|part| part.source.rules().fields()).reduce(Fields::of_either).unwrap_or(Fields::NONE)
    }

    fn check(&self, faults: &mut Faults<'_>, place: &Pointer) {
        let weights: Vec<u32> = self.sources.values().map(|part| part.weight).collect();
        if let Err(fault) = check_weights(&weights) {
            let hint = "weights are whole numbers such as 3 and 1";
            faults.fault(place.key("sources"), fault.to_string(), hint);
        }
        self.check_classes(faults, place);
        for (name, part) in &self.sources {
            part.check(faults, &MixPart::place(name, &part.source, place));
        }
    }

    fn in_words(&self) -> String {
        let weights: u64 = self.sources.values().map(|part| u64::from(part.weight)).sum();
        let parts = self.sources.iter().map(|(name, part)| {
            let share = f64::from(part.weight) * 100.0 / weights.max(1) as f64;
            format!("{share:.1} % `{name}` ({})", part.source.rules().in_words())
        });
        format!("a mixture of {}", parts.collect::<Vec<_>>().join(", "))
    }
}

impl MixSource {
    /// Checks that the parts name the same classes, since they share one table of them.
    fn check_classes(&self, faults: &mut Faults<'_>, place: &Pointer) {
        let mut named =
            self.sources.iter().filter_map(|(name, part)| Some((name, part, part.source.rules().classes()?)));
        let Some((other, _, of_other)) = named.next() else { return };
        for (name, part, _) in named.filter(|(.., classes)| *classes != of_other) {
            let place = MixPart::place(name, &part.source, place).key("classes");
            let found = format!("the sources `{other}` and `{name}` name different classes");
            let hint = "all sources of a mixture share one table of classes: name all of them in each";
            faults.fault(place, found, hint);
        }
    }
}
