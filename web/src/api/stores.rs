use axum::Json;
use penstock_server::{KeyQuery, StoreKeys, StoreSummary};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::app::App;
use crate::extract::{InPath, InQuery};
use crate::openapi::ApiRouter;
use crate::problem::ApiResult;

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

pub(super) fn routes(api: &mut ApiRouter) {
    api.tag("stores");
    api.route("GET /stores", "Names and kinds of the stores", list_stores);
    api.route("GET /stores/{store}/keys", "Some keys of a store", list_keys);
}

async fn list_stores(app: App) -> Json<StoreList> {
    Json(StoreList { items: app.runs.stores() })
}

async fn list_keys(
    app: App,
    InPath(path): InPath<StorePath>,
    InQuery(query): InQuery<KeyQuery>,
) -> ApiResult<Json<StoreKeys>> {
    Ok(Json(app.runs.store_keys(&path.store, &query.prefix, query.limit).await?))
}
