//! A guest that misbehaves in the way named by its params: `{"how": "loop"}`. With the suffix `-on-bad` it misbehaves only for
//! samples whose key contains `bad`, so that a test can check that the next sample succeeds.
#![expect(unsafe_code, reason = "the generated bindings and the manifest's section need it")]
#![expect(clippy::unwrap_used, reason = "panics are what this guest is for")]

use std::sync::Mutex;

mod bindings {
    wit_bindgen::generate!({ path: "../../../guest-sdk/wit", world: "stage" });
}

use bindings::exports::penstock::stage::transform::{Guest, Item, Outcome};
use bindings::penstock::stage::host;
use bindings::penstock::stage::types::{Dtype, Field, Tensor, Value};

const MANIFEST: &str = r#"{
    "name": "misbehaving", "version": "0.1.0", "doc": "Misbehaves as its params say.",
    "counters": ["seen"],
    "params": { "type": "object", "properties": { "how": { "type": "string" } } }
}"#;

#[used]
#[cfg_attr(target_arch = "wasm32", unsafe(link_section = "penstock.manifest"))]
static SECTION: [u8; MANIFEST.len()] = *MANIFEST.as_bytes().first_chunk().unwrap();

/// Kind of misbehaviour; set once, by `init`.
static HOW: Mutex<String> = Mutex::new(String::new());

struct Misbehaving;
bindings::export!(Misbehaving with_types_in bindings);

impl Guest for Misbehaving {
    fn init(params_json: String) -> Result<(), String> {
        std::panic::set_hook(Box::new(|info| {
            let message = info.payload_as_str().unwrap_or("no message");
            let at = info.location().unwrap();
            host::log(
                host::Level::Error,
                &format!("panic: {message} at {}:{}:{}", at.file(), at.line(), at.column()),
            );
        }));
        if params_json.contains("slow-start") {
            (0..50_000_000_u64).for_each(|number| _ = std::hint::black_box(number));
        }
        let how = params_json.split('"').nth(3).unwrap_or("good").to_owned();
        match how.as_str() {
            "init-error" => return Err("no `size` given;\n\u{1b}[31mit is needed".into()),
            "init-loop" => spin(),
            "init-trap" => traps::arch_trap(),
            "init-asset" => {
                host::asset("words")
                    .map(|words| host::log(host::Level::Info, &format!("{} bytes", words.len())))?;
                host::asset("none")?;
            }
            _ => {}
        }
        *HOW.lock().unwrap() = how;
        Ok(())
    }

    fn process(items: Vec<Item>) -> Vec<Outcome> {
        let how = HOW.lock().unwrap().clone();
        let how = match how.strip_suffix("-on-bad") {
            Some(how) if items.iter().any(|item| item.key.contains("bad")) => how.to_owned(),
            Some(_) => "good".to_owned(),
            None => how,
        };
        match how.as_str() {
            "too-few" => Vec::new(),
            "too-many" => items.into_iter().flat_map(|item| [Outcome::Keep(item), Outcome::Drop]).collect(),
            how => items.into_iter().map(|item| outcome(how, item)).collect(),
        }
    }

    fn finish() -> Vec<Item> {
        Vec::new()
    }
}

fn outcome(how: &str, mut item: Item) -> Outcome {
    match how {
        "good" => {}
        "loop" => spin(),
        "log-loop" => loop {
            host::log(host::Level::Debug, "still here");
        },
        "memory" => {
            let mut hoard: Vec<Vec<u8>> = Vec::new();
            loop {
                hoard.push(Vec::with_capacity(16 << 20));
                std::hint::black_box(&hoard);
            }
        }
        "recursion" => item.seed = dive(item.seed, &[item.seed; 64]),
        "trap" => traps::arch_trap(),
        "divide" => item.seed = 1 / std::hint::black_box(0),
        "out-of-bounds" => traps::read_beyond(),
        "panic" => panic!("no `{}` today", item.key),
        "abort" => std::process::abort(),
        "failed" => return Outcome::Failed("not a JPEG: starts with \u{1b}[2Jhello".into()),
        "drop" => return Outcome::Drop,
        "held" => return Outcome::Held,
        "shape" => item.fields = vec![tensor("pixels", vec![2, 3], 7)],
        "shape-overflow" => item.fields = vec![tensor("pixels", vec![u32::MAX; 3], 8)],
        "shape-of-nothing" => item.fields = vec![tensor("pixels", vec![u32::MAX, u32::MAX, 0], 0)],
        "rank" => item.fields = vec![tensor("pixels", vec![1; 200], 4)],
        "nan" => {
            let bits = f64::from_bits(0x7ff8_0000_dead_beef);
            item.fields.push(field("nan", Value::Real(bits)));
            let data = 0x7fc0_1234_u32.to_le_bytes().to_vec();
            let nan = Tensor { dtype: Dtype::Float32, shape: vec![1], data };
            item.fields.push(field("nans", Value::Tensor(nan)));
        }
        "zero-length" => {
            item.fields = vec![
                field("blob", Value::Blob(Vec::new())),
                field("text", Value::Text(String::new())),
                tensor("empty", vec![0, 7], 0),
            ];
        }
        "scalar" => item.fields = vec![tensor("scalar", Vec::new(), 4)],
        "huge" => item.fields = vec![field("blob", Value::Blob(vec![7; 129 << 20]))],
        "twice" => item.fields = vec![field("a", Value::Int(1)), field("a", Value::Int(2))],
        "fields" => {
            item.fields = (0..300).map(|number| field(&format!("f{number}"), Value::Int(number))).collect();
        }
        "long-name" => item.fields = vec![field(&"n".repeat(300), Value::Int(1))],
        "no-key" => item.key = String::new(),
        "long-key" => item.key = "k".repeat(5000),
        "many" => return Outcome::Many((0..3).map(|number| child(&item, number)).collect()),
        "many-none" => return Outcome::Many(Vec::new()),
        "many-bomb" => return Outcome::Many((0..100_000).map(|number| child(&item, number)).collect()),
        "log" => host::log(host::Level::Warn, "two\nlines and \u{1b}[31mred"),
        "log-flood" => {
            for number in 0..100_000 {
                host::log(host::Level::Info, &format!("line {number}"));
            }
        }
        "log-long" => host::log(host::Level::Info, &"x".repeat(1 << 20)),
        "count" => {
            host::count("seen", 2.0);
            host::count("seen", 0.5);
        }
        "count-unknown" => host::count("other\u{7}", 1.0),
        "count-nan" => host::count("seen", f64::NAN),
        other => panic!("`{other}` is not a kind of misbehaviour"),
    }
    Outcome::Keep(item)
}

fn spin() -> ! {
    let mut number = 0_u64;
    loop {
        number = std::hint::black_box(number.wrapping_add(1));
    }
}

#[inline(never)]
fn dive(depth: u64, block: &[u64]) -> u64 {
    if depth == u64::MAX {
        return block[1];
    }
    let mut own = [depth; 64];
    own[(depth % 64) as usize] = block[0];
    dive(depth.wrapping_add(1), std::hint::black_box(&own)) ^ own[1]
}

fn child(item: &Item, number: u32) -> Item {
    Item { key: format!("{}/{number}", item.key), seed: item.seed, fields: Vec::new() }
}

fn field(name: &str, value: Value) -> Field {
    Field { name: name.into(), value }
}

fn tensor(name: &str, shape: Vec<u32>, bytes: usize) -> Field {
    field(name, Value::Tensor(Tensor { dtype: Dtype::Float32, shape, data: vec![0; bytes] }))
}

/// Traps that safe Rust does not cause.
mod traps {
    pub(crate) fn arch_trap() -> ! {
        #[cfg(target_arch = "wasm32")]
        core::arch::wasm32::unreachable();
        #[cfg(not(target_arch = "wasm32"))]
        std::process::abort()
    }

    /// Reads the last byte of the 32-bit address space, which is beyond any memory here.
    pub(crate) fn read_beyond() {
        #[cfg(target_arch = "wasm32")]
        // SAFETY: traps, which ends the guest.
        unsafe {
            std::hint::black_box(std::ptr::read_volatile(std::hint::black_box(usize::MAX) as *const u8));
        }
    }
}
