//! Non-resource paths: health, version, metrics, discovery, OpenAPI. Many of these are documents that are built once and cached.

use std::sync::Arc;

use hyper::header::HeaderValue;
use serde_json::{Value, json};

use crate::Server;
use crate::aggregator::listing::Group;
use crate::documents::Document;
use crate::limits::Seat;
use podwright_api::instruments::Format;
use podwright_api::{Status, User, process};

use super::negotiate::{Form, Wanted};
use super::paths::Route;
use super::query::Query;
use super::reply::{self, Reply};
use super::served::Served;
use super::written::{TREE, length_of};
use super::{Face, discovery, health, negotiate, openapi, profiles, zpages};

impl Face {
    /// Non-resource requests. Any authenticated user may make them, so they count against the limit of reads.
    pub(super) async fn other(
        &self,
        place: Option<Route>,
        path: &str,
        query: &Query,
        user: &User,
        pretty: Option<bool>,
        headers: &hyper::HeaderMap,
    ) -> Result<Reply, Status> {
        let Some(place) = place else { return Ok(reply::not_found()) };
        if let Route::Health(only) = place {
            return Ok(health::answer(&self.server, user, path, only.as_deref(), query).await);
        }
        if let Route::Profile(name) = place {
            // Profiles take long, and run one at a time.
            return Ok(profiles::answer(&self.server, path, name.as_deref(), query).await);
        }
        let mut seat = self.server.limiters.enter_to_read(user).await?;
        let clauses = negotiate::clauses(headers);
        // Discovery and version are JSON, whatever representation of objects is requested.
        let wanted = negotiate::wanted(headers, pretty, true).unwrap_or(Wanted::PLAIN);
        let json = Wanted { form: Form::Json, ..wanted };
        let host = headers.get(hyper::header::HOST).and_then(|host| host.to_str().ok()).unwrap_or("");
        let (server, aggregated) = (&*self.server, discovery::aggregated_version(&clauses));
        match place {
            Route::Resource(_) | Route::Health(_) | Route::Profile(_) => Ok(reply::not_found()),
            Route::Statusz => zpages::statusz(server, headers),
            Route::Flagz => zpages::flagz(server, headers),
            Route::Version => Ok(reply::value(200, &health::version(), &json)),
            Route::OpenIdConfiguration => Ok(reply::value(200, &server.openid_configuration(), &wanted)),
            Route::OpenIdKeys => {
                let keys = server.openid_keys().to_string();
                Ok(reply::typed(reply::full(keys), "application/jwk-set+json"))
            }
            Route::Metrics => {
                let format = Format::wanted(accept(headers));
                let (stored, size) = (server.cache.counts(), server.store.size().await);
                let expose = async { self.metrics.expose(stored, size, format) };
                let text = server.large.run(user, self.metrics.size(), expose).await;
                let plain = Wanted { gzip: false, pretty: false, ..json };
                self.send(user, &mut seat, &Document::of(text.into()), format.media_type(), &plain).await
            }
            Route::Slis => {
                // Health checks run for this request: nothing else probes the server.
                for of in ["livez", "readyz"] {
                    server.health(of, None, &[]).await;
                }
                let format = Format::wanted(accept(headers));
                let text = server.slis.expose(&process::start_metric(), format);
                Ok(reply::typed(reply::full(text), format.media_type()))
            }
            Route::OpenApiV2 => {
                let (document, media_type) = openapi::v2(server, user, &Served::now(server), &clauses).await?;
                let pretty = json.pretty && media_type == reply::JSON;
                self.send_named(user, &mut seat, &document, media_type, &Wanted { pretty, ..json }, headers).await
            }
            Route::OpenApiV3(None) => {
                let index = openapi::v3_index(server, user, &Served::now(server)).await?.to_string();
                self.send_named(user, &mut seat, &Document::of(index.into()), reply::JSON, &json, headers).await
            }
            Route::OpenApiV3(Some(of)) => {
                let Some(document) = openapi::v3(server, user, &Served::now(server), &of).await? else {
                    return Ok(reply::not_found());
                };
                let mut reply = self.send_named(user, &mut seat, &document, reply::JSON, &json, headers).await?;
                if query.first("hash") == Some(document.hash.as_str()) {
                    openapi::kept_for_good(&mut reply);
                }
                Ok(reply)
            }
            Route::Versions if aggregated.is_none() => Ok(reply::value(200, &discovery::versions(host), &wanted)),
            place => {
                let aggregated = aggregated.filter(|_| matches!(place, Route::Versions | Route::Groups));
                let served = Served::now(server);
                if !served.has(&place) {
                    return Ok(reply::not_found());
                }
                let of: Vec<_> = served.concerned(&place).collect();
                let make = || (discovered(&served, &place, aggregated).to_string() + "\n").into();
                let name = format!("discovery {place:?} {}", aggregated.unwrap_or(""));
                let document = served.document(server, user, &name, &of, make).await?;
                match aggregated {
                    Some(version) => {
                        let media_type = discovery::media_type(version);
                        self.send_named(user, &mut seat, &document, media_type, &json, headers).await
                    }
                    None => self.send(user, &mut seat, &document, reply::JSON, &wanted).await,
                }
            }
        }
    }

    /// Sends a document in the requested form. The request releases its seat while it waits for its user's other responses to be
    /// sent.
    async fn send(
        &self,
        user: &User,
        seat: &mut Option<Seat>,
        document: &Document,
        media_type: &'static str,
        wanted: &Wanted,
    ) -> Result<Reply, Status> {
        let (server, length) = (&self.server, document.bytes.len());
        let plain = wanted.form == Form::Json && !wanted.pretty;
        let size = if plain { 0 } else { length };
        let mut room = self.room(user, seat, length + TREE * size).await?;
        let _place = server.large.enter_part(user, size).await?;
        let mut reply = match plain {
            true if reply::is_compressed(length, wanted) => {
                reply::ready(200, server.zipped(document, user).await?, media_type, true)
            }
            true => reply::ready(200, document.bytes.clone(), media_type, false),
            false => server.large.run(user, size, async { reply::json(200, document.bytes.clone(), wanted) }).await,
        };
        if wanted.form == Form::Json {
            reply.headers_mut().insert(hyper::header::CONTENT_TYPE, HeaderValue::from_static(media_type));
        }
        room.shrink(length_of(&reply));
        reply.extensions_mut().insert(Arc::new(room));
        Ok(reply)
    }

    /// The same for a document that clients cache by its ETag: 304 if they have it.
    async fn send_named(
        &self,
        user: &User,
        seat: &mut Option<Seat>,
        document: &Document,
        media_type: &'static str,
        wanted: &Wanted,
        headers: &hyper::HeaderMap,
    ) -> Result<Reply, Status> {
        let reply = match reply::has(headers, &document.hash) {
            true => reply::not_modified(),
            false => self.send(user, seat, document, media_type, wanted).await?,
        };
        Ok(reply::tagged(reply, &document.hash))
    }
}

impl Server {
    /// The content of aggregated discovery at `/apis`.
    pub fn discovery(&self) -> Value {
        discovered(&Served::now(self), &Route::Groups, Some("v2"))
    }
}

/// A discovery document.
fn discovered(served: &Served, place: &Route, aggregated: Option<&'static str>) -> Value {
    let Served { kinds, groups, gathered, .. } = served;
    match (place, aggregated) {
        (place, Some(version)) => {
            discovery::aggregated(kinds, groups, gathered, version, matches!(place, Route::Versions))
        }
        (Route::Groups, None) => discovery::group_list(groups),
        (Route::Group(name), None) => served.group(name).map_or(Value::Null, discovery::group),
        (Route::GroupVersion(group, version), None) => discovery::resource_list(kinds, group, version),
        _ => json!({"paths": all_paths(groups)}),
    }
}

fn accept(headers: &hyper::HeaderMap) -> Option<&str> {
    headers.get(hyper::header::ACCEPT)?.to_str().ok()
}

/// The paths listed at `/`.
fn all_paths(groups: &[Group]) -> Vec<Value> {
    let fixed = [
        "/api",
        "/api/v1",
        "/apis",
        "/flagz",
        "/healthz",
        "/livez",
        "/metrics",
        "/metrics/slis",
        "/openapi/v2",
        "/openapi/v3",
        "/readyz",
        "/statusz",
    ];
    let mut all: Vec<String> = fixed.iter().map(|path| (*path).to_owned()).collect();
    for Group { name, versions } in groups.iter().filter(|group| !group.name.is_empty()) {
        all.push(format!("/apis/{name}"));
        all.extend(versions.iter().map(|listed| format!("/apis/{name}/{}", listed.version)));
    }
    all.push("/version".into());
    all.sort();
    all.into_iter().map(Value::from).collect()
}
