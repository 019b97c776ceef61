//! Two modules that take turns in one memory slot must not see each other's data.

use std::time::Duration;

use bytes::Bytes;
use penstock_engine::item::{Item, Origin, Sample, Value};
use penstock_engine::ports::{StopFlag, ThreadOp, ThreadOpFactory};
use penstock_fuzz::{Encoding, typed, with_manifest};
use penstock_wasm::{Module, Sandbox, SandboxSettings, StageSettings};
use serde_json::json;

/// Pattern with which the first tenant fills its memory.
const CANARY: u64 = 0x7f3a_c4a7_11e5_d00d;
const TURNS: u64 = 20;

/// A module whose `process` runs this code and then keeps its sample.
fn tenant(sandbox: &Sandbox, process: &str) -> Module {
    let text = format!(
        r#"(module
            (memory (export "memory") 64 64)
            (global $free (mut i32) (i32.const 0x1000))
            (func (export "cabi_realloc") (param i32 i32) (param i32) (param $size i32) (result i32)
                (global.set $free (i32.and (i32.add (global.get $free) (i32.const 7)) (i32.const -8)))
                (global.get $free)
                (global.set $free (i32.add (global.get $free) (local.get $size))))
            (func (export "penstock:stage/transform@0.1.0#init") (param i32 i32) (result i32) (i32.const 0))
            (func (export "penstock:stage/transform@0.1.0#process") (param $items i32) (param i32) (result i32)
                (local $at i32)
                {process}
                (i32.store (i32.const 0x100) (i32.const 0x110))
                (i32.store (i32.const 0x104) (i32.const 1))
                (i32.store8 (i32.const 0x110) (i32.const 0))
                (memory.copy (i32.const 0x118) (local.get $items) (i32.const 24))
                (i32.const 0x100))
            (func (export "penstock:stage/transform@0.1.0#finish") (result i32) (i32.const 0)))"#
    );
    let module = with_manifest(typed(&text, Encoding::UTF8), br#"{"name":"tenant","version":"1"}"#);
    sandbox.load(&module).expect("the module is within every limit")
}

/// Code that runs `body` for every eight bytes of the memory above the samples.
fn over_memory(body: &str) -> String {
    format!(
        "(local.set $at (i32.const 0x8000))
        (loop $next
            {body}
            (local.set $at (i32.add (local.get $at) (i32.const 8)))
            (br_if $next (i32.lt_u (local.get $at) (i32.const 0x400000))))"
    )
}

fn op(module: &Module) -> Box<dyn ThreadOp> {
    let settings = StageSettings {
        name: "tenant".into(),
        params: json!({}),
        deadline: Duration::from_secs(10),
        memory_bytes: 16 << 20,
        output_bytes: 128 << 20,
        held_bytes: 16 << 20,
        assets: [].into(),
        document_seed: 7,
    };
    module.stage(settings).build(&StopFlag::default()).expect("the guest starts")
}

fn sample(index: u64) -> Sample {
    let mut sample = Sample::new("a", Origin { index, ..Origin::default() });
    // The secret enters through the memory of the module that receives it.
    sample.set("secret", Value::Blob(Bytes::from(CANARY.to_le_bytes().repeat(64))));
    sample
}

fn is_kept(op: &mut dyn ThreadOp, sample: Sample) -> bool {
    op.apply(Item::Sample(sample), &StopFlag::default()).failed.is_empty()
}

#[test]
fn a_module_never_sees_memory_of_another() {
    // The sandbox has room for one instance, so the second tenant gets the slot of the first.
    let sandbox =
        Sandbox::new(SandboxSettings { instances: 1, ..SandboxSettings::default() }).expect("it starts");
    let fill = over_memory(&format!("(i64.store (local.get $at) (i64.const {CANARY}))"));
    let look = over_memory(&format!(
        "(if (i64.eq (i64.load (local.get $at)) (i64.const {CANARY})) (then unreachable))"
    ));
    let leaves = tenant(&sandbox, &fill);
    let dies = tenant(&sandbox, &format!("{fill} unreachable"));
    let looks = tenant(&sandbox, &look);
    let sees_its_own = tenant(&sandbox, &format!("{fill} {look}"));
    assert!(!is_kept(&mut *op(&sees_its_own), sample(0)), "the search finds the pattern in its own memory");
    for turn in 0..TURNS {
        assert!(is_kept(&mut *op(&leaves), sample(turn)));
        assert!(is_kept(&mut *op(&looks), Sample::new("b", Origin::default())), "turn {turn}");
        assert!(!is_kept(&mut *op(&dies), sample(turn)));
        assert!(is_kept(&mut *op(&looks), Sample::new("b", Origin::default())), "turn {turn}, after a trap");
    }
}
