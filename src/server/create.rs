//! The create verb.

use podwright_api::kinds::Storage;
use podwright_api::{Object, Response, Status, app_armor, pod_warnings, strategy};

use super::admission::{self, operation::Operation, review::Review};
use super::authorize::escalate::may_grant;
use super::encode::Current;
use super::reservation::Occupied;
use super::resolved_request::ResolvedRequest;
use super::transact::{Decision, WritePlan};
use super::{Server, allocate, certificates, custom, fields, get, tokens};

/// How often a generated name that is taken is generated again.
const NAMES: usize = 8;
/// A generated name is its base, cut so that it fits with this many random characters.
const SUFFIX: usize = 5;
const LONGEST_BASE: usize = 63 - SUFFIX;

impl Server {
    pub(super) async fn create(&self, mut call: ResolvedRequest) -> Result<Response, Status> {
        if matches!(call.kind.storage, Storage::Nowhere) {
            return match call.kind.built_in() {
                "Binding" => self.bind_named(call).await,
                _ => self.review(call).await,
            };
        }
        custom::may_create(&call)?;
        let body = call.take_body()?;
        if body["metadata"]["resourceVersion"].as_str().is_some_and(|rv| !rv.is_empty() && rv != "0") {
            return Err(Status::bad_request("resourceVersion should not be set on objects to be created"));
        }
        let validation = call.options.field_validation.unwrap_or_default();
        let (mut object, warnings) = call.decode(body, validation)?;
        call.align_namespace(&mut object)?;
        call.align_name(&mut object)?;
        strategy::validate_size(call.rules(), &object, None)?;
        strategy::receive(call.rules(), &mut object);
        let birth = [("uid", self.env.uid()), ("creationTimestamp", self.timestamp())];
        birth.iter().for_each(|(field, value)| object.set_meta(field, serde_json::Value::from(value.as_str())));
        // Before admission, as upstream: admission's changes are not the writer's.
        fields::created(&call, &mut object, &self.timestamp());
        admission::mutate(&Review::new(self, &call, Operation::Create, None), &mut object).await?;
        // System fields are not for admission to change (upstream's `BeforeCreate`): webhooks are external programs.
        call.align_namespace(&mut object)?;
        call.follow_name(&object)?;
        strategy::begin_metadata(call.rules(), &mut object);
        birth.iter().for_each(|(field, value)| object.set_meta(field, serde_json::Value::from(value.as_str())));
        if call.kind.built_in() == "Pod" {
            app_armor::warnings(&object).into_iter().for_each(|warning| call.notes.warn(warning));
        }
        strategy::prepare_admitted(call.rules(), &mut object);
        certificates::note_user(&call, &mut object);

        let base = object.0["metadata"]["generateName"].as_str().unwrap_or("").to_owned();
        let generated = object.name().is_empty() && !base.is_empty();
        for left in (0..if generated { NAMES } else { 1 }).rev() {
            if generated {
                let cut: String = base.chars().take(LONGEST_BASE).collect();
                let name = cut + &self.env.suffix(SUFFIX);
                object.set_meta("name", serde_json::Value::from(name.as_str()));
                call.name = Some(name);
            }
            if !generated {
                return self.create_named(&call, object, warnings).await;
            }
            match self.create_named(&call, object.clone(), warnings.clone()).await {
                Err(status) if status.is_already_exists() && left > 0 => {}
                Err(status) if status.is_already_exists() => {
                    let why = ", the server was not able to generate a unique name for the object";
                    return Err(Status { message: status.message + why, ..status });
                }
                other => return other,
            }
        }
        Err(call.already_exists(&base))
    }

    async fn create_named(
        &self,
        call: &ResolvedRequest,
        mut object: Object,
        warnings: Vec<String>,
    ) -> Result<Response, Status> {
        let filled = tokens::fill(self, call, &mut object).await?;
        (call.kind.strategy.identify)(&mut object);
        let key = call.kind.key(call.namespace.as_deref(), object.name());
        let name = object.name().to_owned();
        let settle = move |mut new: Object, current: Option<&Current>, taken: &Occupied| {
            if current.is_some() {
                return Err(call.already_exists(&name));
            }
            may_grant(self, call, &new, None)?;
            let (reservations, releases) = allocate::plan(self, call, None, &mut new, taken)?;
            strategy::validate_create(call.rules(), &new)?;
            pod_warnings::of_new(call.kind.built_in(), &new).into_iter().for_each(|warning| call.notes.warn(warning));
            Ok(WritePlan { decision: Decision::Put(new), reservations, releases })
        };
        let written = self.transact_new(call, &key, object, Box::new(settle)).await?;
        let bytes = match filled {
            true => tokens::unfilled(Object::from_slice(&written.bytes)?).to_vec().into(),
            false => written.bytes,
        };
        Ok(Response { warnings, ..get::object(bytes, true) })
    }
}

impl ResolvedRequest {
    /// The object's namespace must be the request's.
    pub(super) fn align_namespace(&self, object: &mut Object) -> Result<(), Status> {
        let given = object.namespace().unwrap_or("").to_owned();
        match &self.namespace {
            None => object.set_meta("namespace", None),
            Some(namespace) if given.is_empty() => {
                object.set_meta("namespace", serde_json::Value::from(namespace.as_str()));
            }
            Some(namespace) if *namespace == given => {}
            Some(_) => {
                let why = "the namespace of the provided object does not match the namespace sent on the request";
                return Err(Status::bad_request(why));
            }
        }
        Ok(())
    }

    /// An object with the request's namespace and name.
    pub(super) fn aligned(&self, mut object: Object) -> Result<Object, Status> {
        self.align_namespace(&mut object)?;
        self.align_name(&mut object)?;
        Ok(object)
    }

    /// Admission may rename a new object, as upstream: the renamed one is then validated and created.
    fn follow_name(&mut self, object: &Object) -> Result<(), Status> {
        let name = object.name();
        if name.is_empty() || self.name.as_deref() == Some(name) {
            return Ok(());
        }
        self.name = Some(name.to_owned());
        self.check_names()
    }

    /// The object's name must be the request's.
    pub(super) fn align_name(&self, object: &mut Object) -> Result<(), Status> {
        let given = object.name().to_owned();
        match &self.name {
            Some(name) if given.is_empty() => object.set_meta("name", serde_json::Value::from(name.as_str())),
            Some(name) if *name != given => {
                let why = format!("the name of the object ({given}) does not match the name on the URL ({name})");
                return Err(Status::bad_request(why));
            }
            _ => {}
        }
        Ok(())
    }
}
