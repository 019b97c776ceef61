//! Comparisons of storage benchmarks.

use penstock_tests::{Call, Folder, photos, repository};
use serde_json::{Value, json};

use crate::timed;

#[test]
fn two_reports_are_compared_with_confidence_intervals() {
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
        told.starts_with("Of 1 loads, 0 are faster and 1 are slower, each with 95 % confidence; the largest change is `sync 4`, by -"),
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
        assert!(wrong.stderr.contains("is not a report of a storage benchmark"), "{}", wrong.stderr);
    });
}

#[test]
fn stages_have_a_separate_time_and_their_cost_is_measured() {
    timed(|| {
        let document = repository().join("examples/benchmarks/photos.json");
        let call = Call::new(&["bench", "storage"]).argument(&document).store("photos", photos());
        let call =
            ["/stages/1/aggregate/size=8", "/actions/4/whole_set/batch_size=8", "/accelerator/batch_size=8"]
                .iter()
                .fold(call, |call, setting| call.set(setting));
        let call =
            call.set("/actions/4/whole_set/repeats=1").set("/ceiling=false").set("/accelerator/step_ms=1");
        let told = call.json().argument("-q").finish().exits(0).stdout;
        let told: Value = serde_json::from_str(&told).unwrap();
        let first = &told["actions"][4]["whole_set"][0];
        let part = |name: &str| {
            let found = first["parts"].as_array().unwrap().iter().find(|part| part["name"] == name);
            found.unwrap_or_else(|| panic!("no {name}")).clone()
        };
        let (decoding, reading) = (part("stage:preprocess"), part("body"));
        assert_eq!(decoding["time"]["n"], first["items"]);
        assert!(decoding["time"]["mean_s"].as_f64() > reading["time"]["mean_s"].as_f64());
        assert!(decoding["share"].as_f64().unwrap() > 0.5, "{decoding}");
        part("stage:collate");
        let without = told["counterfactuals"].as_array().unwrap();
        let names: Vec<&str> = without.iter().map(|one| one["without"].as_str().unwrap()).collect();
        assert_eq!(names, ["nothing", "storage", "stage:preprocess", "stage:collate", "stages", "consumer"]);
        let gain = |place: usize| without[place]["gain"].as_f64().unwrap();
        assert!(gain(2) > 0.3 && gain(2) > gain(1), "{without:?}");
        let calls: Vec<&str> = told["actions"]
            .as_array()
            .unwrap()
            .iter()
            .filter_map(|action| action["calls"]["action"].as_str())
            .collect();
        assert_eq!(calls, ["index", "single", "random", "random_to_device"]);
        assert!(told["accelerators"]["trials"].as_array().is_some_and(|trials| !trials.is_empty()));
    });
}
