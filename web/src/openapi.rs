//! The OpenAPI document, collected while routes are added: parameters, bodies and responses come from the types in a
//! handler's signature.
//!
//! Schemas of OpenAPI 3.1 are JSON Schema 2020-12, and `schemars` derives a schema for every type on the wire, so the schemas are
//! included unchanged. `utoipa` was rejected: it needs a second derive on each of these types, and its schema model loses `const`
//! and boolean schemas.

use std::any::type_name;
use std::net::IpAddr;

use axum::extract::{ConnectInfo, Request};
use axum::handler::Handler;
use axum::http::{HeaderMap, Method};
use axum::middleware::{Next, from_fn};
use axum::response::{NoContent, Response};
use axum::routing::{MethodFilter, on};
use axum::{Extension, Json, Router};
use schemars::generate::SchemaSettings;
use schemars::{JsonSchema, SchemaGenerator};
use serde_json::{Value, json};

use crate::access::{Caller, Guarded, Role};
use crate::app::App;
use crate::problem::{ApiResult, Problem};

const PREFIX: &str = "/api/v1";
const SCHEMAS: &str = "#/components/schemas/";

/// Routes of the API, and the OpenAPI document that is collected from them.
pub(crate) struct ApiRouter {
    router: Router<App>,
    paths: Value,
    schemas: SchemaGenerator,
    tag: &'static str,
}

/// Operation of the document, to which descriptions, parameters and responses can be added.
pub(crate) struct Operation<'a> {
    fields: &'a mut Value,
    schemas: &'a mut SchemaGenerator,
}

/// Part of a request that a handler takes as an argument.
pub(crate) trait Input {
    fn describe(_: &mut Operation<'_>) {}
}

/// Response of a handler. `Json` is no [`Input`]: bodies arrive through `Sent`, which limits them.
pub(crate) trait Output {
    fn describe(_: &mut Operation<'_>) {}
}

/// Handler whose signature describes its operation.
pub(crate) trait Described<Arguments> {
    fn describe(operation: &mut Operation<'_>);
}

impl ApiRouter {
    pub(crate) fn new() -> Self {
        let settings = SchemaSettings::draft2020_12()
            .with(|settings| settings.definitions_path = SCHEMAS.trim_start_matches('#').into());
        Self { router: Router::new(), paths: json!({}), schemas: settings.into_generator(), tag: "" }
    }

    /// Sets the tag of the operations that are added next.
    pub(crate) fn tag(&mut self, tag: &'static str) {
        self.tag = tag;
    }

    /// Adds an operation, e.g. `GET /runs`. Its id is the name of the handler. `GET` requires the role `read`, `POST` the role
    /// `run`, and every other method the role `admin`.
    pub(crate) fn route<H, T, A>(&mut self, place: &str, handler: H) -> Operation<'_>
    where
        H: Handler<T, App> + Described<A>,
        T: 'static,
    {
        let role = match place.split_once(' ') {
            Some(("GET", _)) => Role::Read,
            Some(("POST", _)) => Role::Run,
            _ => Role::Admin,
        };
        self.route_for(Some(role), place, handler)
    }

    /// Adds an operation that requires at least this role; `None` also admits clients without a token.
    pub(crate) fn route_for<H, T, A>(&mut self, role: Option<Role>, place: &str, handler: H) -> Operation<'_>
    where
        H: Handler<T, App> + Described<A>,
        T: 'static,
    {
        let (method, path) = place.split_once(' ').expect("a method and a path");
        let path = format!("{PREFIX}{path}");
        // The format of `type_name` is not guaranteed; a change of it would show up as a difference in the committed document.
        let id = type_name::<H>().rsplit("::").next().expect("a path has a last part");
        let fields = &mut self.paths[&path][method.to_ascii_lowercase()];
        *fields = json!({ "tags": [self.tag], "summary": "", "operationId": id, "responses": {} });
        match role {
            Some(role) => fields["x-role"] = role.name().into(),
            None => fields["security"] = json!([{}]),
        }
        let method = method.parse().ok().and_then(|method: Method| MethodFilter::try_from(method).ok());
        let guarded = Guarded { role, action: id };
        let enter = from_fn(move |request: Request, next: Next| guarded.enter(request, next));
        let route = on(method.expect("a method of HTTP"), handler).route_layer(enter);
        self.router = std::mem::take(&mut self.router).route(&path, route);
        let mut operation = Operation { fields, schemas: &mut self.schemas };
        H::describe(&mut operation);
        let problem = operation.schemas.subschema_for::<Problem>();
        operation.fields["responses"]["default"] = json!({
            "description": "Details of the error.",
            "content": { "application/problem+json": { "schema": problem } },
        });
        operation
    }

    /// Returns the routes, and the OpenAPI document that describes them.
    pub(crate) fn finish(mut self) -> (Router<App>, Value) {
        let document = json!({
            "openapi": "3.1.0",
            "info": {
                "title": "Penstock",
                "description": "Upload stage modules, run pipelines, and see what limits them.",
                "version": env!("CARGO_PKG_VERSION"),
            },
            "paths": self.paths,
            "components": {
                "schemas": self.schemas.take_definitions(true),
                "securitySchemes": { "token": {
                    "type": "http",
                    "scheme": "bearer",
                    "description": "The server's token. A browser exchanges it for a cookie at `/api/v1/session`.",
                } },
            },
            "security": [{ "token": [] }],
        });
        (self.router, document)
    }
}

impl Operation<'_> {
    pub(crate) fn summary(&mut self, text: &str) -> &mut Self {
        self.fields["summary"] = text.into();
        self
    }

    pub(crate) fn description(&mut self, text: &str) -> &mut Self {
        self.fields["description"] = text.into();
        self
    }

    pub(crate) fn answer<T: JsonSchema>(&mut self, status: u16) -> &mut Self {
        let schema = self.schemas.subschema_for::<T>();
        let description = self.about(schema.as_value());
        self.response(status, description, json!({ "application/json": { "schema": schema } }))
    }

    /// Adds a response; `content` maps media types to schemas, and is `null` for a response without a body.
    pub(crate) fn response(&mut self, status: u16, description: Value, content: Value) -> &mut Self {
        let response = &mut self.fields["responses"][status.to_string()];
        *response = json!({ "description": description });
        if !content.is_null() {
            response["content"] = content;
        }
        self
    }

    /// Adds each field of `T` as a parameter.
    pub(crate) fn parameters<T: JsonSchema>(&mut self, place: &str) {
        let schema = T::json_schema(self.schemas);
        let required = schema.get("required").and_then(Value::as_array);
        let members = schema.get("properties").and_then(Value::as_object);
        for (name, member) in members.into_iter().flatten() {
            let mut member = member.clone();
            let description = member.as_object_mut().and_then(|member| member.remove("description"));
            // A parameter is present or absent; it cannot be `null`.
            if let Some([kind, ..]) = member["type"].as_array().map(Vec::as_slice) {
                member["type"] = kind.clone();
            }
            // The default of an optional field (`null` or a list) is not a valid value of a parameter.
            if let Some(member) = member.as_object_mut() {
                member
                    .retain(|keyword, value| keyword != "default" || !(value.is_null() || value.is_array()));
            }
            let is_required = required.is_some_and(|required| required.iter().any(|other| other == name));
            self.parameter(json!({
                "in": place, "name": name, "description": description, "required": is_required, "schema": member,
            }));
        }
    }

    pub(crate) fn parameter(&mut self, parameter: Value) -> &mut Self {
        match self.fields["parameters"].as_array_mut() {
            Some(parameters) => parameters.push(parameter),
            None => self.fields["parameters"] = json!([parameter]),
        }
        self
    }

    pub(crate) fn json_body<T: JsonSchema>(&mut self) {
        let schema = self.schemas.subschema_for::<T>();
        let description = self.about(schema.as_value());
        self.body("application/json", schema.into());
        self.fields["requestBody"]["description"] = description;
    }

    pub(crate) fn body(&mut self, content_type: &str, schema: Value) {
        self.fields["requestBody"] =
            json!({ "content": { content_type: { "schema": schema } }, "required": true });
    }

    /// Adds the schema of `T` to the document; returns a reference to it.
    pub(crate) fn schema<T: JsonSchema>(&mut self) -> Value {
        self.schemas.subschema_for::<T>().into()
    }

    /// Returns the description of a schema, or of the schema that the `$ref` of it names.
    fn about(&self, schema: &Value) -> Value {
        let name = schema["$ref"].as_str().and_then(|target| target.strip_prefix(SCHEMAS));
        let schema = name.and_then(|name| self.schemas.definitions().get(name)).unwrap_or(schema);
        schema.get("description").cloned().unwrap_or_else(|| "".into())
    }
}

impl Input for App {}
impl Input for Extension<Caller> {}
impl Input for ConnectInfo<IpAddr> {}
impl Input for HeaderMap {}

/// A plain `Response` has no type for a schema; the route adds a description of the response.
impl Output for Response {}

impl<T: JsonSchema> Output for Json<T> {
    fn describe(operation: &mut Operation<'_>) {
        operation.answer::<T>(200);
    }
}

impl Output for NoContent {
    fn describe(operation: &mut Operation<'_>) {
        operation.response(204, "no content".into(), Value::Null);
    }
}

impl<H, T: Output> Output for (H, T) {
    fn describe(operation: &mut Operation<'_>) {
        T::describe(operation);
    }
}

impl<T: Output> Output for ApiResult<T> {
    fn describe(operation: &mut Operation<'_>) {
        T::describe(operation);
    }
}

macro_rules! described {
    ($($argument:ident)*) => {
        impl<F, R, $($argument: Input),*> Described<($($argument,)*)> for F
        where
            F: Fn($($argument),*) -> R,
            R: Future<Output: Output>,
        {
            fn describe(operation: &mut Operation<'_>) {
                $($argument::describe(operation);)*
                R::Output::describe(operation);
            }
        }
    };
}
described!();
described!(A);
described!(A B);
described!(A B C);
described!(A B C D);
