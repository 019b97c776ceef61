//! Output folders of a training loop's runs.

use std::path::Path;

use penstock_pipeline::{OutputError, OutputFolder};
use penstock_types::traversal::TraversalSettings;
use serde_json::Value;

/// Output folder below `out` for a run of `document` with these settings: `epoch-3`, or `epoch-3/rank-1` with several ranks. The
/// second run over the same pass gets `epoch-3-2`, or `epoch-3/rank-1-2`.
pub(crate) fn folder_of(
    out: &Path,
    document: &Value,
    traversal: &TraversalSettings,
) -> Result<OutputFolder, OutputError> {
    let mut folder = out.join(format!("epoch-{}", traversal.first_epoch));
    let mut document = document.clone();
    if let Some(shard) = traversal.shard.filter(|shard| shard.world.get() > 1) {
        folder.push(format!("rank-{}", shard.rank));
        let source = document["source"].as_object_mut().and_then(|source| source.values_mut().next());
        if let Some(source) = source {
            // `penstock compare` reads the rank from this setting.
            source["shard"] = serde_json::json!(shard);
        }
    }
    let (first, mut number) = (folder.clone().into_os_string(), 1);
    loop {
        match OutputFolder::at(&folder, document.clone()) {
            Err(OutputError::Taken(_)) => number += 1,
            place => return place,
        }
        let mut name = first.clone();
        name.push(format!("-{number}"));
        folder = name.into();
    }
}
