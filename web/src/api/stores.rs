use aide::axum::ApiRouter;
use aide::axum::routing::get_with;
use axum::Json;
use axum::extract::State;
use penstock_server::{MAX_KEYS, StoreKeys, StoreSummary};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::problem::ApiResult;
use crate::router::App;
use crate::take::{InPath, InQuery, Limit};

/// The stores that pipelines may name.
#[derive(Serialize, JsonSchema)]
struct StoreList {
    /// By name; where they are and who may read them is the operator's matter.
    items: Vec<StoreSummary>,
}

#[derive(Deserialize, JsonSchema)]
struct StorePath {
    /// The store's name.
    store: String,
}

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct KeyQuery {
    /// What keys have to start with.
    #[serde(default)]
    prefix: String,
    /// Most keys; 100 when missing, 1000 at most.
    limit: Option<Limit<MAX_KEYS>>,
}

pub(super) fn routes() -> ApiRouter<App> {
    ApiRouter::new()
        .api_route(
            "/stores",
            get_with(list, |op| op.id("list_stores").tag("stores").summary("Names and kinds of the stores")),
        )
        .api_route(
            "/stores/{store}/keys",
            get_with(keys, |op| op.id("list_keys").tag("stores").summary("Some keys of a store")),
        )
}

async fn list(State(app): State<App>) -> Json<StoreList> {
    Json(StoreList { items: app.runs.stores() })
}

async fn keys(
    State(app): State<App>,
    InPath(path): InPath<StorePath>,
    InQuery(query): InQuery<KeyQuery>,
) -> ApiResult<Json<StoreKeys>> {
    Ok(Json(app.runs.store_keys(&path.store, &query.prefix, query.limit.map(Limit::get)).await?))
}
