//! Tests that a stop interrupts guests at any point.

use std::sync::mpsc;
use std::time::Duration;

use penstock_engine::item::Item;
use penstock_engine::ports::{Items, StopFlag, ThreadOpFactory};
use penstock_wasm::StageSettings;
use serde_json::json;

use crate::support::{build, misbehaving, module, sample, settings};

#[test]
fn a_stop_interrupts_an_endless_loop_within_50_ms_without_failures() {
    let settings =
        StageSettings { deadline: Duration::from_secs(60), ..settings(json!({ "how": "log-loop" })) };
    let factory = module("misbehaving").stage(settings);
    let stop = StopFlag::default();
    let (done, ended) = mpsc::channel();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut op = factory.build(&stop).unwrap();
            done.send(op.apply(Item::Sample(sample("a", 0)), &stop)).unwrap();
        });
        while factory.logs().lines.is_empty() {
            std::thread::yield_now(); // the guest logs when it has entered its loop
        }
        stop.set();
        let output = ended.recv_timeout(Duration::from_millis(50)).expect("interrupted in time");
        assert!(matches!(output.items, Items::None));
        assert_eq!((output.failed.len(), output.dropped), (0, 0));
    });
}

#[test]
fn a_stop_interrupts_an_endless_init() {
    let settings =
        StageSettings { deadline: Duration::from_secs(60), ..settings(json!({ "how": "init-loop" })) };
    let stop = StopFlag::default();
    stop.set();
    let Err(fault) = module("misbehaving").stage(settings).build(&stop) else { panic!("init ended") };
    insta::assert_snapshot!(fault, @"the run was stopped while the module started");
}

#[test]
fn after_a_stop_no_guest_is_called() {
    let factory = misbehaving("panic");
    let mut op = build(&factory);
    let stop = StopFlag::default();
    stop.set();
    let output = op.apply(Item::Sample(sample("a", 0)), &stop);
    assert_eq!(output.failed.len(), 0);
}
