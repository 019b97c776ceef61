//! Profiles of runs of a server.

use penstock_tests::Serving;
use serde_json::json;

#[test]
fn the_stages_of_a_run_are_measured_alone_and_predictions_use_what_was_found() {
    let served = Serving::default().start();
    let document = json!({
        "threads": 1,
        "source": { "range": { "count": 2000 } },
        "stages": [{ "sleep": { "mean_ms": 1, "on": "async" } }, { "aggregate": { "size": 4 } }, { "collate": {} }],
    });
    let id = served.submit(&document);
    served.until(&id, |run| run["state"] == "completed");
    let profile = format!("/runs/{id}/profile");
    let none = served.get(&profile).is(404).text();
    assert!(none.contains("there is no profile of the run"), "{none}");
    let predicted = || served.post(&format!("/runs/{id}/predict"), &json!({})).is(200).text();
    assert!(predicted().contains("a core is as fast while others are in use"));
    let measured = served.post(&profile, &json!({})).is(200).json();
    let stages = measured["stages"].as_array().unwrap();
    let ids: Vec<_> = stages.iter().map(|stage| stage["id"].as_str().unwrap()).collect();
    assert_eq!(ids, ["1:sleep", "3:collate"]);
    // One waiting op at a time, then two: each doubling doubles the rate of a sleep.
    assert!(stages[0]["points"].as_array().unwrap().len() > 2, "{measured}");
    assert_eq!(stages[1]["inputs"]["samples"], json!(4 * stages[1]["inputs"]["items"].as_u64().unwrap()));
    assert_eq!(served.get(&profile).is(200).json(), measured);
    assert!(predicted().contains("as the profile has measured"));
    served.post("/runs/nope/profile", &json!({})).is(404);
}
