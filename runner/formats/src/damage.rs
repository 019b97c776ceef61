//! Handling of damaged data.

use std::sync::Arc;

use penstock_engine::chunk::Outcome;
use penstock_engine::notes::Notes;
use penstock_engine::ports::{Fault, SourceFault};
use penstock_types::run::FailureClass;
use penstock_types::spec::OnDamage;
use penstock_types::text::with_causes;

/// Handling of damaged data, with the notes that get what is left out.
#[derive(Clone, Debug, Default)]
pub struct Damage {
    pub policy: OnDamage,
    pub notes: Notes,
}

impl Damage {
    /// True if damaged parts are left out.
    pub(crate) fn skips(&self) -> bool {
        self.policy == OnDamage::Skip
    }

    /// Leaves out the part `key`, or what follows in it, because of a fault; returns the fault if it ends the run.
    pub(crate) fn part(
        &self,
        key: &Arc<str>,
        samples: Option<u64>,
        fault: SourceFault,
    ) -> Result<(), SourceFault> {
        if !self.skips() || !fault.is_damage {
            return Err(fault);
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

    /// Warns of the thing `name`.
    pub(crate) fn warn(&self, warning: &'static str, name: &str) {
        self.notes.warn(warning, name);
    }
}
