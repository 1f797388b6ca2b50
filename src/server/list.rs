//! The list verb: selectors, pages of one revision, and resourceVersion semantics.

use std::sync::Arc;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use bytes::Bytes;
use serde::{Deserialize, Serialize};

use podwright_api::{Kind, Response, Status, request};
use podwright_store::{PAGE_BYTES, Range, Revision};

use super::cache::item::Item;
use super::encryption::unopened;
use super::large::give_way;
use super::metrics::METRICS;
use super::resolved_request::ResolvedRequest;
use super::watch::selection::Selection;
use super::{Server, answers, large, store_error};

/// How many entries of an old revision are read at a time.
const CHUNK: usize = 500;

/// Yields after this many lookups of labels and fields.
const TURN: usize = 64 << 10;

/// The position of the next page; the `continue` of a list, opaque to clients.
#[derive(Serialize, Deserialize)]
struct Continue {
    #[serde(rename = "rv")]
    revision: Revision,
    /// The last key of the previous page.
    #[serde(rename = "start")]
    after: String,
}

/// The `resourceVersion` of a read, `None` if unset.
pub(super) fn revision_option(call: &ResolvedRequest) -> Result<Option<Revision>, Status> {
    match call.options.resource_version.as_deref() {
        None | Some("") => Ok(None),
        Some(text) => match text.parse() {
            Ok(revision) => Ok(Some(revision)),
            Err(_) => Err(Status::bad_request(format!("Invalid value: \"{text}\": resourceVersion is not a number"))),
        },
    }
}

/// The prefix of the keys that a selection can match.
pub(super) fn prefix(kind: &Kind, selection: &Selection) -> String {
    match &selection.namespace {
        Some(namespace) => format!("{}{namespace}/", kind.prefix()),
        None => kind.prefix(),
    }
}

/// A page being built: the matches, and whether there are more.
#[derive(Default)]
struct PartialPage {
    items: Vec<Bytes>,
    /// The key of the last item.
    last: String,
    more: bool,
    /// How many follow, if known.
    remaining: Option<u64>,
}

impl Server {
    pub(super) async fn list(&self, call: &ResolvedRequest) -> Result<Response, Status> {
        let selection = Selection::of(call)?;
        let limit = usize::try_from(call.options.limit.unwrap_or(0)).unwrap_or(usize::MAX);
        let asked = revision_option(call)?;
        let exact = match call.options.resource_version_match.as_deref() {
            None | Some("") => false,
            Some(_) if asked.is_none() => {
                return Err(Status::bad_request(
                    "resourceVersionMatch is forbidden unless resourceVersion is provided",
                ));
            }
            Some("Exact") if asked == Some(0) => {
                return Err(Status::bad_request(
                    "resourceVersionMatch \"exact\" is forbidden for resourceVersion \"0\"",
                ));
            }
            Some("Exact") => true,
            Some("NotOlderThan") => false,
            Some(other) => {
                let why = format!("resourceVersionMatch: Unsupported value: \"{other}\": supported values: ");
                return Err(Status::bad_request(why + "\"Exact\", \"NotOlderThan\""));
            }
        };

        let (found, revision) = match call.options.continue_token.as_deref().filter(|token| !token.is_empty()) {
            Some(_) if asked.is_some_and(|revision| revision != 0) => {
                return Err(Status::bad_request("specifying resource version is not allowed when using continue"));
            }
            Some(token) => {
                let token = decode_token(token)?;
                let found = self.list_at(call, &selection, token.revision, Some(token.after), limit).await?;
                (found, token.revision)
            }
            None if exact => {
                let revision = asked.unwrap_or_default();
                (self.list_at(call, &selection, revision, None, limit).await?, revision)
            }
            None => {
                match asked {
                    None => self.cache.fresh().await?,
                    Some(revision) => self.shows(revision).await?,
                }
                self.list_now(call, &selection, limit).await?
            }
        };
        Ok(respond(call.kind, found, revision))
    }

    /// Waits until the cache shows a revision that a client named, which may never come.
    pub(super) async fn shows(&self, revision: Revision) -> Result<(), Status> {
        match self.cache.revision() >= revision {
            true => Ok(()),
            // On the heap, as it is rare: it would enlarge every request's stack.
            false => Box::pin(self.away.wait_for_later(self.cache.reach(revision))).await?,
        }
    }

    /// The items that a selection matches now, for verbs that act on each.
    pub(super) async fn select(&self, call: &ResolvedRequest) -> Result<Vec<Arc<Item>>, Status> {
        let selection = Selection::of(call)?;
        self.cache.fresh().await?;
        let resource = self.cache.resource(call.kind);
        let prefix = prefix(call.kind, &selection);
        let all = {
            let state = resource.read();
            state.unopened.none_below(&prefix)?;
            state.range(&prefix, None).cloned().collect()
        };
        self.matching(call, call.kind, &selection, all, usize::MAX).await
    }

    /// The first `most` items that a selection matches. Much work runs on a blocking thread.
    pub(super) async fn matching(
        &self,
        call: &ResolvedRequest,
        kind: &'static Kind,
        selection: &Selection,
        mut items: Vec<Arc<Item>>,
        most: usize,
    ) -> Result<Vec<Arc<Item>>, Status> {
        if !selection.is_filtered() {
            items.truncate(most);
            return Ok(items);
        }
        let size = large::of_lookups(items.len().saturating_mul(selection.lookups()));
        let _place = self.large.enter_part(&call.user, size).await?;
        let work = async {
            let mut found = Vec::new();
            let mut turn = 0;
            for item in items {
                if found.len() == most {
                    break;
                }
                if selection.matches(kind, &item) {
                    found.push(item);
                }
                turn += selection.lookups();
                if turn >= TURN {
                    turn = 0;
                    give_way().await;
                }
            }
            found
        };
        Ok(self.large.run(&call.user, size, work).await)
    }

    /// The first page, of the current state.
    async fn list_now(
        &self,
        call: &ResolvedRequest,
        selection: &Selection,
        limit: usize,
    ) -> Result<(PartialPage, Revision), Status> {
        let resource = self.cache.resource(call.kind);
        // Read before the lock is taken: the resource cache shows at least this.
        let reached = self.cache.revision();
        let limit = if limit == 0 { usize::MAX } else { limit };
        let prefix = prefix(call.kind, selection);
        if selection.is_filtered() {
            let (all, revision) = {
                let state = resource.read();
                state.unopened.none_below(&prefix)?;
                (state.range(&prefix, None).cloned().collect::<Vec<_>>(), state.revision)
            };
            let matching = self.matching(call, call.kind, selection, all, limit.saturating_add(1)).await?;
            let more = matching.len() > limit;
            let last = matching.get(limit - 1).map(|item| item.key.to_string()).unwrap_or_default();
            let items = matching.iter().take(limit).map(|item| item.bytes.clone()).collect();
            return Ok((PartialPage { items, last, more, remaining: None }, reached.max(revision)));
        }
        let state = resource.read();
        state.unopened.none_below(&prefix)?;
        let mut matching = state.range(&prefix, None);
        let mut found = PartialPage::default();
        for item in matching.by_ref().take(limit) {
            found.items.push(item.bytes.clone());
            if found.items.len() == limit {
                found.last = item.key.to_string();
            }
        }
        if found.items.len() == limit {
            found.more = matching.next().is_some();
            if found.more {
                found.remaining = Some(1 + matching.count() as u64);
            }
        }
        Ok((found, reached.max(state.revision)))
    }

    /// A page at a revision, from the store's history.
    async fn list_at(
        &self,
        call: &ResolvedRequest,
        selection: &Selection,
        revision: Revision,
        mut after: Option<String>,
        limit: usize,
    ) -> Result<PartialPage, Status> {
        let resource = self.cache.resource(call.kind);
        let mut found = PartialPage::default();
        // Historical data is not shared with the cache: it counts as part of the response from the start.
        let mut room = self.answers.try_enter(&call.user, 0).ok_or_else(answers::full)?;
        loop {
            // A page's size is unknown until it is in memory: assume the maximum.
            let place = self.large.enter_part(&call.user, PAGE_BYTES).await?;
            let chunk = if limit == 0 || selection.is_filtered() { CHUNK } else { limit - found.items.len() };
            let range =
                Range { prefix: prefix(call.kind, selection), after: after.take(), limit: chunk, at: Some(revision) };
            let began = std::time::Instant::now();
            let page = self.store.list(range).await;
            METRICS.stored("list", call.kind, began, &page);
            let page = page.map_err(store_error)?;
            if let Some(why) = page.entries.iter().find_map(|entry| unopened(&entry.value)) {
                return Err(Status::internal(why));
            }
            let bytes: usize = page.entries.iter().map(|entry| entry.value.len()).sum();
            let lookups = large::of_lookups(page.entries.len().saturating_mul(selection.lookups()));
            // Only labels and fields are read, without full decoding.
            let size = bytes / 4 + lookups;
            let mut full = false;
            let work = async {
                for entry in page.entries {
                    let item = resource.unnumbered(entry.key.clone(), entry.value, entry.mod_revision);
                    let Some(item) = item.filter(|item| selection.matches(call.kind, item)) else {
                        after = Some(entry.key.to_string());
                        continue;
                    };
                    if limit > 0 && found.items.len() == limit {
                        found.more = true;
                        break;
                    }
                    let bytes = resource.head.deliver(&item.bytes, item.revision);
                    full = !room.grow(&call.user, bytes.len());
                    if full {
                        break;
                    }
                    found.items.push(bytes);
                    found.last = item.key.to_string();
                    after = Some(found.last.clone());
                }
            };
            self.large.run(&call.user, size, work).await;
            drop(place);
            if full {
                return Err(answers::full());
            }
            if found.more || page.remaining == 0 {
                return Ok(found);
            }
            if limit > 0 && found.items.len() == limit && !selection.is_filtered() {
                found.more = true;
                // Of a view not all that remain are shown.
                found.remaining = call.kind.is_stored().then_some(page.remaining);
                return Ok(found);
            }
        }
    }
}

fn respond(kind: &Kind, found: PartialPage, revision: Revision) -> Response {
    let continue_token = if found.more { encode_token(revision, found.last) } else { String::new() };
    let list = request::List {
        kind: kind.list_kind(),
        api_version: kind.api_version(),
        resource_version: revision.to_string(),
        continue_token,
        remaining_item_count: found.remaining,
        items: found.items,
    };
    request::Body::List(list).into()
}

fn encode_token(revision: Revision, after: String) -> String {
    let token = Continue { revision, after };
    // A struct of a number and a string encodes.
    URL_SAFE_NO_PAD.encode(serde_json::to_vec(&token).unwrap_or_default())
}

fn decode_token(token: &str) -> Result<Continue, Status> {
    let bytes = URL_SAFE_NO_PAD.decode(token).ok();
    bytes
        .and_then(|bytes| serde_json::from_slice(&bytes).ok())
        .ok_or_else(|| Status::bad_request("continue key is not valid: the token was not made by this server"))
}
