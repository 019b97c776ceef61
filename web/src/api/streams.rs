use aide::axum::ApiRouter;
use aide::axum::routing::get_with;
use axum::Json;
use axum::extract::State;
use penstock_stream::StreamAddress;

use super::runs::RunPath;
use crate::problem::ApiResult;
use crate::router::App;
use crate::take::InPath;

pub(super) fn routes() -> ApiRouter<App> {
    ApiRouter::new().api_route(
        "/runs/{id}/stream",
        get_with(show, |op| {
            op.id("show_stream").tag("runs").summary("Where the batches of a run with the consumer `stream` are to be had").description(
                "A Unix socket of the server's machine, and the secret that opens it to processes of the server's user. 409 for a run \
                 that has another consumer, waits, or is over.",
            )
        }),
    )
}

async fn show(State(app): State<App>, InPath(path): InPath<RunPath>) -> ApiResult<Json<StreamAddress>> {
    Ok(Json(app.runs.stream(&path.id).await?))
}
