//! Something to run for somebody who has nothing yet.

use penstock_server::{Runs, RunsError};
use schemars::JsonSchema;
use serde::Serialize;
use serde_json::Value;

/// A pipeline that runs on this server as it is.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub(crate) struct SampleOffer {
    /// Its name.
    pub(crate) name: String,
    /// What it shows, in a sentence.
    pub(crate) about: &'static str,
    /// The document, to be submitted as it is.
    pub(crate) document: Value,
}

/// A pipeline, what it shows, and the store and the module that it needs.
struct Sample {
    document: &'static str,
    about: &'static str,
    needs: Option<(&'static str, &'static str)>,
}

/// The best first. The last needs nothing.
const SAMPLES: [Sample; 2] = [
    Sample {
        document: include_str!("../../examples/pipelines/photos.json"),
        about: "Photos are read in batches, decoded and resized in the sandbox on 12 threads, and handed to a training step of 30 ms.",
        needs: Some(("photos", "decode-resize")),
    },
    Sample {
        document: include_str!("../../examples/pipelines/tour.json"),
        about: "Four stages that only wait, each for another time, so that queues fill and run empty; it needs no data.",
        needs: None,
    },
];

/// The best sample that can run here.
pub(crate) async fn offer(runs: &Runs) -> Result<SampleOffer, RunsError> {
    let stores = runs.stores();
    for Sample { document, about, needs } in SAMPLES {
        let is_ready = match needs {
            Some((store, module)) => {
                stores.iter().any(|found| found.name == store) && runs.has_module(module).await?
            }
            None => true,
        };
        if is_ready {
            let document: Value = serde_json::from_str(document).expect("the examples are JSON");
            let name = document["name"].as_str().unwrap_or("sample").to_owned();
            return Ok(SampleOffer { name, about, document });
        }
    }
    unreachable!("the last sample needs nothing")
}
