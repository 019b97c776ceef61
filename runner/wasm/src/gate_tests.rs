use super::*;

fn refusal(text: &str) -> String {
    check(&wat::parse_str(text).unwrap(), &GateBounds::default())
        .expect_err("the gate refuses it")
        .to_string()
}

fn within_function(body: &str) -> String {
    format!("(module (func {body}))")
}

#[test]
fn a_small_module_passes_and_is_counted() {
    let counts = check(
        &wat::parse_str("(module (memory 1) (table 1 funcref) (func (local i32)) (func))").unwrap(),
        &GateBounds::default(),
    );
    let counts = counts.unwrap();
    assert_eq!((counts.functions, counts.core_modules, counts.code_bytes), (2, 1, 6));
}

#[test]
fn the_size_of_a_module_is_limited() {
    let error = check_size(&vec![0; (32 << 20) + 1], &GateBounds::default()).unwrap_err();
    insta::assert_snapshot!(error, @"the module has 33554433 bytes, the limit is 33554432 (`limits.modules.module_bytes`)");
}

#[test]
fn too_many_of_anything_is_refused() {
    let functions = format!("(module {})", "(func)".repeat(40_001));
    insta::assert_snapshot!(refusal(&functions), @"the module has 40001 functions, the limit is 40000 (`limits.modules.functions`)");
    let globals = format!("(module {})", "(global i32 (i32.const 0))".repeat(1_001));
    insta::assert_snapshot!(refusal(&globals), @"the module has 1001 globals, the limit is 1000 (`limits.modules.globals`)");
    let imports = format!("(module {})", r#"(import "a" "b" (func))"#.repeat(4_097));
    insta::assert_snapshot!(refusal(&imports), @"the module has 4097 imports, the limit is 4096 (`limits.modules.imports`)");
    let segments = format!("(module (memory 1) {})", r#"(data (i32.const 0) "x")"#.repeat(65_537));
    insta::assert_snapshot!(refusal(&segments), @"the module has 65537 data segments, the limit is 65536 (`limits.modules.data_segments`)");
    let modules = format!("(component {})", "(core module)".repeat(65));
    insta::assert_snapshot!(refusal(&modules), @"the module has 65 core modules, the limit is 64 (`limits.modules.core_modules`)");
    let types: String = (0..4_001).map(|_| "(type (func))").collect();
    insta::assert_snapshot!(refusal(&format!("(module {types})")), @"the module has 4001 types, the limit is 4000 (`limits.modules.types`)");
    let exports: String = (0..16_385).map(|number| format!(r#"(export "e{number}" (func 0))"#)).collect();
    insta::assert_snapshot!(refusal(&format!("(module (func) {exports})")), @"the module has 16385 exports, the limit is 16384 (`limits.modules.exports`)");
    let name = "n".repeat(1_025);
    insta::assert_snapshot!(refusal(&format!(r#"(module (func (export "{name}")))"#)), @"the module has 1025 bytes in the name of an import or export, the limit is 1024 (`limits.modules.name_bytes`)");
}

#[test]
fn functions_that_are_hard_to_compile_are_refused_with_their_place() {
    let long = within_function(&"nop ".repeat(512 << 10));
    insta::assert_snapshot!(refusal(&long), @"the module has 524290 bytes of code in the function at offset 0x1a of core module 1, the limit is 524288 (`limits.modules.body_bytes`)");
    let locals = within_function(&"(local i32) ".repeat(4_001));
    insta::assert_snapshot!(refusal(&locals), @"the module has 4001 locals in the function at offset 0x16 of core module 1, the limit is 4000 (`limits.modules.locals`)");
    let nested = within_function(&format!("{}{}", "block ".repeat(1_025), "end ".repeat(1_025)));
    insta::assert_snapshot!(refusal(&nested), @"the module has 1025 levels of nested blocks in the function at offset 0x18 of core module 1, the limit is 1024 (`limits.modules.nesting`)");
    let branches = within_function(&format!("block i32.const 0 br_table {} end", "0 ".repeat(4_002)));
    insta::assert_snapshot!(refusal(&branches), @"the module has 4001 targets of one branch table in the function at offset 0x18 of core module 1, the limit is 4000 (`limits.modules.branch_targets`)");
}

#[test]
fn large_tables_and_other_memories_are_refused() {
    insta::assert_snapshot!(refusal("(module (table 20001 funcref))"), @"the module has 20001 entries in a table, the limit is 20000 (`limits.modules.table_entries`)");
    insta::assert_snapshot!(refusal("(module (memory i64 1))"), @"the module is not valid WebAssembly: 64-bit and shared memories are not supported; build for wasm32 without threads");
    insta::assert_snapshot!(refusal("(module (memory 1 1 shared))"), @"the module is not valid WebAssembly: 64-bit and shared memories are not supported; build for wasm32 without threads");
}

#[test]
fn the_nesting_of_components_is_limited() {
    let text = format!("{}{}", "(component ".repeat(10), ")".repeat(10));
    insta::assert_snapshot!(refusal(&text), @"the module has 9 levels of nested components, the limit is 8 (`limits.modules.component_depth`)");
}

#[test]
fn table_entries_and_element_segments_are_limited() {
    let segments = format!("(module (func) (table 1 funcref) {})", "(elem func 0)".repeat(8_001));
    insta::assert_snapshot!(refusal(&segments), @"the module has 8001 element segments, the limit is 8000 (`limits.modules.element_segments`)");
    let entries = format!("(module (func) (elem func {}))", "0 ".repeat(20_001));
    insta::assert_snapshot!(refusal(&entries), @"the module has 20001 entries in a table, the limit is 20000 (`limits.modules.table_entries`)");
}

#[test]
fn definitions_and_names_in_components_are_limited() {
    let types = format!("(component {})", "(type string)".repeat(20_001));
    insta::assert_snapshot!(refusal(&types), @"the module has 20001 definitions in its components, the limit is 20000 (`limits.modules.component_items`)");
    let name = "n".repeat(1_025);
    let import = format!(r#"(component (import "{name}" (func)))"#);
    insta::assert_snapshot!(refusal(&import), @"the module has 1025 bytes in the name of an import or export, the limit is 1024 (`limits.modules.name_bytes`)");
}

#[test]
fn the_operator_may_lower_or_raise_the_bounds() {
    let module = wat::parse_str(format!("(module {})", "(func)".repeat(40_001))).unwrap();
    let more = GateBounds { functions: 50_000, ..GateBounds::default() };
    assert_eq!(check(&module, &more).unwrap().functions, 40_001);
    let less = GateBounds { module_bytes: 99, ..GateBounds::default() };
    insta::assert_snapshot!(check_size(&module, &less).unwrap_err(), @"the module has 160032 bytes, the limit is 99 (`limits.modules.module_bytes`)");
}
