#![no_main]

//! Decodes files of the format that `DECODER` names. The sandbox judges each file; the same code, compiled for this machine, then
//! tells libFuzzer by its coverage which files are new.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::sync::LazyLock;
use std::{env, panic};

use libfuzzer_sys::fuzz_target;
use penstock_fuzz::Decoder;
use penstock_guest::Item;
use penstock_guest::testing::{Instance, reset};

static DECODER: LazyLock<&Decoder> = LazyLock::new(|| {
    let name = env::var("DECODER").expect("DECODER is set");
    Decoder::find(&name).unwrap_or_else(|| panic!("no decoder `{name}`"))
});

thread_local! {
    static NATIVE: RefCell<BTreeMap<&'static str, Stage>> = RefCell::default();
    /// Set while native code runs, whose panics are no findings: it checks arithmetic that wraps in the module.
    static IS_NATIVE: Cell<bool> = const { Cell::new(false) };
}

fuzz_target!(init: start(), |input: &[u8]| {
    DECODER.decode(input);
    let file = DECODER.file(input);
    IS_NATIVE.set(true);
    let ended = panic::catch_unwind(|| {
        NATIVE.with_borrow_mut(|stages| {
            let params = DECODER.params_of(&file);
            let stage = stages.entry(params).or_insert_with(|| Stage::new(DECODER.module, params));
            stage.process(Item::new("a").with("bytes", file));
        });
    });
    if ended.is_err() {
        NATIVE.with_borrow_mut(BTreeMap::clear);
    }
    IS_NATIVE.set(false);
    reset();
});

/// An instance that was compiled for this machine.
enum Stage {
    Audio(Box<Instance<audio::Audio>>),
    Image(Box<Instance<image::Transform>>),
    Table(Box<Instance<table::Table>>),
}

impl Stage {
    fn new(module: &str, params: &str) -> Self {
        let is_valid = "the params are valid";
        match module {
            "audio" => Self::Audio(Box::new(Instance::new(params).expect(is_valid))),
            "image" => Self::Image(Box::new(Instance::new(params).expect(is_valid))),
            "table" => Self::Table(Box::new(Instance::new(params).expect(is_valid))),
            other => panic!("no native code of `{other}`"),
        }
    }

    fn process(&mut self, item: Item) {
        let items = vec![item];
        match self {
            Self::Audio(stage) => stage.process(items),
            Self::Image(stage) => stage.process(items),
            Self::Table(stage) => stage.process(items),
        };
    }
}

fn start() {
    let aborts = panic::take_hook();
    panic::set_hook(Box::new(move |info| {
        if !IS_NATIVE.get() {
            aborts(info);
        }
    }));
    // Compiling takes seconds, which would count as those of the first file.
    for length in 0..DECODER.params.len() {
        DECODER.decode(&vec![0; 64 * DECODER.params.len() + length]);
    }
}
