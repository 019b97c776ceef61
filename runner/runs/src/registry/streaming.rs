//! Where the batches of a run are to be had.

use penstock_types::run::RunState;

use super::{Runs, RunsError};
use crate::stream::StreamAddress;

impl Runs {
    /// Where the batches of a run with the consumer `stream` are to be had, while it is at work.
    pub async fn stream(&self, id: &str) -> Result<StreamAddress, RunsError> {
        let live = self.live(id).filter(|live| !live.has_ended());
        if let Some(address) = live.as_ref().and_then(|live| live.stream()) {
            return Ok(address.clone());
        }
        let stored = self.stored_document(id).await?;
        let is_stream = stored.document.pointer("/consumer/stream").is_some();
        let why = match live.map(|live| live.summary().state) {
            _ if !is_stream => "its consumer is not `stream`: nobody can take its batches",
            None => "the run is over: no batches are to be had any more",
            Some(RunState::Queued) => "the run is queued: ask again when it is running",
            Some(_) => "the run is about to start: ask again in a moment",
        };
        Err(RunsError::Conflict(why.to_owned()))
    }
}
