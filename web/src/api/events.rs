use std::collections::BTreeSet;
use std::convert::Infallible;
use std::future::ready;
use std::time::Duration;

use axum::http::HeaderMap;
use axum::response::sse::{Event as SentEvent, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use futures::stream::{self, Stream, StreamExt};
use penstock_server::{Event, Events, HeldAmount, RunGap, SerializedEvent, parse_event_id};
use penstock_types::run::RunId;
use penstock_types::series::Level;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::json;

use crate::app::App;
use crate::extract::InQuery;
use crate::openapi::ApiRouter;
use crate::problem::{ApiError, ApiResult};

/// Time without an event after which the stream sends a `ping`.
const KEEP_ALIVE: Duration = Duration::from_secs(15);
/// Memory of the events that a stream has taken and its client has not read, in bytes.
const STREAM_BYTES: u64 = 128 << 10;
/// Number of `sample` events of a run per second: one for each row of the finest level.
const HZ: u64 = 1_000_000_000 / Level::Finest.width();

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct EventQuery {
    /// Ids of the runs to watch, separated by commas; 32 at most. If empty, events report only changes of the list of runs.
    #[serde(default)]
    runs: String,
    /// Id of the last event that was received, for clients that cannot send the header `Last-Event-ID`.
    last: Option<String>,
}

/// Event of the stream: the name in its `event:` line, and the JSON in its `data:` line.
#[derive(JsonSchema)]
#[schemars(tag = "event", content = "data", rename_all = "lowercase")]
#[expect(dead_code, clippy::large_enum_variant, reason = "used for its schema only")]
enum LiveEvent {
    Hello(Hello),
    Ping(Ping),
    #[schemars(untagged)]
    OfRun(Event),
}

/// First event of a stream.
#[derive(Serialize, JsonSchema)]
struct Hello {
    /// Identifier of this start of the server; the first part of event ids.
    epoch: String,
    /// Number of `sample` events of a run per second.
    hz: u64,
}

/// Keep-alive event, without fields.
#[derive(JsonSchema)]
struct Ping {}

pub(super) fn routes(api: &mut ApiRouter) {
    api.tag("live");
    let mut operation = api.route("GET /events", events);
    let event = operation.schema::<LiveEvent>();
    operation
        .summary("Stream live events, as `text/event-stream`")
        .description(
            "The first event is `hello`. Watched runs then send `sample` four times a second, `log`, `state`, `gap` if events \
             were lost, and `end` once the whole run is stored. `runs` reports every run that was submitted or changed its \
             state. `ping` follows 15 s without an event. An event id is `epoch-number`; with `Last-Event-ID`, the events missed \
             in the last minute are sent first.",
        )
        // OpenAPI 3.2 calls this `itemSchema`; 3.1 can describe the items of a stream only by an extension.
        .response(
            200,
            "Events, each in the form of `LiveEvent`.".into(),
            json!({ "text/event-stream": { "schema": { "type": "string" }, "x-itemSchema": event } }),
        );
}

async fn events(app: App, InQuery(query): InQuery<EventQuery>, headers: HeaderMap) -> ApiResult<Response> {
    let client = app.runs.client();
    let (place, memory) = (app.streams.part(client), app.answers.part(client));
    if !(place.set(1) && memory.set(STREAM_BYTES)) {
        let detail = "this and other clients have too many live streams or unread answers; close one, or try again later";
        return Err(ApiError::busy(detail, 5));
    }
    let runs = watched(&query.runs);
    let header = headers.get("last-event-id").and_then(|id| id.to_str().ok()).map(str::to_owned);
    let last = header.or(query.last);
    let epoch = app.runs.epoch().to_owned();
    let seen = last.as_deref().and_then(parse_event_id);
    // An id of this epoch with a number that was never issued is treated like an id of another epoch.
    let is_ours = |seen_in: &str, number: u64| seen_in == epoch && number <= app.runs.last_event();
    let since = seen.filter(|(seen_in, number)| is_ours(seen_in, *number)).map(|(_, number)| number);
    let events = app.runs.events(&runs, since).await?;
    let hello = serde_json::to_string(&Hello { epoch: epoch.clone(), hz: HZ })?;
    let mut first = vec![SentEvent::default().event("hello").data(hello)];
    if last.is_some() && since.is_none() {
        // The client received its last event from an earlier start of the server, so all watched runs have gaps.
        first.extend(runs.into_iter().map(|run| sent(&SerializedEvent::from(&Event::Gap(RunGap { run })))));
    }
    let first = stream::iter(first.into_iter().map(Ok::<_, Infallible>));
    let rest = live(events, epoch, [place, memory]).take_until(app.ending.cancelled_owned());
    // The stream ends when the token or session that opened it becomes invalid.
    let rest = rest.take_while(move |_| ready(app.guard.caller(&headers).is_ok()));
    let keep_alive =
        KeepAlive::new().interval(KEEP_ALIVE).event(SentEvent::default().event("ping").data("{}"));
    Ok(Sse::new(first.chain(rest)).keep_alive(keep_alive).into_response())
}

fn watched(ids: &str) -> Vec<RunId> {
    let ids: BTreeSet<&str> = ids.split(',').filter(|id| !id.is_empty()).collect();
    ids.into_iter().map(RunId::from).collect()
}

fn live(
    events: Events,
    epoch: String,
    held: [HeldAmount; 2],
) -> impl Stream<Item = Result<SentEvent, Infallible>> {
    let next = move |(mut events, epoch, held): (Events, String, [HeldAmount; 2])| async move {
        let batch = events.next().await?;
        let batch: Vec<_> =
            batch.iter().map(|(number, event)| Ok(sent(event).id(format!("{epoch}-{number}")))).collect();
        Some((stream::iter(batch), (events, epoch, held)))
    };
    stream::unfold((events, epoch, held), next).flatten()
}

fn sent(event: &SerializedEvent) -> SentEvent {
    SentEvent::default().event(event.name).data(&event.data)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_that_is_named_twice_is_watched_once() {
        assert_eq!(watched("b,a,,b,"), ["a", "b"].map(RunId::from));
        assert!(watched("").is_empty());
    }
}
