use std::path::Path;
use std::{env, fs};

use wasmtime::{
    Caller, Engine, Func, Instance, Memory, MemoryType, Module, Store, Val, WasmParams, WasmResults,
};
use wit_component::StringEncoding;
use wit_parser::Resolve;

use super::*;
use crate::sandbox::code_config;

const CONTRACT: &str = include_str!("../../../guest-sdk/wit/stage.wit");
/// Part of the contract that the functions import.
const WORLD: &str = "world preview1 { import host; }";
const BADF: i32 = 8;
const INVAL: i32 = 28;

#[test]
fn the_assembled_functions_are_those_of_the_text() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/preview1");
    let mut functions = wat::parse_file(folder.join("preview1.wat")).unwrap();
    let mut contract = Resolve::default();
    let package = contract.push_str("stage.wit", &format!("{CONTRACT}\n{WORLD}")).unwrap();
    let world = contract.select_world(&[package], Some("preview1")).unwrap();
    wit_component::embed_component_metadata(&mut functions, &contract, world, StringEncoding::UTF8).unwrap();
    if env::var_os("UPDATE_PREVIEW1").is_some() {
        fs::write(folder.join("preview1.wasm"), &functions).unwrap();
    }
    let is_current = functions == fs::read(folder.join("preview1.wasm")).unwrap();
    assert!(is_current, "preview1.wasm is not preview1.wat: run this test with UPDATE_PREVIEW1=1");
}

/// The functions with a stage's memory of one page, all of its bytes 0xee, and a host that keeps the lines.
struct Functions {
    store: Store<Vec<String>>,
    instance: Instance,
    memory: Memory,
}

impl Functions {
    fn new() -> Self {
        let engine = Engine::new(&code_config()).unwrap();
        let mut store = Store::new(&engine, Vec::new());
        store.set_epoch_deadline(u64::MAX);
        let memory = Memory::new(&mut store, MemoryType::new(1, None)).unwrap();
        memory.data_mut(&mut store).fill(0xee);
        let log = move |mut caller: Caller<'_, Vec<String>>, level: i32, start: i32, length: i32| {
            let (bytes, lines) = memory.data_and_store_mut(&mut caller);
            let line = std::str::from_utf8(&bytes[start as usize..][..length as usize])
                .expect("the host requires UTF-8");
            lines.push(format!("{level} {line}"));
        };
        let log = Func::wrap(&mut store, log);
        let module = Module::new(&engine, FUNCTIONS).unwrap();
        let instance = Instance::new(&mut store, &module, &[log.into(), memory.into()]).unwrap();
        Self { store, instance, memory }
    }

    fn call<P: WasmParams, R: WasmResults>(&mut self, name: &str, params: P) -> R {
        self.instance.get_typed_func(&mut self.store, name).unwrap().call(&mut self.store, params).unwrap()
    }

    fn put(&mut self, at: usize, bytes: &[u8]) {
        self.memory.data_mut(&mut self.store)[at..at + bytes.len()].copy_from_slice(bytes);
    }

    fn bytes<const N: usize>(&self, at: usize) -> [u8; N] {
        self.memory.data(&self.store)[at..at + N].try_into().unwrap()
    }

    fn u32(&self, at: usize) -> u32 {
        u32::from_le_bytes(self.bytes(at))
    }

    fn u64(&self, at: usize) -> u64 {
        u64::from_le_bytes(self.bytes(at))
    }

    /// Writes the parts by one call of `fd_write`.
    fn write(&mut self, descriptor: i32, parts: &[&[u8]]) {
        let mut at = 1024;
        for (number, part) in parts.iter().enumerate() {
            self.put(512 + 8 * number, &(at as u32).to_le_bytes());
            self.put(516 + 8 * number, &(part.len() as u32).to_le_bytes());
            self.put(at, part);
            at += part.len();
        }
        assert_eq!(self.call::<_, i32>("fd_write", (descriptor, 512, parts.len() as i32, 8)), 0);
        assert_eq!(self.u32(8) as usize, at - 1024);
    }

    fn lines(&mut self) -> Vec<String> {
        std::mem::take(self.store.data_mut())
    }

    /// Exits with the code. Returns the lines that this logged.
    fn exit(&mut self, code: i32) -> Vec<String> {
        let exit = self.instance.get_typed_func::<i32, ()>(&mut self.store, "proc_exit").unwrap();
        let trap = exit.call(&mut self.store, code).unwrap_err();
        assert_eq!(trap.downcast_ref(), Some(&wasmtime::Trap::UnreachableCodeReached));
        self.lines()
    }
}

#[test]
fn output_is_logged_line_by_line() {
    let mut functions = Functions::new();
    functions.write(1, &[b"one\ntw", b"", b"o\n\nthr"]);
    assert_eq!(functions.lines(), ["1 one", "1 two"]);
    functions.write(2, &[b"warned\nrest"]);
    functions.write(1, &[b"ee\n"]);
    assert_eq!(functions.lines(), ["2 warned", "1 three"]);
    assert_eq!(functions.call::<_, i32>("fd_sync", 2), 0);
    assert_eq!(functions.lines(), ["2 rest"]);
    assert_eq!(functions.call::<_, i32>("fd_sync", 2), 0);
    assert_eq!(functions.lines(), [""; 0]);
    assert_eq!(functions.bytes(0), [0xee; 8], "the host reads a line where the stage keeps its own bytes");
    for other in [0, 3, -1] {
        assert_eq!(functions.call::<_, i32>("fd_write", (other, 512, 1, 8)), BADF);
        assert_eq!(functions.call::<_, i32>("fd_fdstat_get", (other, 16)), BADF);
    }
    assert_eq!(functions.call::<_, i32>("fd_fdstat_get", (1, 16)), 0);
    assert_eq!((functions.bytes(16), functions.u64(24), functions.u64(32)), ([2u8], 64, 0));
}

#[test]
fn bytes_that_are_not_utf8_become_question_marks() {
    let mut functions = Functions::new();
    // Each kind of damage: a lone continuation, a long form, a surrogate, a number beyond U+10FFFF, a cut character.
    let damaged: [&[u8]; 6] =
        [b"\x80", b"\xc0\xaf", b"\xe0\x80\x80", b"\xed\xa0\x80", b"\xf4\x90\x80\x80", b"\xe2\x82"];
    for bytes in damaged {
        functions.write(1, &[b"a", bytes, "é€😀".as_bytes(), b"\n"]);
        assert_eq!(functions.lines(), [format!("1 a{}é€😀", "?".repeat(bytes.len()))]);
    }
}

#[test]
fn a_long_line_is_cut_between_characters() {
    let mut functions = Functions::new();
    functions.write(1, &["a".repeat(1023).as_bytes(), "€".as_bytes(), &b"b".repeat(1030), b"\n"]);
    let expected = [format!("1 {}€", "a".repeat(1023)), format!("1 {}", "b".repeat(1024)), "1 bbbbbb".into()];
    assert_eq!(functions.lines(), expected);
    functions.write(1, &[&b"\x80".repeat(3000)]);
    assert_eq!(functions.lines().len(), 2);
}

#[test]
fn an_exit_ends_the_call_with_a_reason() {
    assert_eq!(Functions::new().exit(0), ["3 panic: called `exit` with code 0"]);
    assert_eq!(
        Functions::new().exit(4_294_967_295u32 as i32),
        ["3 panic: called `exit` with code 4294967295"]
    );
    let mut functions = Functions::new();
    functions.write(1, &[b"unfinished"]);
    functions.write(2, &[b"panic: index out of range\n"]); // as Go's runtime writes it
    assert_eq!(functions.exit(2), ["3 panic: index out of range", "1 unfinished"]);
    let mut functions = Functions::new();
    functions.write(2, &[b"Assertion failed: x (a.c: f: 1)\n", b"fatal error: all goroutines are asleep\n"]);
    let reasons =
        ["3 panic: Assertion failed: x (a.c: f: 1)", "3 panic: fatal error: all goroutines are asleep"];
    assert_eq!(functions.exit(2), reasons);
}

#[test]
fn random_numbers_start_at_the_seed() {
    let mut functions = Functions::new();
    let draw = |functions: &mut Functions| {
        assert_eq!(functions.call::<_, i32>("random_get", (64, 19)), 0);
        functions.bytes::<20>(64)
    };
    functions.call::<_, ()>("penstock_seed", 7i64);
    let first = draw(&mut functions);
    assert_eq!(first[19], 0xee, "no byte after the requested ones is written");
    // The first number of SplitMix64 with this state, as by its authors' C code.
    assert_eq!(u64::from_le_bytes(first[..8].try_into().unwrap()), 0x63cb_e1e4_5932_0dd7);
    assert_ne!(draw(&mut functions), first);
    functions.call::<_, ()>("penstock_seed", 7i64);
    assert_eq!(draw(&mut functions), first);
}

#[test]
fn only_sleeping_moves_the_clocks() {
    let mut functions = Functions::new();
    let time = |functions: &mut Functions, clock: i32| {
        assert_eq!(functions.call::<_, i32>("clock_time_get", (clock, 1i64, 64)), 0);
        functions.u64(64)
    };
    let start = 946_684_800_000_000_000;
    assert_eq!(
        [0, 0, 1, 1].map(|clock| time(&mut functions, clock)),
        [start, start, 1_000_000_000, 1_000_000_000]
    );
    assert_eq!(functions.call::<_, i32>("clock_time_get", (4, 1i64, 64)), INVAL);
    assert_eq!(functions.call::<_, i32>("clock_res_get", (4, 64)), INVAL);
    assert_eq!(functions.call::<_, i32>("clock_res_get", (0, 64)), 0);
    assert_eq!(functions.u64(64), 1);
    // A relative sleep of 500 ns beside an absolute one until 900 ns from now: the first is due.
    functions.put(1024, &[0; 96]);
    functions.put(1024, &[1]);
    functions.put(1048, &500u64.to_le_bytes());
    functions.put(1072, &[2]);
    functions.put(1088, &1u32.to_le_bytes());
    functions.put(1096, &1_000_000_900u64.to_le_bytes());
    functions.put(1112, &[1]);
    assert_eq!(functions.call::<_, i32>("poll_oneoff", (1024, 2048, 2, 8)), 0);
    assert_eq!((functions.u32(8), functions.u64(2048), functions.u64(2056)), (1, 1, 0));
    assert_eq!([0, 1].map(|clock| time(&mut functions, clock)), [start + 500, 1_000_000_500]);
    // Standard input has no data; waiting for it ends at once, with an error.
    functions.put(1032, &[1]);
    functions.put(1040, &[0; 4]);
    assert_eq!(functions.call::<_, i32>("poll_oneoff", (1024, 2048, 1, 8)), 0);
    assert_eq!((functions.u32(8), functions.bytes(2056)), (1, [BADF as u8, 0, 1]));
    assert_eq!(functions.call::<_, i32>("poll_oneoff", (1024, 2048, 0, 8)), INVAL);
    functions.call::<_, ()>("penstock_seed", 0i64);
    assert_eq!(
        [0, 1].map(|clock| time(&mut functions, clock)),
        [start, 1_000_000_500],
        "time runs on within a process"
    );
}

#[test]
fn there_are_no_arguments_variables_files_or_sockets() {
    let mut functions = Functions::new();
    for name in ["args_sizes_get", "environ_sizes_get"] {
        functions.put(64, &[0xee; 8]);
        assert_eq!(functions.call::<_, i32>(name, (64, 68)), 0);
        assert_eq!(functions.u64(64), 0);
    }
    let refused: Vec<_> = (functions.instance.exports(&mut functions.store))
        .filter_map(|export| Some((export.name().to_owned(), export.into_func()?)))
        .collect();
    assert_eq!(refused.len(), 46 + 1, "the functions of preview1, and `penstock_seed`");
    let before = functions.bytes::<0x1_0000>(0);
    for (name, function) in refused {
        let is_file = ["fd_", "path_"].iter().any(|start| name.starts_with(start));
        let expected = match &*name {
            _ if is_file => BADF,
            name if name.starts_with("sock_") || name == "proc_raise" => 52,
            "args_get" | "environ_get" | "sched_yield" => 0,
            _ => continue,
        };
        let params: Vec<Val> =
            function.ty(&functions.store).params().map(|kind| Val::default_for_ty(&kind).unwrap()).collect();
        let mut result = [Val::I32(-1)];
        function.call(&mut functions.store, &params, &mut result).unwrap();
        assert_eq!(result[0].i32(), Some(expected), "{name}");
    }
    assert_eq!(functions.bytes::<0x1_0000>(0), before);
    assert_eq!(functions.lines(), [""; 0]);
}
