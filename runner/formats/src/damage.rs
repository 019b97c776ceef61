//! Handling of damaged data.

use penstock_engine::chunk::Outcome;
use penstock_engine::notes::Notes;
use penstock_engine::ports::{Fault, SourceFault};
use penstock_storage::{BoundedStore, shown};
use penstock_types::run::FailureClass;
use penstock_types::spec::OnDamage;
use penstock_types::text::with_causes;

/// Remedy for damaged parts, behind a message.
const SKIP: &str = "; `\"on_damage\": \"skip\"` on the source leaves out what is damaged";

/// Handling of damaged data, with the notes that get what is left out.
#[derive(Clone, Debug, Default)]
pub struct Damage {
    pub policy: OnDamage,
    pub notes: Notes,
    /// Set if a document chooses the policy: faults of damaged parts name the setting.
    pub is_chosen: bool,
}

impl Damage {
    pub(crate) fn skips(&self) -> bool {
        self.policy == OnDamage::Skip
    }

    /// Leaves out the part `key`, or what follows in it, because of a fault; returns the fault if it ends the run.
    pub(crate) fn part(
        &self,
        key: &str,
        samples: Option<u64>,
        fault: SourceFault,
    ) -> Result<(), SourceFault> {
        if !fault.is_damage {
            return Err(fault);
        }
        if !self.skips() {
            let remedy = if self.is_chosen { SKIP } else { "" };
            return Err(SourceFault::new(format!("{}{remedy}", fault.message), fault.source));
        }
        self.notes.damage(key, samples, &with_causes(&fault));
        Ok(())
    }

    /// Outcome of a damaged sample; the fault, if it ends the run.
    pub(crate) fn sample(&self, fault: SourceFault) -> Result<Outcome, SourceFault> {
        match self.skips() && fault.is_damage {
            true => Ok(Outcome::Failed(Fault::new(FailureClass::Data, with_causes(&fault)))),
            false => Err(fault),
        }
    }
}

/// Fault of the last sample of a shard without its end mark, which lacks the field `name`: the file of the field may have been cut off.
pub(crate) fn cut_sample(shard: &str, store: &BoundedStore, sample: &str, name: &str) -> SourceFault {
    let (shard, sample, name) = (store.named(shard), shown(sample), shown(name));
    SourceFault::damage(format!(
        "the shard {shard} ends without an end mark, and its last sample {sample} lacks the field {name}: is it truncated?"
    ))
}
