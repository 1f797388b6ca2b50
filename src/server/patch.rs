//! The patch verb, for all patch types; both forms of apply create missing objects.

use serde_json::Value;

use podwright_api::request::PatchType;
use podwright_api::{Response, Status, Verb, patch};

use super::encode::Current;
use super::resolved_request::ResolvedRequest;
use super::update::respond;
use super::write_scope::part_of;
use super::{Server, fields};

/// How often apply switches between creating and patching.
const MAX_RETRIES: usize = 8;
const RESTLESS: &str = "the object is created and deleted by others meanwhile; please try again";

impl Server {
    pub(super) async fn patch(&self, mut call: ResolvedRequest) -> Result<Response, Status> {
        let body = call.take_body()?;
        let Some(of_type) = call.options.patch_type else {
            return Err(Status::failure(415, "UnsupportedMediaType", "the patch names no patchType"));
        };
        call.check_manager()?;
        if of_type == PatchType::Strategic && call.kind.is_custom() {
            let types = "application/json-patch+json, application/merge-patch+json, application/apply-patch+yaml";
            let why =
                format!("the body of the request was in an unknown format - accepted media types include: {types}");
            return Err(Status::failure(415, "UnsupportedMediaType", why));
        }
        match of_type {
            PatchType::Apply => self.apply(call, body).await,
            PatchType::ThreeWay if call.subresource.is_none() => self.apply_three_way(call, body).await,
            _ => self.patch_existing(&call, of_type, &body).await,
        }
    }

    /// Server-side apply: creates the object, or merges into the existing one by field ownership.
    async fn apply(&self, mut call: ResolvedRequest, body: Value) -> Result<Response, Status> {
        if body["metadata"]["managedFields"].as_array().is_some_and(|entries| !entries.is_empty()) {
            return Err(Status::bad_request("metadata.managedFields must be nil"));
        }
        let part = part_of(&call)?;
        fields::check_applied(&call, &body)?;
        let validation = call.options.field_validation.unwrap_or_default();
        let (mut config, warnings) = call.asked().decode(body, validation)?;
        call.align_namespace(&mut config)?;
        call.align_name(&mut config)?;
        for _ in 0..MAX_RETRIES {
            let asked = &call;
            let propose = |current: Option<&Current>| {
                let current = current.ok_or_else(|| asked.not_found())?;
                let live = asked.shown(&current.object);
                let object = fields::applied(asked, part, Some(&live), &config, &self.timestamp())?;
                self.replacement(asked, part, asked.stored(object), current)
            };
            match self.transact(asked, &asked.key(), propose).await {
                Err(status) if status.is_not_found() && call.subresource.is_none() => {}
                done => return Ok(Response { warnings, ..respond(done?) }),
            }
            if !config.uid().is_empty() {
                return Err(call.conflict(format!(
                    "uid mismatch: the provided object specified uid {}, and no existing object was found",
                    config.uid()
                )));
            }
            let body = fields::applied(&call, part, None, &config, &self.timestamp())?.0;
            let create = ResolvedRequest { verb: Verb::Create, body: Some(body), ..call };
            call = ResolvedRequest { verb: Verb::Patch, body: None, ..create.again() };
            self.authorize(&create.attributes()).await?;
            match self.create(create).await {
                Err(status) if status.is_already_exists() => {}
                done => return done.map(|response| Response { warnings, ..response }),
            }
        }
        Err(call.conflict(RESTLESS))
    }

    /// Creates the object, or merges into the existing one.
    async fn apply_three_way(&self, mut call: ResolvedRequest, body: Value) -> Result<Response, Status> {
        for _ in 0..MAX_RETRIES {
            match self.patch_existing(&call, PatchType::ThreeWay, &body).await {
                Err(status) if status.is_not_found() => {}
                done => return done,
            }
            let body = patch::apply::annotated(&body)?;
            let create = ResolvedRequest { verb: Verb::Create, body: Some(body), ..call };
            call = ResolvedRequest { verb: Verb::Patch, body: None, ..create.again() };
            self.authorize(&create.attributes()).await?;
            match self.create(create).await {
                Err(status) if status.is_already_exists() => {}
                done => return done,
            }
        }
        Err(call.conflict(RESTLESS))
    }

    async fn patch_existing(
        &self,
        call: &ResolvedRequest,
        of_type: PatchType,
        body: &Value,
    ) -> Result<Response, Status> {
        let part = part_of(call)?;
        let validation = call.options.field_validation.unwrap_or_default();
        let mut warnings = Vec::new();
        let propose = |current: Option<&Current>| {
            let current = current.ok_or_else(|| call.not_found())?;
            let unapplied = || patch::apply::unapplied(call.kind.plural, &current.object);
            let unapplied = (of_type == PatchType::ThreeWay).then(unapplied).flatten();
            let patched = || patch::patch(call.asked(), of_type, &call.shown(&current.object), body);
            let (object, unknown) = match call.asked().try_decode(patched()?, validation) {
                Ok(decoded) => decoded,
                // If the result is no longer a valid object of its kind, upstream prints all of it; for a strategic patch, the
                // patch.
                Err(why) => {
                    return Err(match of_type {
                        PatchType::Strategic => why.of_patch(true, &as_go_prints(body)),
                        PatchType::ThreeWay => why.status(call.asked()),
                        _ => why.of_patch(false, &patched()?.to_string()),
                    });
                }
            };
            warnings = unapplied.into_iter().chain(unknown).collect();
            self.replacement(call, part, call.aligned(call.stored(object))?, current)
        };
        let written = self.transact(call, &call.key(), propose).await?;
        Ok(Response { warnings, ..respond(written) })
    }
}

/// Formats like Go's `%+v` of a tree of maps.
fn as_go_prints(value: &Value) -> String {
    let joined = |parts: Vec<String>| parts.join(" ");
    match value {
        Value::Null => "<nil>".to_owned(),
        Value::String(text) => text.clone(),
        Value::Array(items) => format!("[{}]", joined(items.iter().map(as_go_prints).collect())),
        Value::Object(map) => {
            let mut entries: Vec<(&String, &Value)> = map.iter().collect();
            entries.sort_unstable_by_key(|(key, _)| key.as_str());
            format!("map[{}]", joined(entries.iter().map(|(k, v)| format!("{k}:{}", as_go_prints(v))).collect()))
        }
        plain => plain.to_string(),
    }
}
