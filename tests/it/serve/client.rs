//! The commands that talk to a server.

use std::fs;
use std::process::Command;

use penstock_tests::{Call, Folder, Served, Serving, module, photos, repository};
use serde_json::json;

use super::{quick_photos, sleepy};

fn call(served: &Served, arguments: &[&str]) -> Call {
    Call::new(arguments).argument("--server").argument(format!("http://{}", served.address()))
}

#[test]
fn a_module_is_pushed_a_pipeline_submitted_and_both_are_listed() {
    let served = Serving::default().store("photos", photos()).start();
    let path = module("decode-resize");
    let pushed = call(&served, &["push"]).argument(&path).argument("--alias=stable").finish().exits(0).stdout;
    assert!(pushed.starts_with("decode-resize@1 sha256:"), "{pushed}");
    assert!(pushed.contains("decode-resize@stable means it"), "{pushed}");
    let again = call(&served, &["push"]).argument(&path).finish().exits(0).stdout;
    assert!(again.contains("the same bytes were there already"), "{again}");

    let folder = Folder::new();
    let mut document = quick_photos();
    document["stages"][3]["wasm"]["module"] = json!("decode-resize@stable");
    let file = folder.document(&document);
    let checked = call(&served, &["submit", "--check"]).argument(&file).finish().exits(0).stdout;
    assert!(checked.starts_with("it can run: 7 stages, 2 threads"), "{checked}");
    let followed = call(&served, &["submit", "--follow"]).argument(&file).finish().exits(0).stdout;
    assert!(
        followed.contains("\nphotos completed after") && followed.contains("100 samples delivered"),
        "{followed}"
    );

    let runs = call(&served, &["runs"]).finish().exits(0).stdout;
    assert!(runs.lines().count() == 2 && runs.contains("completed"), "{runs}");
    let modules = call(&served, &["modules"]).finish().exits(0).stdout;
    assert!(modules.contains("decode-resize") && modules.contains("stable=1"), "{modules}");
}

#[test]
fn a_run_is_stopped_and_its_follower_learns_it() {
    let served = Serving::default().start();
    let folder = Folder::new();
    let file = folder.document(&sleepy(1_000_000, 1.0));
    let submitted = call(&served, &["submit"]).argument(&file).finish().exits(0).stdout;
    let id = submitted.lines().next().unwrap();
    let stopped = call(&served, &["stop", id]).finish().exits(0).stdout;
    assert_eq!(stopped, format!("{id} is stopped\n"));
    let file = folder.document(&sleepy(1_000_000, 1.0));
    let follower =
        call(&served, &["submit", "--follow", "--for=1s"]).argument(&file).finish().exits(0).stdout;
    assert!(follower.contains("\nsleepy completed"), "{follower}");
}

#[test]
fn what_a_server_refuses_is_told_with_all_its_faults() {
    let served = Serving::default().variable("PENSTOCK_TOKEN", "0123456789abcdef").start();
    let folder = Folder::new();
    let file = folder.document(
        &json!({ "source": { "range": { "count": -1 } }, "stages": [{ "sleep": {} }, { "slep": {} }] }),
    );
    let refused = call(&served, &["submit"]).argument(&file).finish().exits(2).stderr;
    assert!(refused.contains("This server wants a token"), "{refused}");
    let token = folder.write("token", "0123456789abcdef");
    let refused = call(&served, &["submit"])
        .argument(&file)
        .argument("--token-file")
        .argument(&token)
        .finish()
        .exits(2);
    insta::assert_snapshot!(refused.stderr);
    let nobody = Call::new(&["runs", "--server=http://127.0.0.1:9"]).finish().exits(1).stderr;
    assert!(nobody.contains("no server answers at http://127.0.0.1:9"), "{nobody}");
    let address = Call::new(&["runs", "--server=http://me:CanaryPassword@host"]).finish().exits(2).stderr;
    assert!(!address.contains("CanaryPassword"), "{address}");
}

/// The block of the README that begins so, as people copy it.
fn readme_block(first_line: &str) -> String {
    let readme = fs::read_to_string(repository().join("README.md")).unwrap();
    let blocks = readme.split("```sh\n").skip(1).map(|rest| rest.split("```").next().unwrap());
    let mut found = blocks.filter(|block| block.starts_with(first_line));
    let block =
        found.next().unwrap_or_else(|| panic!("the README has no block that begins with `{first_line}`"));
    block.to_owned()
}

#[test]
fn the_journey_of_the_readme_works_by_curl_alone() {
    let served = Serving::default().store("photos", photos()).start();
    let folder = Folder::new();
    fs::copy(module("decode-resize"), folder.join("decode_resize.wasm")).unwrap();
    fs::copy(repository().join("examples/pipelines/photos.json"), folder.join("photos.json")).unwrap();
    let script = readme_block("server=http://127.0.0.1:7700\n");
    let script = script.replace("http://127.0.0.1:7700", &format!("http://{}", served.address()));
    let output = Command::new("bash")
        // Not with `pipefail`: the look at live events ends by its time.
        .args(["-eu", "-c", &script])
        .current_dir(folder.path())
        .output()
        .unwrap();
    let (said, wrong) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{said}\n{wrong}");
    assert!(said.contains("event: sample") && said.contains("\"balanced\":true"), "{said}");
}
