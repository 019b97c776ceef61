//! The three pipelines `examples/pipelines/toy-*`: the two lines that they print, the size of their figures, and their answer to
//! whether data loading is the bottleneck.

use penstock_tests::{Call, repository, without_figures};
use penstock_types::run::RunSnapshot;

use crate::timed;

/// Number of items, fewer than the 100 of the documents: means do not depend on it.
const ITEMS: u64 = 20;

/// Output of one of the pipelines, and the two mean waits of its sink in milliseconds: for data, and for the consumer.
fn toy(name: &str) -> (String, f64, f64) {
    let document = repository().join(format!("examples/pipelines/{name}.json"));
    let folder = penstock_tests::Folder::new();
    let call = Call::run(&document).set(&format!("/source/range/count={ITEMS}")).out(&folder.join("out"));
    let finished = call.finish().exits(0);
    let snapshot: RunSnapshot = finished.checked_snapshot();
    assert_eq!(snapshot.ledger.total.delivered, ITEMS);
    let [.., before, sink] = snapshot.queues.as_slice() else { panic!("a sink has a queue on each side") };
    let ms = |seconds: Option<f64>| seconds.expect("items went through") * 1e3;
    let waits = (ms(before.figures.ave_get_time_s), ms(sink.figures.ave_put_time_s));
    let (_, lines) =
        finished.stdout.split_once("The ledger balances.\n\n").expect("the report ends with the lines");
    (lines.to_owned(), waits.0, waits.1)
}

/// Mean task time of the single stage, in milliseconds, read from its line.
fn task_time(lines: &str) -> f64 {
    let (_, after) = lines.split_once("Average task time: ").expect("a stage's line tells it");
    let (number, _) = after.split_once(" [ms]").expect("it is told in milliseconds");
    number.parse().expect("it is a number")
}

#[test]
fn without_a_bottleneck_both_waits_are_negligible() {
    timed(|| {
        let (lines, upstream, downstream) = toy("toy-baseline");
        assert!(upstream < 10.0 && downstream < 10.0, "{upstream} {downstream}");
        let (sink, answer) = lines.split_once('\n').unwrap();
        without_figures()
            .bind(|| insta::assert_snapshot!("without_a_bottleneck_both_waits_are_negligible", sink));
        // On a busy machine the sink may wait a little; the loader is never the limit for long.
        assert!(answer.starts_with("Is data loading the bottleneck? "), "{answer}");
        if upstream.max(downstream) < 0.5 {
            assert_eq!(
                answer.trim_end(),
                "Is data loading the bottleneck? no: no part waits long enough to matter."
            );
        }
    });
}

#[test]
fn a_slow_training_loop_is_seen_downstream() {
    timed(|| {
        let (lines, upstream, downstream) = toy("toy-slow-training");
        assert!(upstream < downstream, "{upstream} {downstream}");
        // The first items find room in the queue; every later item waits for a step of 100 ms.
        assert!(upstream < 20.0 && (70.0..150.0).contains(&downstream), "{upstream} {downstream}");
        without_figures().bind(|| insta::assert_snapshot!("a_slow_training_loop_is_seen_downstream", lines));
    });
}

#[test]
fn slow_loading_is_seen_upstream() {
    timed(|| {
        let (lines, upstream, downstream) = toy("toy-slow-loading");
        assert!(upstream > downstream, "{upstream} {downstream}");
        assert!(downstream < 20.0 && (90.0..150.0).contains(&upstream), "{upstream} {downstream}");
        assert!((100.0..150.0).contains(&task_time(&lines)), "{lines}");
        without_figures().bind(|| insta::assert_snapshot!("slow_loading_is_seen_upstream", lines));
    });
}
