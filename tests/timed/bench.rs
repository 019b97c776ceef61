//! Storage benchmarks against each other.

use penstock_tests::{Call, Folder};
use serde_json::{Value, json};

use crate::timed;

#[test]
fn two_reports_are_compared_with_what_is_sure() {
    timed(|| {
        let folder = Folder::new();
        let document = |latency: f64| {
            json!({
                "source": { "memory": { "count": 300, "bytes": 1000, "latency_ms": latency } }, "ceiling": false,
                "actions": [{ "whole_set": { "modes": ["sync"], "workers": [4], "batch_size": 10, "repeats": 4 } }]
            })
        };
        for (name, latency) in [("before", 4.0), ("after", 8.0)] {
            let file = folder.write(&format!("{name}.json"), document(latency).to_string());
            Call::new(&["bench", "storage"])
                .argument(&file)
                .out(&folder.join(name))
                .argument("-q")
                .finish()
                .exits(0);
        }
        let compare = |one: &str, other: &str| {
            Call::new(&["bench", "compare"]).argument(folder.join(one)).argument(folder.join(other))
        };
        let told = compare("before", "after").finish().exits(0).stdout;
        assert!(
        told.starts_with("Of 1 loads 0 are surely faster and 1 surely slower, each with 95 % confidence: `sync 4` most, by -"),
        "{told}"
    );
        let told = compare("before", "after").json().finish().exits(0).stdout;
        let told: Value = serde_json::from_str(&told).unwrap();
        let [low, high] = [0, 1].map(|end| told["cells"][0]["rate"]["between"][end].as_f64().unwrap());
        assert!(-0.6 < low && low < -0.4 && -0.6 < high && high < -0.3, "{told}");
        compare("before", "after").argument("--fail-if-slower=10").finish().exits(1);
        compare("before", "after").argument("--fail-if-slower=90").finish().exits(0);
        compare("after", "before").argument("--fail-if-slower=10").finish().exits(0);
        let wrong = compare("before", "before.json").finish().exits(2);
        assert!(wrong.stderr.contains("is no report of a storage benchmark"), "{}", wrong.stderr);
    });
}
