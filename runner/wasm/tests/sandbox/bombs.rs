//! Small modules that are expensive to compile are refused by the gate or by the limits of the compiling process.

use std::fmt::Write;
use std::time::Duration;

use penstock_types::config::GateBounds;
use penstock_wasm::{CompileLimit, CompileLimits, Compiler, ModuleError, Sandbox, SandboxSettings};

use crate::compile::limited;
use crate::support::{guest, inspected};

/// Component that contains this core module, exports a stage and passes all checks made before the compilation.
fn component(core: &str) -> Vec<u8> {
    let text = format!(
        r#"(component
        (core module $m (func (export "f")) {core}
            (@custom "penstock.manifest" "{{\"name\":\"bomb\",\"version\":\"1\"}}"))
        (core instance $i (instantiate $m))
        (func $f (canon lift (core func $i "f")))
        (instance $t (export "init" (func $f)) (export "process" (func $f)) (export "finish" (func $f)))
        (export "penstock:stage/transform@0.1.0" (instance $t)))"#
    );
    wat::parse_str(text).unwrap()
}

/// Chain of blocks that is expensive to compile: the values of all locals at the end of each block depend on all earlier blocks.
fn block_chain(blocks: usize) -> String {
    let mut text = String::from("(func (param i32) ");
    text.push_str(&"(local i32)".repeat(LOCALS));
    for number in 0..blocks {
        let (one, other) = (1 + number % LOCALS, 1 + (number * 7) % LOCALS);
        write!(
            text,
            "(block (br_if 0 (local.get 0)) (local.set {one} (i32.add (local.get {other}) (local.get 0))))"
        )
        .unwrap();
    }
    text.push(')');
    text
}

/// Number of locals of a block chain; half of the number that the gate allows.
const LOCALS: usize = 2_000;

fn tiny_functions(count: usize) -> String {
    "(func)".repeat(count)
}

fn one_large_function(bytes: usize) -> String {
    format!("(func {})", "(drop (i32.add (i32.const 1) (i32.const 2)))".repeat(bytes / 6))
}

fn globals(count: usize) -> String {
    "(global i32 (i32.const 0))".repeat(count)
}

fn branch_table(targets: usize) -> String {
    format!("(func (block (br_table {} (i32.const 0))))", "0 ".repeat(targets))
}

fn nested(depth: usize) -> String {
    format!("(func {} {})", "block ".repeat(depth), "end ".repeat(depth))
}

fn locals(count: usize) -> String {
    format!("(func {})", "(local i64)".repeat(count))
}

/// Bounds that are so large that the gate refuses no module.
fn open_gate() -> GateBounds {
    GateBounds {
        functions: u64::MAX,
        body_bytes: u64::MAX,
        locals: u64::MAX,
        branch_targets: u64::MAX,
        nesting: u64::MAX,
        globals: u64::MAX,
        ..GateBounds::default()
    }
}

fn refused_by_gate(bomb: &[u8]) -> &'static str {
    match inspected(bomb) {
        Err(ModuleError::Gate { bound, .. }) => bound,
        other => panic!("the gate did not refuse it: {other:?}"),
    }
}

/// Compiles with the given limits and without effective bounds of the gate.
fn compiled(bomb: &[u8], limits: impl FnOnce(&mut CompileLimits)) -> Result<(), ModuleError> {
    let sandbox = Sandbox::new(SandboxSettings {
        instances: 1,
        compiler: Compiler::Child(limited(limits)),
        gate: open_gate(),
        ..SandboxSettings::default()
    });
    sandbox.unwrap().load(bomb).map(drop)
}

#[test]
fn the_gate_refuses_bulk_and_known_shapes() {
    for (bomb, bound) in [
        (tiny_functions(100_000), "functions"),
        (one_large_function(1_400_000), "body_bytes"),
        (block_chain(35_000), "body_bytes"),
        (globals(100_000), "globals"),
        (branch_table(60_000), "branch_targets"),
        (nested(10_000), "nesting"),
        (locals(49_000), "locals"),
    ] {
        assert_eq!(refused_by_gate(&component(&bomb)), bound);
    }
}

#[test]
fn a_chain_of_blocks_that_passes_the_gate_runs_out_of_cpu_time() {
    let bomb = component(&block_chain(8_000));
    assert!(inspected(&bomb).is_ok());
    let refused = compiled(&bomb, |limits| limits.cpu = Duration::from_secs(1)).unwrap_err();
    let ModuleError::CompileLimit { limit: CompileLimit::Cpu(_) } = refused else { panic!("{refused}") };
    insta::assert_snapshot!(refused, @"compiling the module needs more than 1 s of CPU time; split its largest functions and remove unused code, or have the operator raise the limit (`limits.compile.cpu_s`)");
}

#[test]
fn a_compilation_that_exceeds_its_wall_clock_limit_is_ended() {
    let bomb = component(&block_chain(8_000));
    let refused = compiled(&bomb, |limits| limits.wall = Duration::from_millis(300)).unwrap_err();
    insta::assert_snapshot!(refused, @"compiling the module takes longer than 0.3 s; split its largest functions and remove unused code, or have the operator raise the limit (`limits.compile.wall_s`)");
}

#[test]
fn bulk_that_passes_an_open_gate_runs_out_of_memory() {
    let bomb = component(&one_large_function(1_400_000));
    let refused = compiled(&bomb, |limits| limits.memory_bytes = 128 << 20).unwrap_err();
    let ModuleError::CompileLimit { limit: CompileLimit::Memory(_) } = refused else { panic!("{refused}") };
    insta::assert_snapshot!(refused, @"compiling the module needs more than 128 MiB of memory; split its largest functions and remove unused code, or have the operator raise the limit (`limits.compile.memory_mib`)");
}

#[test]
fn memory_that_is_too_small_for_the_compiler_itself_is_reported() {
    let module = component("");
    for mib in [1, 24, 48, 96] {
        match compiled(&module, |limits| limits.memory_bytes = mib << 20) {
            // The compilation succeeded: the signature, which does not match the contract, is checked afterwards.
            Err(
                ModuleError::Export { .. } | ModuleError::CompileLimit { limit: CompileLimit::Memory(_) },
            ) => {}
            other => panic!("{mib} MiB: {other:?}"),
        }
    }
}

#[test]
fn machine_code_beyond_its_limit_is_refused() {
    let refused = compiled(&component(""), |limits| limits.code_bytes = 1).unwrap_err();
    insta::assert_snapshot!(refused, @"compiling the module produces more than 1 MiB of machine code; split its largest functions and remove unused code, or have the operator raise the limit (`limits.compile.code_mib`)");
}

#[test]
fn code_nested_too_deeply_for_the_stack_ends_only_the_child() {
    let refused = compiled(&component(&nested(3_000_000)), |limits| limits.cpu = Duration::from_secs(2));
    match refused {
        Err(ModuleError::CompileLimit { .. } | ModuleError::Compile { .. } | ModuleError::Invalid { .. }) => {
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn types_that_refer_to_each_other_in_a_cycle_end_only_the_child() {
    // Moves the exported interface to another package, so that the interfaces of the two packages use each other.
    let mut module = guest("carrying");
    let name = b"penstock:stage/transform@0.1.0\x05";
    let place = module.windows(name.len()).position(|bytes| bytes == name).unwrap();
    module[place + "penstoc".len()] = b'c';
    let sandbox = Sandbox::new(SandboxSettings {
        instances: 1,
        compiler: Compiler::Child(limited(|_| {})),
        ..SandboxSettings::default()
    });
    let sandbox = sandbox.unwrap();
    let loaded = sandbox.load(&module).unwrap_err().to_string();
    assert_eq!(sandbox.inspect(&module).unwrap_err().to_string(), loaded);
    insta::assert_snapshot!(loaded);
}
