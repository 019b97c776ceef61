//! Helpers that open registries in temporary folders and submit runs.

use std::path::{Path, PathBuf};
use std::time::Duration;

use bytes::Bytes;
use penstock_pipeline::Stores;
use penstock_server::{Budget, Event, Runs, RunsError, RunsSettings, SerializedEvent, Submission, Submitted};
use penstock_types::config::RunBounds;
use penstock_types::fault::SpecFault;
use penstock_types::run::{RunDetail, RunId};
use serde_json::Value;

/// Timeout for any expected event, long enough for a busy machine.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// Reads the bytes of a guest module of this workspace.
pub(crate) fn guest(name: &str) -> Vec<u8> {
    // The test binary is `TARGET/PROFILE/deps/registry-0123`, so its path gives the target folder.
    let program = std::env::current_exe().unwrap();
    let folder = program.ancestors().nth(3).unwrap().join("wasm32-unknown-unknown/guest");
    let path: PathBuf = folder.join(format!("{}.wasm", name.replace('-', "_")));
    std::fs::read(&path)
        .unwrap_or_else(|error| panic!("{}: {error}; run `make guests` first", path.display()))
}

/// Short names for the kinds of errors.
pub(crate) trait Kind {
    fn kind(&self) -> &'static str;
}

impl Kind for RunsError {
    fn kind(&self) -> &'static str {
        match self {
            Self::Invalid(_) => "invalid-pipeline",
            Self::NotFound { .. } => "not-found",
            Self::Refused(_) => "refused",
            Self::TooLarge { .. } => "too-large",
            Self::Conflict(_) => "conflict",
            Self::NotOwner { .. } => "not-owner",
            Self::Differs(_) => "differs",
            Self::KeyReused => "key-reused",
            Self::QueueFull { .. } => "queue-full",
            Self::Quota(_) => "quota",
            Self::DiskFull { .. } => "disk-full",
            Self::Busy(_) => "busy",
            Self::Storage(..) => "storage",
            Self::History(_) | Self::File { .. } => "history",
            Self::Closed => "closed",
        }
    }
}

/// Opens a registry with a budget of four threads and 4 GiB for all runs.
pub(crate) fn open(data_dir: &Path, stores: Stores) -> Runs {
    try_open(data_dir, stores).unwrap()
}

pub(crate) fn try_open(data_dir: &Path, stores: Stores) -> Result<Runs, penstock_server::OpenError> {
    Runs::open(&tokio::runtime::Handle::current(), settings(data_dir, stores))
}

/// Opens a registry like [`open`], with changed settings.
pub(crate) fn open_with(data_dir: &Path, stores: Stores, change: impl FnOnce(&mut RunsSettings)) -> Runs {
    let mut settings = settings(data_dir, stores);
    change(&mut settings);
    Runs::open(&tokio::runtime::Handle::current(), settings).unwrap()
}

fn settings(data_dir: &Path, stores: Stores) -> RunsSettings {
    RunsSettings {
        budget: Budget { threads: 4, memory_mib: 4096, instances: 16 },
        bounds: RunBounds { queued: 4.try_into().unwrap(), ..RunBounds::default() },
        ..RunsSettings::new(data_dir, stores)
    }
}

/// Creates stores with a single store `in`, which reads a folder.
pub(crate) fn stores(folder: &Path) -> Stores {
    let mut stores = Stores::default();
    stores.add_folder("in", folder).unwrap();
    stores
}

pub(crate) fn submission(document: &Value) -> Submission {
    Submission { document: Bytes::from(document.to_string()), ..Submission::default() }
}

pub(crate) async fn submit(runs: &Runs, document: &Value) -> RunDetail {
    let Submitted { run, is_new } = runs.submit(submission(document)).await.unwrap();
    assert!(is_new);
    run
}

pub(crate) async fn refusal(runs: &Runs, document: &Value) -> Vec<SpecFault> {
    match runs.submit(submission(document)).await {
        Err(RunsError::Invalid(faults)) => faults,
        other => panic!("not refused: {other:?}"),
    }
}

/// Event that a reader of the feed got.
pub(crate) fn event(serialized: &SerializedEvent) -> Event {
    let data = &serialized.data;
    match serialized.name {
        "sample" => Event::Sample(serde_json::from_str(data).unwrap()),
        "state" => Event::State(serde_json::from_str(data).unwrap()),
        "runs" => Event::Runs(serde_json::from_str(data).unwrap()),
        "log" => Event::Log(serde_json::from_str(data).unwrap()),
        "gap" => Event::Gap(serde_json::from_str(data).unwrap()),
        "end" => Event::End(serde_json::from_str(data).unwrap()),
        other => panic!("{other}"),
    }
}

/// Waits until the run has ended and is stored.
pub(crate) async fn end_of(runs: &Runs, id: &RunId) -> RunDetail {
    until(runs, id, |run| run.summary.state.is_over()).await
}

pub(crate) async fn until(runs: &Runs, id: &RunId, is_it: impl Fn(&RunDetail) -> bool) -> RunDetail {
    let wait = async {
        loop {
            let detail = runs.detail(id).await.unwrap();
            if is_it(&detail) {
                return detail;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(PATIENCE, wait).await.expect("the run reaches the state in time")
}

/// Uploads a module; returns its version.
pub(crate) async fn upload(runs: &Runs, bytes: &[u8]) -> penstock_server::ModuleUpload {
    let mut draft = runs.begin_upload().await.unwrap();
    for piece in bytes.chunks(64 << 10) {
        draft.write(piece).await.unwrap();
    }
    draft.finish(None).await.unwrap()
}
