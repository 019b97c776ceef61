//! Effects that other programs on the machine have on a run.

use std::hint::black_box;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, available_parallelism};

use penstock_tests::{Call, Folder, lines, photos, repository};
use penstock_types::run::Window;

#[test]
fn a_noisy_neighbour_is_reported_and_every_window_has_machine_figures() {
    let folder = Folder::new();
    let out = folder.join("out");
    let document = repository().join("examples/pipelines/photos.json");
    let call = Call::run(&document).store("photos", photos());
    let call = call.set("/source/list/epochs=null").set("/consumer={\"discard\":{}}").threads(2);
    let over = AtomicBool::new(false);
    let finished = thread::scope(|scope| {
        for _ in 0..3 * available_parallelism().unwrap().get() {
            scope.spawn(|| {
                while !over.load(Ordering::Relaxed) {
                    black_box(0);
                }
            });
        }
        let finished = call.argument("--for=3s").out(&out).finish();
        over.store(true, Ordering::Relaxed);
        finished.exits(0)
    });
    let snapshot = finished.snapshot();
    let evidence = snapshot.verdict.unwrap().evidence.join("\n");
    assert!(evidence.contains("Computing ops had a core for "), "{evidence}");
    assert!(evidence.contains("other processes used "), "{evidence}");
    let machine = snapshot.machine.unwrap();
    assert!(machine.process_cores > 0.0 && machine.others_cores().unwrap() > 0.3, "{machine:?}");
    let windows: Vec<Window> = lines(&out.join("windows.ndjson"));
    let told =
        windows.iter().filter(|window| window.machine.is_some_and(|machine| machine.process_rss_bytes > 0));
    assert_eq!(told.count(), windows.len());
}
