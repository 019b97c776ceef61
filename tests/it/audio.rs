//! The audio pipeline: clips become spectrograms of one shape, and damaged files are reported without affecting others.

use penstock_engine::item::Dtype;
use penstock_tests::{Call, Folder, lines, repository, shown};
use penstock_types::run::FailureRecord;

use crate::delivered::{Example, batches, stacked};

#[test]
fn clips_become_spectrograms_of_one_shape() {
    let folder = Folder::new();
    folder.sounds(20);
    let (snapshot, items) = Example::new("audio.json", &[]).store("audio", folder.path()).run();
    assert_eq!(snapshot.ledger.total.delivered, 20);
    let batches = batches(items);
    assert_eq!(batches.iter().map(|batch| batch.keys.len()).collect::<Vec<_>>(), [16, 4]);
    for batch in &batches {
        let (shape, values) = stacked(batch, "mel", Dtype::Float32, f32::from_le_bytes);
        // Four seconds: 64,000 samples, one frame for every 160 and one more at the end.
        assert_eq!(shape, [batch.keys.len() as u32, 401, 80]);
        assert!(values.iter().all(|value| (-10.001..3.0).contains(value)));
        // No clip is silent, and all are shorter than four seconds.
        for clip in values.chunks(401 * 80) {
            assert!(clip.iter().any(|&value| value > -1.0));
            assert!(clip[400 * 80..].iter().all(|&value| value < -9.99));
        }
        assert_eq!(batch.fields.len(), 1, "the file itself is removed");
    }
}

#[test]
fn contradictory_params_end_the_run_without_a_failed_clip() {
    let folder = Folder::new();
    folder.sounds(3);
    let call = Call::run(&repository().join("examples/pipelines/audio.json")).store("audio", folder.path());
    let call = call.set("/stages/1/wasm/params/n_fft=401").json();
    let finished = call.finish().exits(1);
    let total = finished.snapshot().ledger.total;
    assert_eq!((total.delivered, total.skipped), (0, 0));
    insta::assert_snapshot!(finished.stderr, @"error: the run failed: stage `2:audio` cannot start: `init` refused: `n_fft`: 401 is 1 x 401; use a length whose only prime factors are 2, 3, 5 and 7");
}

#[test]
fn damaged_clips_are_named_with_key_and_reason_and_the_others_are_delivered() {
    let folder = Folder::new();
    folder.sounds(10);
    let read = |name: &str| std::fs::read(folder.join(name)).unwrap();
    let whole = read("000/000002.wav");
    folder.write("000/000002.wav", &whole[..whole.len() / 2]);
    let mut other_format = read("000/000004.wav");
    other_format[..4].copy_from_slice(b"MThd");
    folder.write("000/000004.wav", other_format);
    let mut no_channels = read("000/000006.wav");
    no_channels[22] = 0;
    folder.write("000/000006.wav", no_channels);
    folder.write("000/000008.wav", b"");

    let out = Folder::new();
    let call = Call::run(&repository().join("examples/pipelines/audio.json")).store("audio", folder.path());
    let finished = call.out(out.path()).finish().exits(0);
    let snapshot = finished.snapshot();
    // A clip that ends before its stated length is read to its end, and counted.
    let total = snapshot.ledger.total;
    assert_eq!((total.delivered, total.skipped), (7, 3));
    assert_eq!(snapshot.counters["2:audio"]["read_to_end"], 1.0);
    let mut errors: Vec<FailureRecord> = lines(&out.join("errors.ndjson"));
    errors.sort_by_key(|error| error.index);
    shown().bind(|| insta::assert_json_snapshot!(errors));
}
