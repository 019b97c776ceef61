//! Runs that continue where an earlier one has stopped.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use penstock_types::plan::{LiveSetting, Plan};
use penstock_types::resume::{ChangedSetting, MAX_TOKEN_BYTES, Progress, StartPoint, Token, TokenFault};
use penstock_types::spec::Consumer;
use serde_json::Value;
use sha2::{Digest, Sha256};
use tokio::runtime::Handle;

use crate::files::FilesFolder;
use crate::output::{OutputError, read_within, write_error, write_whole};
use crate::prepare::Prepared;
use crate::run::Run;

/// Settings of a source that a resumed run may change.
const OF_THE_SOURCE: [&str; 2] = ["shard", "epochs"];

/// Settings of a source that select its keys and classes. States of versions without them know only the keys and classes themselves, which
/// are compared by rules.
const SELECTION: [&str; 3] = ["hidden", "links", "classes"];

/// Number of hexadecimal digits of a digest that a state keeps.
const DIGITS: usize = 16;

/// File or object that contains the state of a run, written at the end of each window.
#[derive(Debug)]
pub struct StateFile {
    place: Place,
    /// Number of windows that had ended at the last write.
    windows: Option<u128>,
    is_broken: bool,
}

#[derive(Debug)]
enum Place {
    File(PathBuf),
    /// The folder of the consumer `files`, beside its batches.
    Batches(FilesFolder, Handle),
}

impl Prepared {
    /// The state beside the batches of the consumer `files`; `None` for any other consumer.
    pub fn state_of_files(&self) -> Option<StateFile> {
        let Consumer::Files(files) = &self.plan.consumer else { return None };
        let folder = FilesFolder::new(self.store(files.store.as_str()), files);
        Some(StateFile::new(Place::Batches(folder, self.runtime.clone())))
    }
}

impl<M> Prepared<M> {
    /// Makes the runs of this pipeline continue from a state. With `force`, changes of the pipeline and of the data are ignored:
    /// positions then stand for other samples, or samples are processed differently. Called after the last change of the plan.
    pub fn resume(&mut self, mut token: Token, force: bool) -> Result<(), TokenFault> {
        let (recipe, traversal) = (recipe_of(&self.plan), &self.plan.source.traversal);
        if force {
            token = token.for_recipe(recipe, traversal);
        } else {
            self.check_state(&token)?;
            token.recipe = recipe;
        }
        let changed = std::mem::take(&mut token.settings);
        let mut start = StartPoint::new(token, traversal.shard)?;
        if force {
            start = start.for_other_data();
        }
        if let Some(own) = self.plan.source.spec.rules().count() {
            start.check_count(own)?;
            if let Some(count) = start.data().count.filter(|count| *count != own) {
                let what = format!("it has a source with {count} samples, and this one has {own}");
                return Err(TokenFault::Damaged(what));
            }
        }
        self.plan.source.traversal.first_epoch = start.token.first_epoch;
        self.take_over(changed);
        self.start = Some(Arc::new(start));
        Ok(())
    }

    /// Begins with settings that an earlier run has changed. What the document says now goes before.
    pub fn take_over(&mut self, changed: BTreeMap<String, ChangedSetting>) {
        for (pointer, ChangedSetting { from, to }) in changed {
            if let Some(setting) = LiveSetting::at(&self.plan, &pointer)
                && setting.value(&self.plan).is_none_or(|value| value == from)
                && setting.set(&mut self.plan, to)
            {
                self.changed.insert(pointer, ChangedSetting { from, to });
            }
        }
    }

    /// Starts with the pass behind the last one, if the state leaves nothing to do.
    pub fn begin_anew_if_over(&mut self) {
        let traversal = &mut self.plan.source.traversal;
        let Some((start, epochs)) = self.start.as_ref().zip(traversal.epochs) else { return };
        if start.epoch.saturating_sub(start.token.first_epoch) >= epochs.get() {
            traversal.first_epoch = start.epoch;
            self.start = None;
        }
    }

    /// Checks that a state belongs to this pipeline.
    pub fn check_state(&self, token: &Token) -> Result<(), TokenFault> {
        if !token.is_selected_by_older_rules() {
            return token.check_recipe(&recipe_of(&self.plan));
        }
        let mut plan = self.plan.clone();
        if let Some(source) = plan.recipe.get_mut("source") {
            remove_selection(source);
        }
        token.check_recipe(&recipe_of(&plan))
    }

    /// State of a run that has settled nothing.
    pub fn fresh_state(&self) -> Token {
        let mut state = self.start_point().after(&Progress::default());
        state.settings.clone_from(&self.changed);
        state
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

/// Removes the settings of [`SELECTION`] from a source, and from the sources of a mixture.
fn remove_selection(source: &mut Value) {
    for (_, settings) in source.as_object_mut().into_iter().flatten() {
        let Some(settings) = settings.as_object_mut() else { continue };
        SELECTION.iter().for_each(|setting| drop(settings.shift_remove(*setting)));
        let parts = settings.get_mut("sources").and_then(Value::as_object_mut).into_iter().flatten();
        parts.filter_map(|(_, part)| part.get_mut("source")).for_each(remove_selection);
    }
}

/// Digests of the parts of a pipeline that determine its samples, by their places in the document.
fn recipe_of(plan: &Plan) -> BTreeMap<String, String> {
    let mut recipe = BTreeMap::new();
    let mut add = |place: String, value: &Value| {
        let mut digest = format!("{:x}", Sha256::digest(value.to_string()));
        digest.truncate(DIGITS);
        recipe.insert(format!("`{place}`"), digest);
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
    fn new(place: Place) -> Self {
        Self { place, windows: None, is_broken: false }
    }

    /// A file with the state of an earlier run.
    pub fn of_earlier_run(path: PathBuf) -> Self {
        Self::new(Place::File(path))
    }

    /// A file that gets the state of a run. Fails if it cannot be written.
    pub fn at(path: PathBuf) -> Result<Self, OutputError> {
        let part = path.with_added_extension("part");
        match File::create(&part).and_then(|_| fs::remove_file(&part)) {
            Ok(()) => Ok(Self::new(Place::File(path))),
            Err(error) => Err(write_error(&path, error)),
        }
    }

    /// Reads a state that was written before, up to its maximum size.
    pub fn read(&self) -> Result<Vec<u8>, OutputError> {
        let most = MAX_TOKEN_BYTES + 1;
        match &self.place {
            Place::Batches(folder, runtime) => match runtime.block_on(folder.state(most)) {
                Ok(text) => Ok(text.into()),
                Err(error) => Err(OutputError::State(Arc::new(error))),
            },
            Place::File(path) => read_within(path, most)
                .map_err(|error| OutputError::Read { path: path.clone(), source: Arc::new(error) }),
        }
    }

    /// Writes the state at the first call, and if a window has ended since the last write. A failure is logged once.
    pub fn update(&mut self, run: &Run, elapsed: Duration) {
        let windows = elapsed.as_nanos() / run.interval().as_nanos().max(1);
        if self.windows.is_none_or(|before| windows > before) {
            self.windows = Some(windows);
            match run.state().map_err(OutputError::from).and_then(|state| self.write(state)) {
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

    /// Writes a state, which is JSON, atomically: complete or not at all.
    pub fn write(&self, state: String) -> Result<(), OutputError> {
        let text = state + "\n";
        match &self.place {
            Place::Batches(folder, runtime) => {
                let put = runtime.block_on(folder.put_state(text.into()));
                put.map_err(|error| OutputError::State(Arc::new(error)))
            }
            Place::File(path) => write_whole(path, text.as_bytes()),
        }
    }
}

#[cfg(test)]
mod tests;
