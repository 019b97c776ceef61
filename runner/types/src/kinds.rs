//! The kinds of stages: as written, as planned, and by name. Each kind is a file, which holds its settings, plan, rules and words.

mod aggregate;
mod collate;
mod disaggregate;
mod fetch;
mod route;
mod rules;
mod settings;
mod sleep;
mod transfer;
mod wasm;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::LazyLock;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use strum::{EnumDiscriminants, IntoStaticStr};

use self::disaggregate::DisaggregatePlan;
pub(crate) use self::rules::Written;
pub(crate) use self::settings::Settings;
use crate::fault::Pointer;
use crate::plan::Faults;
use crate::policy::OnError;
use crate::spec::Name;

pub use self::aggregate::{Aggregate, AggregatePlan};
pub use self::collate::{Collate, CollatePlan};
pub use self::disaggregate::Disaggregate;
pub use self::fetch::{Fetch, FetchPlan};
pub use self::route::{ELSE, PathPlan, ROUTE_FIELD, Route, RouteBy, RoutePlan};
pub use self::rules::{Batching, Fails, Memory, Moving, Recipe, Rules, Work};
pub use self::sleep::{Sleep, SleepOn, SleepPlan, SleepShape};
pub use self::transfer::{Device, Transfer};
pub use self::wasm::{Asset, Wasm, WasmPlan};

/// One stage: takes items from the queue before it and puts its results into the queue behind it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema, IntoStaticStr)]
#[serde(rename_all = "lowercase")]
#[strum(serialize_all = "lowercase")]
pub enum Stage {
    /// Collects samples into batches.
    Aggregate(Aggregate),
    /// Reads the object that each sample's key names.
    Fetch(Fetch),
    /// Splits batches into samples.
    Disaggregate(Disaggregate),
    /// Runs a WebAssembly module.
    Wasm(Wasm),
    /// Stacks the fields of the samples of a batch.
    Collate(Collate),
    /// Copies batches to the training device.
    Transfer(Transfer),
    /// Waits without changing its items, to try out the behaviour of a pipeline.
    Sleep(Sleep),
    /// Sends each sample down one of several paths.
    Route(Route),
}

/// Kind of a stage, with the settings specific to it.
#[derive(Clone, Debug, PartialEq, EnumDiscriminants)]
#[strum_discriminants(
    name(StageKindName),
    doc = "Kind of a stage without its settings, as named in documents.",
    derive(Serialize, Deserialize, JsonSchema, IntoStaticStr),
    serde(rename_all = "lowercase"),
    strum(serialize_all = "lowercase")
)]
pub enum StageKind {
    /// Collects samples into batches.
    Aggregate(AggregatePlan),
    /// Splits batches into samples.
    Disaggregate,
    /// Reads objects from a store.
    Fetch(FetchPlan),
    /// Runs a WebAssembly module.
    Wasm(WasmPlan),
    /// Stacks the samples of a batch.
    Collate(CollatePlan),
    /// Copies batches to a device.
    Transfer(Device),
    /// Waits without changing its items.
    Sleep(SleepPlan),
    /// Entry of a path of a route; not a kind of a document's stages.
    Path(PathPlan),
    /// Joins the paths of a route.
    Route(RoutePlan),
}

/// Members of the settings of each kind in documents, by the name of the kind.
static SETTINGS: LazyLock<BTreeMap<String, BTreeSet<String>>> = LazyLock::new(|| {
    let schema = schemars::schema_for!(Stage).to_value();
    let object = |value: &Value| value["properties"].as_object().cloned().unwrap_or_default();
    let kinds = schema["oneOf"].as_array().into_iter().flatten().flat_map(object);
    let members = |settings: Value| {
        let place = settings["$ref"].as_str().and_then(|place| schema.pointer(place.strip_prefix('#')?));
        place.map(object).unwrap_or_default().into_iter().map(|(member, _)| member).collect()
    };
    kinds.map(|(kind, settings)| (kind, members(settings))).collect()
});

/// True if stages of the kind have a setting `member` in documents; `None` for a name that is no kind.
pub(crate) fn has_setting(kind: &str, member: &str) -> Option<bool> {
    SETTINGS.get(kind).map(|settings| settings.contains(member))
}

impl StageKindName {
    /// True if stages of the kind have a setting `member` in documents.
    pub fn has_setting(self, member: &str) -> bool {
        has_setting(self.as_str(), member).unwrap_or(false)
    }

    /// Name of the kind in the document.
    pub fn as_str(self) -> &'static str {
        self.into()
    }
}

impl Stage {
    /// Kind of the stage, as written in the document.
    pub fn kind(&self) -> &'static str {
        self.into()
    }

    /// Name in the document; `None` when the stage is named after its kind or module.
    pub fn name(&self) -> Option<&Name> {
        self.written().settings().name
    }

    /// What can fail in the stage.
    pub fn fails(&self) -> Fails {
        self.written().fails()
    }

    /// True if the stage may be called `name` in dead letters. The name of a stage without a member `name` may depend on its module.
    pub fn may_be_called(&self, name: &str) -> bool {
        match self.name() {
            Some(own) => own.as_str() == name,
            None => self.written().may_be_called(name, self.kind()),
        }
    }

    /// The stage in a run over its dead letters, in which no number of failures is too high. `store` is that of the source, which the dead
    /// letters replace.
    #[must_use]
    pub fn for_replay(&self, on_error: OnError, store: Option<&Name>) -> Self {
        let mut stage = self.clone();
        stage.written_mut().prepare_for_replay(on_error, store);
        stage
    }

    /// Effect on the batches in which later samples stand.
    pub fn batching(&self) -> Batching {
        self.written().batching()
    }

    pub(crate) fn written(&self) -> &dyn Written {
        match self {
            Self::Aggregate(stage) => stage,
            Self::Fetch(stage) => stage,
            Self::Disaggregate(stage) => stage,
            Self::Wasm(stage) => stage,
            Self::Collate(stage) => stage,
            Self::Transfer(stage) => stage,
            Self::Sleep(stage) => stage,
            Self::Route(stage) => stage,
        }
    }

    fn written_mut(&mut self) -> &mut dyn Written {
        match self {
            Self::Aggregate(stage) => stage,
            Self::Fetch(stage) => stage,
            Self::Disaggregate(stage) => stage,
            Self::Wasm(stage) => stage,
            Self::Collate(stage) => stage,
            Self::Transfer(stage) => stage,
            Self::Sleep(stage) => stage,
            Self::Route(stage) => stage,
        }
    }

    /// Plans a stage that is no route.
    pub(crate) fn plan(&self, faults: &mut Faults<'_>, place: &Pointer) -> StageKind {
        match self {
            Self::Aggregate(stage) => StageKind::Aggregate(stage.plan()),
            Self::Fetch(stage) => StageKind::Fetch(stage.plan(faults, place)),
            Self::Disaggregate(_) => StageKind::Disaggregate,
            Self::Wasm(stage) => StageKind::Wasm(stage.plan(faults, place)),
            Self::Collate(stage) => StageKind::Collate(stage.plan(faults, place)),
            Self::Transfer(stage) => StageKind::Transfer(stage.plan(faults, place)),
            Self::Sleep(stage) => StageKind::Sleep(stage.plan()),
            Self::Route(_) => unreachable!("routes are planned with the stages in their paths"),
        }
    }
}

impl StageKind {
    /// Rules of the kind, with these settings.
    pub fn rules(&self) -> &dyn Rules {
        match self {
            Self::Aggregate(plan) => plan,
            Self::Disaggregate => &DisaggregatePlan,
            Self::Fetch(plan) => plan,
            Self::Wasm(plan) => plan,
            Self::Collate(plan) => plan,
            Self::Transfer(device) => device,
            Self::Sleep(plan) => plan,
            Self::Path(plan) => plan,
            Self::Route(plan) => plan,
        }
    }

    /// Name of the kind, as in the document.
    pub fn name(&self) -> StageKindName {
        self.into()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::{SETTINGS, Work, has_setting};
    use crate::plan::{Flow, Known, Plan, Unit};
    use crate::spec::Spec;

    #[test]
    fn settings_of_kinds_are_those_of_the_schema() {
        let [with_order, with_store] = ["order", "store"].map(|member| {
            SETTINGS.keys().filter(|kind| has_setting(kind, member) == Some(true)).collect::<Vec<_>>()
        });
        assert_eq!(with_order, ["collate", "fetch", "route", "sleep", "transfer", "wasm"]);
        assert_eq!(with_store, ["fetch"]);
        assert_eq!(has_setting("aggregate", "order"), Some(false));
        assert_eq!(has_setting("disaggregate", "order"), Some(false));
        assert_eq!(has_setting("shuffle", "order"), None);
    }

    /// All kinds with their rules, so that what differs is seen in one place.
    #[test]
    fn kinds_and_their_rules() {
        let modules = ["sample", "batch", "stateful"].map(|mode| {
            let manifest = json!({ "name": mode, "version": "1.0.0", "mode": mode });
            let manifest = serde_json::from_value(manifest).unwrap();
            (
                mode.to_owned(),
                crate::plan::ModuleFacts { name: mode.to_owned(), digest: "sha256:0".to_owned(), manifest },
            )
        });
        let stages = json!([
            { "fetch": { "store": "s" } },
            { "wasm": { "module": "sample" } },
            { "wasm": { "module": "stateful" } },
            { "sleep": { "mean_ms": 1 } },
            { "sleep": { "mean_ms": 1, "on": "thread", "fail_rate": 0.1 } },
            { "route": { "by": { "field": "f" }, "paths": { "a": [] } } },
            { "aggregate": { "size": 2 } },
            { "wasm": { "module": "batch" } },
            { "disaggregate": {} },
            { "aggregate": { "size": 2 } },
            { "collate": {} },
            { "transfer": { "device": "host" } },
            { "transfer": { "device": "cuda:0" } },
        ]);
        let document = json!({ "source": { "range": { "count": 4 } }, "stages": stages });
        let spec = Spec::from_value(document).unwrap();
        let known = Known { modules: &modules.into(), names: &[], fields: None, stores: None };
        let plan = Plan::draft(&spec, known).plan;
        let rows = plan.stages.iter().map(|stage| {
            let rules = stage.kind.rules();
            assert_eq!(rules.moving().is_some(), rules.work() == Work::Moving, "{}", stage.id);
            let takes: Vec<&str> = rules.takes().iter().map(|unit| unit.name()).collect();
            let given = Flow { unit: rules.takes()[0], ..Flow::of_source(Some(4)) };
            let (given, is_certain) = rules.gives(given);
            let is = |holds: bool, word: &'static str| if holds { word } else { "" };
            let properties = [
                is(rules.is_stateful(), "stateful"),
                is(rules.may_grow(), "may grow"),
                is(rules.keeps_size(), "keeps size"),
                is(rules.keeps_count(), "keeps count"),
                is(rules.store().is_some(), "has a store"),
                is(rules.limits_in_words().is_some(), "has limits"),
                is(rules.misfit_in_route(true).is_none(), "fits a route that keeps order"),
            ];
            let properties: Vec<&str> = properties.into_iter().filter(|word| !word.is_empty()).collect();
            let certain = if is_certain { "" } else { " (as given)" };
            let unit: Unit = given.unit;
            format!(
                "{:<14} {:?}; takes {}; gives {}{certain}; fails: {:?}; {}; {:?}; {:?}",
                stage.id.to_string(),
                rules.work(),
                takes.join(", "),
                unit.name(),
                stage.fails,
                properties.join(", "),
                rules.recipe(),
                rules.memory(),
            )
        });
        insta::assert_snapshot!(rows.collect::<Vec<_>>().join("\n"));
    }
}
