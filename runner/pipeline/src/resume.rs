//! Runs that continue where an earlier one has stopped.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use penstock_types::plan::Plan;
use penstock_types::resume::{Progress, StartPoint, Token, TokenFault};
use serde_json::Value;
use sha2::{Digest, Sha256};

use crate::output::OutputError;
use crate::prepare::Prepared;
use crate::run::Run;

/// Settings of a source that a resumed run may change.
const OF_THE_SOURCE: [&str; 2] = ["shard", "epochs"];

/// Number of hexadecimal digits of a digest that a state keeps.
const DIGITS: usize = 16;

/// File that contains the state of a run, written at the end of each window.
#[derive(Debug)]
pub struct StateFile {
    path: PathBuf,
    /// Number of windows that had ended at the last write.
    windows: Option<u128>,
    is_broken: bool,
}

impl<M> Prepared<M> {
    /// Makes the runs of this pipeline continue from a state. With `force`, changes of the pipeline and of the data are ignored:
    /// positions then stand for other samples, or samples are processed differently. Called after the last change of the plan.
    pub fn resume(&mut self, token: Token, force: bool) -> Result<(), TokenFault> {
        let (recipe, traversal) = (recipe_of(&self.plan), &self.plan.source.traversal);
        let token = match force {
            true => token.for_recipe(recipe, traversal),
            false => token.check_recipe(&recipe).map(|()| token)?,
        };
        let start = StartPoint::new(token, traversal.shard)?;
        self.plan.source.traversal.first_epoch = start.first_epoch();
        self.start = Some(Arc::new(start));
        Ok(())
    }

    /// Starts with the pass behind the last one, if the state leaves nothing to do.
    pub fn begin_anew_if_over(&mut self) {
        let traversal = &mut self.plan.source.traversal;
        let Some((start, epochs)) = self.start.as_ref().zip(traversal.epochs) else { return };
        if start.epoch().saturating_sub(start.first_epoch()) >= epochs.get() {
            traversal.first_epoch = start.epoch();
            self.start = None;
        }
    }

    /// Checks that a state belongs to this pipeline.
    pub fn check_state(&self, token: &Token) -> Result<(), TokenFault> {
        token.check_recipe(&recipe_of(&self.plan))
    }

    /// State of a run that has settled nothing.
    pub fn fresh_state(&self) -> Token {
        self.start_point().after(&Progress::default())
    }

    /// Place where a run begins.
    pub(crate) fn start_point(&self) -> Arc<StartPoint> {
        self.start.clone().unwrap_or_else(|| {
            let traversal = &self.plan.source.traversal;
            let fresh = Token::new(recipe_of(&self.plan), traversal);
            Arc::new(StartPoint::new(fresh, traversal.shard).expect("a plan's shard was checked"))
        })
    }
}

/// Digests of the parts of a pipeline that determine its samples, by their places in the document.
fn recipe_of(plan: &Plan) -> BTreeMap<String, String> {
    let mut recipe = BTreeMap::new();
    let mut add = |place: String, value: &Value| {
        let digest = Sha256::digest(value.to_string());
        let text: String = digest.iter().map(|byte| format!("{byte:02x}")).collect();
        recipe.insert(format!("`{place}`"), text[..DIGITS].to_owned());
    };
    for (name, value) in plan.recipe.as_object().into_iter().flatten() {
        match value {
            Value::Array(stages) if name == "stages" => {
                for (place, stage) in stages.iter().enumerate() {
                    let Some((kind, settings)) = stage.as_object().and_then(|stage| stage.iter().next())
                    else {
                        continue;
                    };
                    let (mut settings, place) = (settings.clone(), format!("/stages/{place}/{kind}"));
                    if let Some(settings) = settings.as_object_mut() {
                        // The samples are the same in any order.
                        settings.shift_remove("order");
                        if let Some(module) = settings.shift_remove("module") {
                            add(format!("{place}/module"), &module);
                        }
                    }
                    add(place, &settings);
                }
            }
            value => {
                let mut value = value.clone();
                for settings in value
                    .as_object_mut()
                    .into_iter()
                    .flatten()
                    .filter_map(|(_, settings)| settings.as_object_mut())
                {
                    OF_THE_SOURCE.iter().for_each(|setting| drop(settings.shift_remove(*setting)));
                }
                add(format!("/{name}"), &value);
            }
        }
    }
    recipe
}

impl StateFile {
    /// A file that gets the state of a run. Fails if it cannot be written.
    pub fn at(path: PathBuf) -> Result<Self, OutputError> {
        let file = Self { path, windows: None, is_broken: false };
        let part = file.part();
        match File::create(&part).and_then(|_| fs::remove_file(&part)) {
            Ok(()) => Ok(file),
            Err(error) => Err(file.unwritten(error)),
        }
    }

    /// Writes the state at the first call, and if a window has ended since the last write. A failure is logged once.
    pub fn update(&mut self, run: &Run, elapsed: Duration) {
        let windows = elapsed.as_nanos() / run.interval().as_nanos().max(1);
        if self.windows.is_none_or(|before| windows > before) {
            self.windows = Some(windows);
            match self.write(&run.state()) {
                Ok(()) => self.is_broken = false,
                Err(error) if !self.is_broken => {
                    self.is_broken = true;
                    tracing::error!(
                        error = penstock_types::text::with_causes(&error),
                        "the state of the run is not kept"
                    );
                }
                Err(_) => {}
            }
        }
    }

    /// Writes a state atomically: complete or not at all.
    pub fn write(&self, state: &Token) -> Result<(), OutputError> {
        let part = self.part();
        let write = || {
            let mut file = File::create(&part)?;
            file.write_all(state.to_json().as_bytes())?;
            file.write_all(b"\n")?;
            file.sync_all()?;
            fs::rename(&part, &self.path)
        };
        write().map_err(|error| {
            // The caller gets the error of the write, not that of the removal.
            fs::remove_file(&part).ok();
            self.unwritten(error)
        })
    }

    fn part(&self) -> PathBuf {
        let mut part = self.path.clone().into_os_string();
        part.push(".part");
        part.into()
    }

    fn unwritten(&self, error: io::Error) -> OutputError {
        OutputError::Write { path: self.path.clone(), source: Arc::new(error) }
    }
}

#[cfg(test)]
mod tests;
