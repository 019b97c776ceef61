//! The static gate: sizes and counts that a module may have, looked at before anything is compiled. Compilers can be made to
//! take minutes and gigabytes by small inputs; these limits keep bulk and the known shapes out. They leave room for
//! codecs and for interpreters (CPython and SpiderMonkey builds are 12-18 MB).

use wasmparser::{FunctionBody, Operator, Parser, Payload, TableInit, TypeRef};

use crate::error::ModuleError;

/// Largest upload, in bytes.
pub const MAX_MODULE_BYTES: u64 = 32 << 20;
/// Most functions, over all core modules of a component.
pub(crate) const MAX_FUNCTIONS: u64 = 40_000;
/// Largest body of one function, in bytes.
pub(crate) const MAX_BODY_BYTES: u64 = 256 << 10;
/// Most locals of one function, parameters not counted.
pub(crate) const MAX_LOCALS: u64 = 4_000;
/// Most targets of one `br_table`.
pub(crate) const MAX_BRANCH_TARGETS: u64 = 4_000;
/// Most blocks open at a time in one function.
pub(crate) const MAX_NESTING: u64 = 512;
/// Most imports, over all core modules of a component.
pub(crate) const MAX_IMPORTS: u64 = 4_096;
/// Most exports, over all core modules of a component.
pub(crate) const MAX_EXPORTS: u64 = 16_384;
/// Most globals, over all core modules of a component.
pub(crate) const MAX_GLOBALS: u64 = 1_000;
/// Most data segments, over all core modules of a component.
pub(crate) const MAX_DATA_SEGMENTS: u64 = 8_000;
/// Most types, over all core modules of a component.
pub(crate) const MAX_TYPES: u64 = 4_000;
/// Most entries one table may start with.
pub(crate) const MAX_TABLE_ENTRIES: u64 = 20_000;
/// Most bytes one memory may start with: a 32-bit memory as a whole; the stage's own limit is looked at when it starts.
pub(crate) const MAX_MEMORY_BYTES: u64 = 4 << 30;
/// Longest name of an import or export, in bytes.
pub(crate) const MAX_NAME_BYTES: u64 = 1_024;
/// Most core modules in a component.
pub(crate) const MAX_CORE_MODULES: u64 = 64;
/// Deepest components within components.
pub(crate) const MAX_COMPONENT_DEPTH: u64 = 8;

/// What the gate counted; also what a report tells.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Counts {
    pub(crate) functions: u64,
    pub(crate) core_modules: u64,
    pub(crate) code_bytes: u64,
    imports: u64,
    exports: u64,
    globals: u64,
    data_segments: u64,
    types: u64,
}

/// Whether the upload as a whole is small enough to be looked at.
pub(crate) fn check_size(bytes: &[u8]) -> Result<(), ModuleError> {
    at_most("bytes", bytes.len() as u64, MAX_MODULE_BYTES)
}

/// Counts what the module holds; the first thing above its limit ends the walk.
pub(crate) fn check(bytes: &[u8]) -> Result<Counts, ModuleError> {
    let mut counts = Counts::default();
    let mut depth = 0_u64;
    for payload in Parser::new(0).parse_all(bytes) {
        let payload = payload.map_err(|error| invalid(&error))?;
        match &payload {
            Payload::Version { encoding: wasmparser::Encoding::Module, .. } => {
                counts.core_modules += 1;
                at_most("core modules", counts.core_modules, MAX_CORE_MODULES)?;
            }
            Payload::ModuleSection { .. } | Payload::ComponentSection { .. } => {
                depth += 1;
                at_most("components within each other", depth, MAX_COMPONENT_DEPTH)?;
            }
            Payload::End(_) => depth = depth.saturating_sub(1),
            Payload::TypeSection(section) => {
                counts.types += u64::from(section.count());
                at_most("types", counts.types, MAX_TYPES)?;
            }
            Payload::FunctionSection(section) => {
                counts.functions += u64::from(section.count());
                at_most("functions", counts.functions, MAX_FUNCTIONS)?;
            }
            Payload::GlobalSection(section) => {
                counts.globals += u64::from(section.count());
                at_most("globals", counts.globals, MAX_GLOBALS)?;
            }
            Payload::DataSection(section) => {
                counts.data_segments += u64::from(section.count());
                at_most("data segments", counts.data_segments, MAX_DATA_SEGMENTS)?;
            }
            Payload::CodeSectionEntry(body) => check_body(&mut counts, body)?,
            _ => check_borders(&mut counts, payload)?,
        }
    }
    Ok(counts)
}

/// Sections that say what a core module takes and gives: imports, exports, tables, memories.
fn check_borders(counts: &mut Counts, payload: Payload<'_>) -> Result<(), ModuleError> {
    match payload {
        Payload::ImportSection(section) => {
            for import in section.into_imports() {
                let import = import.map_err(|error| invalid(&error))?;
                counts.imports += 1;
                at_most("imports", counts.imports, MAX_IMPORTS)?;
                check_name(import.name)?;
                match import.ty {
                    TypeRef::Table(table) => at_most("entries in a table", table.initial, MAX_TABLE_ENTRIES)?,
                    TypeRef::Memory(memory) => check_memory(&memory)?,
                    _ => {}
                }
            }
        }
        Payload::ExportSection(section) => {
            counts.exports += u64::from(section.count());
            at_most("exports", counts.exports, MAX_EXPORTS)?;
            for export in section {
                check_name(export.map_err(|error| invalid(&error))?.name)?;
            }
        }
        Payload::TableSection(section) => {
            for table in section {
                let table = table.map_err(|error| invalid(&error))?;
                at_most("entries in a table", table.ty.initial, MAX_TABLE_ENTRIES)?;
                if let TableInit::Expr(_) = table.init {
                    return Err(ModuleError::Invalid {
                        reason: "a table with an initial expression; function references are not supported"
                            .into(),
                    });
                }
            }
        }
        Payload::MemorySection(section) => {
            for memory in section {
                check_memory(&memory.map_err(|error| invalid(&error))?)?;
            }
        }
        _ => {}
    }
    Ok(())
}

fn check_name(name: &str) -> Result<(), ModuleError> {
    at_most("bytes in the name of an import or export", name.len() as u64, MAX_NAME_BYTES)
}

fn check_memory(memory: &wasmparser::MemoryType) -> Result<(), ModuleError> {
    if memory.memory64 || memory.shared {
        return Err(ModuleError::Invalid {
            reason: "64-bit and shared memories are not supported; build for wasm32 without threads".into(),
        });
    }
    let page = 1_u64 << memory.page_size_log2.unwrap_or(16);
    at_most("bytes of memory at the start", memory.initial.saturating_mul(page), MAX_MEMORY_BYTES)
}

fn check_body(counts: &mut Counts, body: &FunctionBody<'_>) -> Result<(), ModuleError> {
    let module = counts.core_modules;
    let within = |what, found, limit| {
        at_most(what, found, limit).map_err(|error| match error {
            ModuleError::Gate { what, found, limit, .. } => {
                let range = body.range();
                let place = format!(" in the function at offset {:#x} of core module {module}", range.start);
                ModuleError::Gate { what, found, limit, place }
            }
            other => other,
        })
    };
    let size = body.as_bytes().len() as u64;
    counts.code_bytes += size;
    within("bytes of code", size, MAX_BODY_BYTES)?;
    let mut locals = 0_u64;
    for group in body.get_locals_reader().map_err(|error| invalid(&error))? {
        locals += u64::from(group.map_err(|error| invalid(&error))?.0);
        within("locals", locals, MAX_LOCALS)?;
    }
    let mut open = 0_u64;
    let mut operators = body.get_operators_reader().map_err(|error| invalid(&error))?;
    while !operators.eof() {
        match operators.read().map_err(|error| invalid(&error))? {
            Operator::Block { .. } | Operator::Loop { .. } | Operator::If { .. } => {
                open += 1;
                within("blocks within each other", open, MAX_NESTING)?;
            }
            Operator::End => open = open.saturating_sub(1),
            Operator::BrTable { targets } => {
                within("targets of one branch table", u64::from(targets.len()), MAX_BRANCH_TARGETS)?;
            }
            _ => {}
        }
    }
    Ok(())
}

fn at_most(what: &'static str, found: u64, limit: u64) -> Result<(), ModuleError> {
    if found > limit {
        return Err(ModuleError::Gate { what, found, limit, place: String::new() });
    }
    Ok(())
}

fn invalid(error: &wasmparser::BinaryReaderError) -> ModuleError {
    ModuleError::Invalid { reason: crate::text::printable(&error.to_string(), 500) }
}

#[cfg(test)]
#[path = "gate_tests.rs"]
mod tests;
