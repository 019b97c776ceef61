//! Translates routes, with the stages in their paths.

use super::check::{Check, Stretch, Way, remedy};
use super::{Fields, Flow, PathPlan, RoutePlan, StageId, StageKind, StagePlan, Unit};
use crate::fault::{FaultKind, Pointer, SpecFault};
use crate::kinds::{Fails, Rules, Settings, Written};
use crate::policy::Order;
use crate::spec::{ELSE, Name, ROUTE_FIELD, Route, Spec, Stage, Wasm};

impl Check<'_> {
    /// Plans a route: its module, if it has one, then each path with a gate before it, then the join. Returns the flow and the fields
    /// behind it.
    pub(super) fn route(
        &mut self,
        route: &Route,
        place: &Pointer,
        stretch: &Stretch,
        index: usize,
        mut way: Way,
    ) -> Way {
        let keeps_order = stretch.keeps_order || route.order == Order::Input;
        let id = stretch.id(index, route.name.as_ref().map_or("route", Name::as_str));
        let number = self.routes;
        self.routes += 1;

        let first = self.planned.len();
        if let Some(wasm) = route.module() {
            let (stage, place) = (Stage::Wasm(wasm.clone()), place.key("by").key("module"));
            if wasm.name.is_some() {
                self.faults.fault(
                    place.key("name"),
                    "the module of a route has the name of the route",
                    "remove `name`",
                );
            }
            let id = |_: &str| stretch.id(index, &route.module_name());
            way = self.plain(&stage, &id, &place, Some(keeps_order), way);
        }
        let Way { flow: (flow, is_known), fields, giver } = way;
        if is_known && flow.unit != Unit::Samples {
            let found = format!("`route` takes samples, but {giver} gives {}", flow.unit.name());
            self.faults.fault(place.clone(), found, remedy(flow.unit, &[Unit::Samples]));
        }
        self.has_field(route, place, &fields);

        let samples = Flow::of_source(None);
        let names: Vec<String> = route.all_paths().map(|(name, _)| name.to_owned()).collect();
        let mut behind: Option<Fields> = None;
        for (index, (name, stages)) in route.all_paths().enumerate() {
            let gate = id.path(name);
            let path_place = Route::place(name, place);
            let path = StageKind::Path(PathPlan {
                route: number,
                index,
                value: (name != ELSE).then(|| name.to_owned()),
                field: route.field().to_owned(),
            });
            let settings = Settings::of_moving(None, route.queue);
            self.planned.push(StagePlan::new(gate.clone(), &path_place, path, &settings, Fails::Nothing));
            let inner = Stretch { gate: Some(gate), place: path_place, keeps_order };
            let start =
                Way { flow: (samples, true), fields: fields.clone(), giver: "the `route`".to_owned() };
            let end = self.stages(stages, &inner, start).fields;
            behind = Some(match behind {
                Some(behind) => behind.of_either(end),
                None => end,
            });
        }
        let holds = |stage: &StagePlan| stage.kind.rules().is_stateful();
        let plan = RoutePlan {
            route: number,
            field: route.field().to_owned(),
            paths: names,
            has_else: route.otherwise.is_some(),
            is_counted: !self.planned[first..].iter().any(holds),
        };
        let flow = Flow { unit: Unit::Samples, samples: 1, ..plan.gives(flow).0 };
        let order = if keeps_order { Order::Input } else { Order::Completion };
        let settings = Settings { order, ..route.settings() };
        let join = StagePlan::new(id, place, StageKind::Route(plan), &settings, route.fails());
        self.planned.push(StagePlan { flow, ..join });
        Way { flow: (flow, true), fields: behind.unwrap_or(fields), giver: "`route` before it".to_owned() }
    }

    /// Checks that samples may have the field that names their path.
    fn has_field(&mut self, route: &Route, place: &Pointer, fields: &Fields) {
        let field = route.field();
        if !fields.lacks(field) {
            return;
        }
        let by = place.key("by");
        let (place, hint) = match route.module() {
            None => {
                let near = fields.near(field);
                let hint = match near.trim_end() {
                    "" => "put a stage before it that makes the field, or use a source that has it",
                    near => near,
                };
                (by.key("field"), hint.to_owned())
            }
            Some(_) => (by.key("module"), format!("the module of a route gives the field `{ROUTE_FIELD}`")),
        };
        let found = format!("`route` needs the field `{field}`, but {}", fields.in_words());
        self.faults
            .push(SpecFault::new(place, found).of_kind(FaultKind::MissingField(field.to_owned())).hint(hint));
    }
}

impl Spec {
    /// Stage with this id, whose name is not compared. The module of a route has the name that it has in a plan.
    pub fn stage(&self, id: &StageId) -> Option<Stage> {
        let written = id.to_string();
        let mut parts = written.split('/');
        let mut stages = self.stages.as_slice();
        loop {
            let (position, name) = parts.next()?.split_once(':')?;
            let stage = stages.get(position.parse::<usize>().ok()?.checked_sub(1)?)?;
            let Stage::Route(route) = stage else {
                return parts.next().is_none().then(|| stage.clone());
            };
            let Some(path) = parts.next() else {
                let module = route.module().filter(|_| name == route.module_name());
                return Some(match module {
                    Some(wasm) => Stage::Wasm(Wasm { name: Name::new(name), ..wasm.clone() }),
                    None => stage.clone(),
                });
            };
            (_, stages) = route.all_paths().find(|(name, _)| *name == path)?;
        }
    }
}
