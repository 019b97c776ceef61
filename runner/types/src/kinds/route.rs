use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::Stage;
use super::rules::{Batching, Fails, Moving, Recipe, Rules, Work, Written};
use super::settings::Settings;
use super::wasm::Wasm;
use crate::fault::{Pointer, listed};
use crate::plan::Flow;
use crate::policy::{Concurrency, FailureLimit, OnError, Order};
use crate::spec::{Capacity, Name};

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

/// Gate of a path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PathPlan {
    /// Number of the route in the plan, from 0.
    pub route: usize,
    /// Position among the paths of the route, from 0.
    pub index: usize,
    /// Name of the path, which is the value of its samples' field; `None` for the path of all other samples.
    pub value: Option<String>,
    /// Field of the samples that contains the name of their path.
    pub field: String,
}

/// Join of a route.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RoutePlan {
    /// Number of the route in the plan, from 0.
    pub route: usize,
    /// Field of the samples that contains the name of their path.
    pub field: String,
    /// Names of the paths, in the order of their gates; the last one is `else` if `has_else` is set.
    pub paths: Vec<String>,
    /// Set if one of the paths takes all other samples; otherwise, these samples fail.
    pub has_else: bool,
    /// Set if each sample that enters the paths also leaves them, unless it fails, is dropped or fans out.
    pub is_counted: bool,
}

impl Route {
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

impl Written for Route {
    fn settings(&self) -> Settings<'_> {
        Settings {
            name: self.name.as_ref(),
            queue: self.queue,
            concurrency: Concurrency::default(),
            order: self.order,
            on_error: self.on_error,
            max_failures: self.max_failures,
        }
    }

    fn stores(&self) -> Vec<&Name> {
        self.module().map(Wasm::stores).unwrap_or_default()
    }

    fn fails(&self) -> Fails {
        if self.otherwise.is_some() { Fails::Nothing } else { Fails::OfARoute }
    }

    // Samples without a path are not replayed.
    fn prepare_for_replay(&mut self, _on_error: OnError, _store: Option<&Name>) {}

    // A route takes single samples.
    fn batching(&self) -> Batching {
        Batching::Ends
    }
}

impl Rules for PathPlan {
    fn work(&self) -> Work {
        Work::Moving
    }

    fn moving(&self) -> Option<Moving> {
        Some(Moving::Gate { route: self.route })
    }

    fn gives(&self, before: Flow) -> (Flow, bool) {
        // The number of samples with this value is not known.
        (Flow { epoch: None, ..before }, true)
    }

    fn in_words(&self) -> String {
        match &self.value {
            Some(value) => format!("takes the samples whose field `{}` is `{value}`", self.field),
            None => "takes all other samples".to_owned(),
        }
    }

    fn keeps_count(&self) -> bool {
        false
    }
}

impl Rules for RoutePlan {
    fn work(&self) -> Work {
        Work::Moving
    }

    fn moving(&self) -> Option<Moving> {
        Some(Moving::Join { route: self.route })
    }

    /// Items behind the join, given those before the paths.
    fn gives(&self, before: Flow) -> (Flow, bool) {
        (Flow { epoch: before.epoch.filter(|_| self.is_counted), ..before }, true)
    }

    fn recipe(&self) -> Recipe<'_> {
        Recipe { has_order: true, ..Recipe::default() }
    }

    fn in_words(&self) -> String {
        format!("joins the paths {}", listed(self.paths.iter().map(String::as_str)))
    }

    fn keeps_count(&self) -> bool {
        false
    }

    fn abreast(&self, _concurrency: u32) -> u32 {
        self.paths.len() as u32
    }
}
