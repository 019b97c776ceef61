//! The static gate: checks sizes and counts of a module before it is compiled. Small inputs can make compilers take minutes and
//! gigabytes; these bounds exclude large modules and structures that are known to be expensive.

use penstock_types::config::GateBounds;
use wasmparser::{
    ElementItems, ElementSectionReader, FunctionBody, ImportSectionReader, MemoryType, Operator, Parser,
    Payload, Table, TableInit, TypeRef,
};

use crate::error::ModuleError;

/// Counts of a module's contents, as included in reports.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct ModuleCounts {
    pub(crate) functions: u64,
    pub(crate) core_modules: u64,
    pub(crate) code_bytes: u64,
    imports: u64,
    exports: u64,
    globals: u64,
    data_segments: u64,
    element_segments: u64,
    types: u64,
    component_items: u64,
}

/// Bound whose value is a field of the operator's bounds and whose setting is the field's name.
macro_rules! bound {
    ($bounds:ident.$field:ident) => {
        Bound { setting: stringify!($field), limit: $bounds.$field }
    };
}

pub(crate) fn check_size(bytes: &[u8], bounds: &GateBounds) -> Result<(), ModuleError> {
    at_most("bytes", bytes.len() as u64, bound!(bounds.module_bytes))
}

/// Counts the contents of the module; fails if any count exceeds its bound.
pub(crate) fn check(bytes: &[u8], bounds: &GateBounds) -> Result<ModuleCounts, ModuleError> {
    let mut gate = Gate { bounds, counts: ModuleCounts::default(), depth: 0 };
    for payload in Parser::new(0).parse_all(bytes) {
        gate.check(payload.map_err(|error| invalid(&error))?)?;
    }
    Ok(gate.counts)
}

/// A bound, and the name of the setting that defines it.
#[derive(Clone, Copy)]
struct Bound {
    setting: &'static str,
    limit: u64,
}

struct Gate<'a> {
    bounds: &'a GateBounds,
    counts: ModuleCounts,
    /// Nesting depth of components and modules inside the outermost one.
    depth: u64,
}

impl Gate<'_> {
    fn check(&mut self, payload: Payload<'_>) -> Result<(), ModuleError> {
        let (counts, bounds) = (&mut self.counts, self.bounds);
        match payload {
            Payload::Version { encoding: wasmparser::Encoding::Module, .. } => {
                add("core modules", &mut counts.core_modules, 1, bound!(bounds.core_modules))
            }
            Payload::ModuleSection { .. } | Payload::ComponentSection { .. } => {
                self.depth += 1;
                at_most("levels of nested components", self.depth, bound!(bounds.component_depth))
            }
            Payload::End(_) => {
                self.depth = self.depth.saturating_sub(1);
                Ok(())
            }
            Payload::TypeSection(section) => {
                add("types", &mut counts.types, section.count(), bound!(bounds.types))
            }
            Payload::FunctionSection(section) => {
                add("functions", &mut counts.functions, section.count(), bound!(bounds.functions))
            }
            Payload::GlobalSection(section) => {
                add("globals", &mut counts.globals, section.count(), bound!(bounds.globals))
            }
            Payload::DataSection(section) => {
                add("data segments", &mut counts.data_segments, section.count(), bound!(bounds.data_segments))
            }
            Payload::ElementSection(section) => self.check_elements(section),
            Payload::ImportSection(section) => self.check_imports(section),
            Payload::ExportSection(section) => {
                add("exports", &mut counts.exports, section.count(), bound!(bounds.exports))?;
                section.into_iter().try_for_each(|export| self.check_name(read(export)?.name))
            }
            Payload::TableSection(section) => {
                section.into_iter().try_for_each(|table| self.check_table(&read(table)?))
            }
            Payload::MemorySection(section) => {
                section.into_iter().try_for_each(|memory| self.check_memory(&read(memory)?))
            }
            Payload::CodeSectionEntry(body) => self.check_body(&body),
            other => self.check_component(other),
        }
    }

    /// Counts the sections that only components have. Many of these sections cause code to be generated, such as adapters of
    /// functions.
    fn check_component(&mut self, payload: Payload<'_>) -> Result<(), ModuleError> {
        let count = match &payload {
            Payload::CoreTypeSection(section) => section.count(),
            Payload::ComponentTypeSection(section) => section.count(),
            Payload::InstanceSection(section) => section.count(),
            Payload::ComponentInstanceSection(section) => section.count(),
            Payload::ComponentAliasSection(section) => section.count(),
            Payload::ComponentCanonicalSection(section) => section.count(),
            Payload::ComponentImportSection(section) => section.count(),
            Payload::ComponentExportSection(section) => section.count(),
            _ => 0,
        };
        let (items, bounds) = (&mut self.counts.component_items, self.bounds);
        add("definitions in its components", items, count, bound!(bounds.component_items))?;
        match payload {
            Payload::ComponentImportSection(section) => {
                section.into_iter().try_for_each(|import| self.check_name(read(import)?.name.name))
            }
            Payload::ComponentExportSection(section) => {
                section.into_iter().try_for_each(|export| self.check_name(read(export)?.name.name))
            }
            _ => Ok(()),
        }
    }

    fn check_imports(&mut self, section: ImportSectionReader<'_>) -> Result<(), ModuleError> {
        let bounds = self.bounds;
        for import in section.into_imports() {
            let import = read(import)?;
            add("imports", &mut self.counts.imports, 1, bound!(bounds.imports))?;
            self.check_name(import.name)?;
            match import.ty {
                TypeRef::Table(table) => self.check_entries(table.initial)?,
                TypeRef::Memory(memory) => self.check_memory(&memory)?,
                _ => {}
            }
        }
        Ok(())
    }

    fn check_elements(&mut self, section: ElementSectionReader<'_>) -> Result<(), ModuleError> {
        let bounds = self.bounds;
        let segments = &mut self.counts.element_segments;
        add("element segments", segments, section.count(), bound!(bounds.element_segments))?;
        section.into_iter().try_for_each(|segment| {
            self.check_entries(u64::from(match read(segment)?.items {
                ElementItems::Functions(entries) => entries.count(),
                ElementItems::Expressions(_, entries) => entries.count(),
            }))
        })
    }

    fn check_table(&self, table: &Table<'_>) -> Result<(), ModuleError> {
        self.check_entries(table.ty.initial)?;
        match table.init {
            TableInit::RefNull => Ok(()),
            TableInit::Expr(_) => Err(ModuleError::Invalid {
                reason: "a table with an initial expression; function references are not supported".into(),
            }),
        }
    }

    fn check_entries(&self, entries: u64) -> Result<(), ModuleError> {
        let bounds = self.bounds;
        at_most("entries in a table", entries, bound!(bounds.table_entries))
    }

    fn check_name(&self, name: &str) -> Result<(), ModuleError> {
        let bounds = self.bounds;
        at_most("bytes in the name of an import or export", name.len() as u64, bound!(bounds.name_bytes))
    }

    fn check_memory(&self, memory: &MemoryType) -> Result<(), ModuleError> {
        if memory.memory64 || memory.shared {
            return Err(ModuleError::Invalid {
                reason: "64-bit and shared memories are not supported; build for wasm32 without threads"
                    .into(),
            });
        }
        let (page, bounds) = (1_u64 << memory.page_size_log2.unwrap_or(16), self.bounds);
        let bytes = memory.initial.saturating_mul(page);
        at_most("bytes of initial memory", bytes, bound!(bounds.memory_bytes))
    }

    fn check_body(&mut self, body: &FunctionBody<'_>) -> Result<(), ModuleError> {
        let (counts, bounds) = (&mut self.counts, self.bounds);
        let module = counts.core_modules;
        let start = body.range().start;
        let place = || format!(" in the function at offset {start:#x} of core module {module}");
        let within = |what, found, limit| at_most_in(what, found, limit, place);
        let size = body.as_bytes().len() as u64;
        counts.code_bytes += size;
        within("bytes of code", size, bound!(bounds.body_bytes))?;
        let mut locals = 0_u64;
        for group in read(body.get_locals_reader())? {
            locals += u64::from(read(group)?.0);
            within("locals", locals, bound!(bounds.locals))?;
        }
        let mut open = 0_u64;
        let mut operators = read(body.get_operators_reader())?;
        while !operators.eof() {
            match read(operators.read())? {
                Operator::Block { .. } | Operator::Loop { .. } | Operator::If { .. } => {
                    open += 1;
                    within("levels of nested blocks", open, bound!(bounds.nesting))?;
                }
                Operator::End => open = open.saturating_sub(1),
                Operator::BrTable { targets } => {
                    let targets = u64::from(targets.len());
                    within("targets of one branch table", targets, bound!(bounds.branch_targets))?;
                }
                _ => {}
            }
        }
        Ok(())
    }
}

/// Increases a count and checks it against its bound.
fn add(what: &'static str, count: &mut u64, more: u32, bound: Bound) -> Result<(), ModuleError> {
    *count += u64::from(more);
    at_most(what, *count, bound)
}

fn at_most(what: &'static str, found: u64, bound: Bound) -> Result<(), ModuleError> {
    at_most_in(what, found, bound, String::new)
}

/// Checks a count of a part of the module, whose `place` a fault states.
fn at_most_in(
    what: &'static str,
    found: u64,
    bound: Bound,
    place: impl FnOnce() -> String,
) -> Result<(), ModuleError> {
    let Bound { setting, limit } = bound;
    if found > limit {
        return Err(ModuleError::Gate { what, bound: setting, found, limit, place: place() });
    }
    Ok(())
}

fn read<T>(part: wasmparser::Result<T>) -> Result<T, ModuleError> {
    part.map_err(|error| invalid(&error))
}

fn invalid(error: &wasmparser::BinaryReaderError) -> ModuleError {
    ModuleError::Invalid { reason: penstock_types::text::printable(&error.to_string(), 500) }
}

#[cfg(test)]
#[path = "gate_tests.rs"]
mod tests;
