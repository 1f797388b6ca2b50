//! Subresources: the verbs of each, and the small ones: scale and binding.

use std::borrow::Cow;

use serde_json::{Value, json};

use podwright_api::kinds::Scale;
use podwright_api::request::PatchType;
use podwright_api::validation::{Errors, pod::update};
use podwright_api::{Object, Request, Response, Status, Verb, patch, scale, strategy};

use super::admission::{self, operation::Operation};
use super::encode::Current;
use super::reservation::Occupied;
use super::resolved_request::{ResolvedRequest, WriteScope, bad_value};
use super::timestamp::timestamp;
use super::transact::{Decision, Proposal, WritePlan};
use super::{Server, get};

impl Server {
    pub(super) async fn subresource(&self, mut call: ResolvedRequest) -> Result<Response, Status> {
        let sub = call.subresource.clone().unwrap_or_default();
        match (sub.as_str(), call.verb) {
            ("status" | "approval" | "ephemeralcontainers" | "resize", Verb::Get) => self.get(&call).await,
            ("status" | "approval" | "finalize" | "ephemeralcontainers" | "resize", Verb::Update) => {
                self.update(call).await
            }
            ("status" | "approval" | "finalize" | "ephemeralcontainers" | "resize", Verb::Patch) => {
                self.patch(call).await
            }
            ("scale", Verb::Get) => self.get_scale(&call).await,
            ("scale", Verb::Update) => {
                let body = call.take_body()?;
                self.change_scale(&call, |_| Ok(body.clone())).await
            }
            ("scale", Verb::Patch) => {
                let body = call.take_body()?;
                let of_type = call.options.patch_type;
                self.change_scale(&call, |old| match of_type {
                    Some(PatchType::Json) => patch::json(old, &body),
                    _ => Ok(patch::merge(old, &body)),
                })
                .await
            }
            ("binding", Verb::Create) => self.bind(call).await,
            ("eviction", Verb::Create) => self.evict(call).await,
            ("token", Verb::Create) => self.issue_token(call).await,
            ("trace", Verb::Get) => self.get_trace(&call).await,
            ("usage", Verb::Update) => self.take_usage(call).await,
            (_, verb) => Err(call.not_allowed(&format!("{verb:?}").to_lowercase())),
        }
    }

    async fn get_scale(&self, call: &ResolvedRequest) -> Result<Response, Status> {
        let paths = scale_of(call)?;
        self.cache.fresh().await?;
        let item = self.cache.resource(call.kind).get(&call.key()).ok_or_else(|| call.not_found())?;
        let view = self.look(&call.user, &item, |object| scale::get(&paths, object)).await?;
        Ok(get::object(view.to_vec().into(), false))
    }

    /// Updates an object through its `Scale`.
    async fn change_scale(
        &self,
        call: &ResolvedRequest,
        mut change: impl FnMut(&Value) -> Result<Value, Status> + Send,
    ) -> Result<Response, Status> {
        let paths = scale_of(call)?;
        let order = call.order().ok_or_else(|| call.not_allowed("scale"))?;
        let validation = call.options.field_validation.unwrap_or_default();
        let mut warnings = Vec::new();
        let propose = |current: Option<&Current>| {
            let current = current.ok_or_else(|| call.not_found())?;
            let old = scale::get(&paths, &current.object);
            let (new, unknown) = order.decode(change(&old.0)?, validation)?;
            warnings = unknown;
            Ok(Proposal::View(
                new,
                old,
                Box::new(|view, current, taken| self.scaled(call, &paths, &view, current, taken)),
            ))
        };
        let written = self.transact(call, &call.key(), propose).await?;
        let view = scale::get(&paths, &Object::from_slice(&written.bytes)?);
        Ok(Response { warnings, ..get::object(view.to_vec().into(), false) })
    }

    /// Applies an admitted `Scale` to its object.
    fn scaled(
        &self,
        call: &ResolvedRequest,
        paths: &Scale<Cow<'static, str>>,
        view: &Object,
        current: Option<&Current>,
        taken: &Occupied,
    ) -> Result<WritePlan, Status> {
        let current = current.ok_or_else(|| call.not_found())?;
        let mut object = current.object.clone();
        object.set_meta("resourceVersion", None);
        scale::set(paths, &mut object, &view.0)?;
        let object = self.replaced(call, WriteScope::Whole, object, current)?;
        self.settle(call, WriteScope::Whole, object, &current.object, taken)
    }

    /// The same as `pods/binding` of the Pod with the Binding's name, but authorized as a create of bindings. Admission sees
    /// `pods/binding`, so policies for that apply here, too.
    pub(super) async fn bind_named(&self, mut call: ResolvedRequest) -> Result<Response, Status> {
        let body = call.take_body()?;
        let request = Request {
            verb: Verb::Create,
            resource: "pods".into(),
            namespace: call.namespace.clone(),
            name: call.name.clone(),
            subresource: Some("binding".into()),
            body: Some(body),
            options: call.options.clone(),
            user: call.user.clone(),
            address: call.address,
            ..Request::default()
        };
        let bind = ResolvedRequest::resolve(&self.kinds(), request)?;
        self.bind(ResolvedRequest { notes: call.notes.clone(), ..bind }).await
    }

    /// Assigns a Pod to a node.
    async fn bind(&self, mut call: ResolvedRequest) -> Result<Response, Status> {
        let (mut body, warnings) = call.take_order()?;
        admission::admit(self, &call, Operation::Create, &mut body).await?;
        let body = body.0;
        let node = body["target"]["name"].as_str().unwrap_or("").to_owned();
        let target_kind = body["target"]["kind"].as_str().unwrap_or("");
        if node.is_empty() || !matches!(target_kind, "" | "Node") {
            let why = "a Binding needs a target of kind Node with a name";
            return Err(call.invalid(call.name(), vec![bad_value("target", &body["target"], why)]));
        }
        let call = &call;
        let propose = |current: Option<&Current>| {
            let current = current.ok_or_else(|| call.not_found())?;
            let decision = bound(call, &current.object, &body, &node, &timestamp(self.env.now()))?;
            Ok(Proposal::Plain(decision.into()))
        };
        self.transact(call, &call.key(), propose).await?;
        Ok(Response { warnings, ..get::status(Status { code: 201, ..Status::success() }) })
    }
}

/// The Pod with its node set; upstream's `assignPod`.
fn bound(call: &ResolvedRequest, old: &Object, binding: &Value, node: &str, now: &str) -> Result<Decision, Status> {
    let uid = binding["metadata"]["uid"].as_str().unwrap_or("");
    if !uid.is_empty() && uid != old.uid() {
        let why = format!("Precondition failed: UID in precondition: {uid}, UID in object meta: {}", old.uid());
        return Err(call.conflict(why));
    }
    if old.is_terminating() {
        return Err(call.conflict(format!("pod {} is being deleted, cannot be assigned to a host", old.name())));
    }
    if let Some(already) = old.0["spec"]["nodeName"].as_str().filter(|n| !n.is_empty()) {
        let why = format!("pod {} is already assigned to node \"{already}\"", old.name());
        return Err(call.conflict(why));
    }
    if old.0["spec"]["schedulingGates"].as_array().is_some_and(|gates| !gates.is_empty()) {
        return Err(call.conflict(format!("pod {} has non-empty .spec.schedulingGates", old.name())));
    }
    let mut pod = old.clone();
    pod.0["spec"]["nodeName"] = node.into();
    for (key, value) in binding["metadata"]["annotations"].as_object().into_iter().flatten() {
        pod.0["metadata"]["annotations"][key.as_str()] = value.clone();
    }
    let scheduled = json!({
        "type": "PodScheduled", "status": "True", "lastProbeTime": null, "lastTransitionTime": now,
        "observedGeneration": old.generation(),
    });
    let conditions = &mut pod.0["status"]["conditions"];
    match conditions.as_array_mut() {
        Some(list) => {
            list.retain(|condition| condition["type"] != "PodScheduled");
            list.push(scheduled);
        }
        None => *conditions = json!([scheduled]),
    }
    // The nomination is obsolete (upstream's ClearingNominatedNodeNameAfterBinding).
    if let Some(status) = pod.0["status"].as_object_mut() {
        status.shift_remove("nominatedNodeName");
    }
    let mut wrong = Errors::default();
    update::annotations(&pod, old, &mut wrong);
    if !wrong.0.is_empty() {
        return Err(call.invalid(call.name(), wrong.0));
    }
    strategy::validate_update(call.kind, &pod, &pod)?;
    Ok(Decision::Put(pod))
}

fn scale_of(call: &ResolvedRequest) -> Result<Scale<Cow<'static, str>>, Status> {
    call.kind.scale().ok_or_else(|| call.not_allowed("scale"))
}
