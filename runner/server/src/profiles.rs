//! Profiles of runs that were measured since the start of the server.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};

use penstock_engine::lock::locked;
use penstock_types::profile::Profile;
use penstock_types::run::RunId;

/// Maximum number of profiles that are kept, in memory; the oldest ones are dropped.
const KEPT: usize = 32;

/// Profiles of runs, latest last.
#[derive(Debug, Default)]
pub(crate) struct Profiles(Mutex<VecDeque<(RunId, Arc<Profile>)>>);

impl Profiles {
    pub(crate) fn of(&self, id: &RunId) -> Option<Arc<Profile>> {
        locked(&self.0).iter().find(|(run, _)| run == id).map(|(_, profile)| profile.clone())
    }

    pub(crate) fn keep(&self, id: &RunId, profile: Arc<Profile>) {
        let mut kept = locked(&self.0);
        kept.retain(|(run, _)| run != id);
        kept.push_back((id.clone(), profile));
        if kept.len() > KEPT {
            kept.pop_front();
        }
    }
}
