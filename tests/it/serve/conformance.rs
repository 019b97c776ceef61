//! Conformance of the API to its OpenAPI description, checked by schemathesis.

use std::process::Command;

use penstock_tests::{Folder, module, photos, target};
use serde_json::json;

use super::{quick_photos, with_photos};

#[test]
fn the_api_answers_as_its_description_says_and_never_with_a_defect() {
    let program = target().join("schemathesis/bin/schemathesis");
    assert!(program.is_file(), "`{}` is missing: run `make schemathesis` first", program.display());
    assert!(module("image").is_file() && photos().is_dir());
    let served = with_photos();
    let run = served.submit(&quick_photos());
    served.over(&run);
    served.post("/runs?validate_only=true", &json!({})).is(422);
    let description = format!("http://{}/api/openapi.json", served.address());
    let mut schemathesis = Command::new(program);
    schemathesis.arg("run").arg(&description).args([
        "--checks=not_a_server_error,status_code_conformance,content_type_conformance,response_schema_conformance",
        // A stream of events does not end.
        "--exclude-operation-id=events",
        // Schemathesis cannot generate modules; the tests in `api` and `attack` upload them.
        "--exclude-operation-id=upload_module",
        "--exclude-operation-id=inspect_module",
        // Each call measures for seconds; the tests in `profile` make some.
        "--exclude-operation-id=profile_run",
        "--max-examples=15",
        "--phases=examples,coverage,fuzzing",
        "--seed=1",
        // A search for settings makes hundreds of predictions, in this build on a machine that tests use as well.
        "--request-timeout=60",
        "--continue-on-failure",
        "--no-color",
    ]);
    // Schemathesis writes files into its working directory.
    let folder = Folder::new();
    let output = schemathesis.current_dir(folder.path()).output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{said}\n{}", String::from_utf8_lossy(&output.stderr));
    served.get("/system").is(200);
}
