use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::bounds::{Capacity, ModuleRef, Name};
use super::reading::Suffix;
use super::source::{ListSource, Source};
use super::stage::{Settings, Stage, Wasm};
use super::{MAX_STAGES, Spec};
use crate::fault::{Pointer, SpecFault};
use crate::policy::{Concurrency, FailureLimit, OnError, Order};

/// Maximum number of routes around a stage.
pub const MAX_ROUTE_DEPTH: usize = 3;

/// Name of the path of all samples that no other path takes.
pub const ELSE: &str = "else";

/// Field that contains the answer of the module of a route.
pub const ROUTE_FIELD: &str = "route";

/// Sends each sample down one of several paths, and joins the paths behind them.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Route {
    /// Origin of the name of a sample's path.
    pub by: RouteBy,
    /// Paths by name, each a list of stages; an empty list passes samples on unchanged. A path takes the samples whose value is its name,
    /// as a text or as a whole number.
    pub paths: BTreeMap<Name, Vec<Stage>>,
    /// Path of all other samples; they fail when it is missing.
    #[serde(default, rename = "else", skip_serializing_if = "Option::is_none")]
    pub otherwise: Option<Vec<Stage>>,
    /// Name of the stage in statistics; its kind when missing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<Name>,
    /// Maximum number of items in the queue in front of each path, and in the queue after the stage.
    #[serde(default)]
    pub queue: Capacity,
    /// Order in which samples leave the paths. With `input`, all stages in the paths keep the order, too.
    #[serde(default)]
    pub order: Order,
    /// Handling of a sample without a path.
    #[serde(default)]
    pub on_error: OnError,
    /// Limit of samples without a path, beyond which the run fails; no limit when missing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_failures: Option<FailureLimit>,
}

/// Origin of the name of a sample's path.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum RouteBy {
    /// Field of the sample that contains the name.
    Field(Name),
    /// Module that runs before the route, with the settings of a stage `wasm`; it gives the name in the field `route`.
    Module(Box<Wasm>),
}

impl Route {
    pub(super) fn settings(&self) -> Settings<'_> {
        Settings {
            name: self.name.as_ref(),
            queue: self.queue,
            concurrency: Concurrency::default(),
            order: self.order,
            on_error: self.on_error,
            max_failures: self.max_failures,
        }
    }

    /// Field of a sample that contains the name of its path.
    pub fn field(&self) -> &str {
        match &self.by {
            RouteBy::Field(field) => field.as_str(),
            RouteBy::Module(_) => ROUTE_FIELD,
        }
    }

    /// Module that runs before the route, if there is one.
    pub fn module(&self) -> Option<&Wasm> {
        match &self.by {
            RouteBy::Field(_) => None,
            RouteBy::Module(wasm) => Some(wasm),
        }
    }

    /// Name of the stage of the route's module.
    pub(crate) fn module_name(&self) -> String {
        format!("{}.by", self.name.as_ref().map_or("route", Name::as_str))
    }

    /// Paths with their names, `else` last.
    pub fn all_paths(&self) -> impl Iterator<Item = (&str, &[Stage])> {
        let named = self.paths.iter().map(|(name, stages)| (name.as_str(), stages.as_slice()));
        named.chain(self.otherwise.as_deref().map(|stages| (ELSE, stages)))
    }

    /// Place of a path below the place of its route.
    pub(crate) fn place(path: &str, route: &Pointer) -> Pointer {
        if path == ELSE { route.key(ELSE) } else { route.key("paths").key(path) }
    }
}

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
        let sources: Vec<&Source> = match &self.source {
            Source::Mix(mix) => mix.sources.values().map(|part| &part.source).collect(),
            source => vec![source],
        };
        for source in sources {
            if let Source::List(ListSource { suffix: Suffix::Of(suffix), .. }) = source {
                found.push(&suffix.of);
            }
        }
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
