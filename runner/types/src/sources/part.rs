//! Sources of a mixture.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::Source;
use super::settings::default_epochs;
use crate::fault::Pointer;
use crate::plan::Faults;
use crate::spec::Name;

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

impl MixPart {
    /// Place of a source in a mixture at `mix`.
    pub fn place(name: &Name, source: &Source, mix: &Pointer) -> Pointer {
        mix.key("sources").key(name.as_str()).key("source").key(source.kind())
    }

    pub(super) fn check(&self, faults: &mut Faults<'_>, place: &Pointer) {
        let rules = self.source.rules();
        if rules.parts().is_some() {
            let hint = "multiply its weights, and move its sources here";
            faults.fault(place.clone(), "a mixture is no source of a mixture", hint);
            return;
        }
        if let Some(unnumbered) = rules.unnumbered() {
            let hint =
                format!("make an index with `penstock index create {}`, and set `index`", unnumbered.option);
            let found = format!(
                "samples of a mixture are read by their numbers, which {} have only in an index",
                unnumbered.objects
            );
            faults.fault(place.clone(), found, hint);
        }
        let settings = rules.settings();
        if settings.shard.is_some() {
            let hint = "move `shard` to the `mix`";
            faults.fault(place.key("shard"), "ranks share the mixture, not its sources", hint);
        }
        if settings.epochs != default_epochs() {
            faults.fault(place.key("epochs"), "the mixture has the epochs", "move `epochs` to the `mix`");
        }
        self.source.check(faults, place);
    }
}

fn default_weight() -> u32 {
    1
}
