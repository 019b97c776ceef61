//! Walks the stages of a document, with those in routes.

use super::{ELSE, MAX_STAGES, ModuleRef, Route, Source, Spec, Stage, Wasm};
use crate::fault::{Pointer, SpecFault};

/// Maximum number of routes around a stage.
pub const MAX_ROUTE_DEPTH: usize = 3;

impl Spec {
    /// Settings of all modules that the document runs, in the order of the pipeline.
    pub fn modules(&self) -> Vec<&Wasm> {
        let mut found = Vec::new();
        self.visit(&mut |stage| match stage {
            Stage::Wasm(wasm) => found.push(wasm),
            Stage::Route(route) => found.extend(route.module()),
            _ => {}
        });
        found
    }

    /// Modules that the document names: those that it runs, and those whose files its source lists.
    pub fn named_modules(&self) -> Vec<&ModuleRef> {
        let mut found: Vec<&ModuleRef> = self.modules().into_iter().map(|wasm| &wasm.module).collect();
        found.extend(self.source.parts().into_iter().filter_map(Source::lists_files_of));
        found
    }

    /// Visits all stages of the document; a route before the stages of its paths.
    pub(crate) fn visit<'a>(&'a self, visitor: &mut impl FnMut(&'a Stage)) {
        fn visit<'a>(stages: &'a [Stage], visitor: &mut impl FnMut(&'a Stage)) {
            for stage in stages {
                visitor(stage);
                if let Stage::Route(route) = stage {
                    route.all_paths().for_each(|(_, stages)| visit(stages, visitor));
                }
            }
        }
        visit(&self.stages, visitor);
    }
}

/// Checks the depth of routes, the names of their paths, and the number of all stages together.
pub(super) fn check_routes(spec: &Spec) -> Vec<SpecFault> {
    let mut faults = Vec::new();
    let place = Pointer::ROOT.key("stages");
    let count = check_stages(&spec.stages, &place, 0, &mut faults);
    // Without a route, the number of stages was checked before.
    if faults.is_empty() && count > MAX_STAGES && count > spec.stages.len() {
        let found =
            format!("found {count} stages and paths, with those in routes; at most {MAX_STAGES} are allowed");
        faults.push(SpecFault::new(place, found));
    }
    faults
}

/// Returns the number of stages and of paths.
fn check_stages(stages: &[Stage], place: &Pointer, depth: usize, faults: &mut Vec<SpecFault>) -> usize {
    let mut count = stages.len();
    for (index, stage) in stages.iter().enumerate() {
        let Stage::Route(route) = stage else { continue };
        let place = place.index(index).key("route");
        if depth == MAX_ROUTE_DEPTH {
            let found =
                format!("found a route within {depth} others; at most {MAX_ROUTE_DEPTH} may be nested");
            faults.push(SpecFault::new(place, found).hint("put a second route behind the first one"));
            continue;
        }
        if route.paths.is_empty() {
            let fault = SpecFault::new(place.key("paths"), "found no path");
            faults.push(fault.hint("name at least one value, as in `{\"image\": []}`"));
        }
        if route.paths.keys().any(|name| name.as_str() == ELSE) {
            let fault = SpecFault::new(place.key("paths").key(ELSE), "no path may have the name `else`");
            faults.push(fault.hint("the member `else` of the route is the path of all other samples"));
        }
        count += usize::from(route.module().is_some());
        for (name, stages) in route.all_paths() {
            count += 1 + check_stages(stages, &Route::place(name, &place), depth + 1, faults);
        }
    }
    count
}
