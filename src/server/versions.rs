//! Other versions of a kind: converted on the way in and on the way out, so that the verbs know the stored one alone.

use std::borrow::Cow;

use bytes::Bytes;
use serde_json::Value;
use tokio::sync::mpsc;

use crate::api::kinds::Storage;
use crate::api::kinds::custom::Conversion;
use crate::api::request::{Body, EventKind};
use crate::api::selector::FieldSelector;
use crate::api::structural::{fill, prune};
use crate::api::{FieldValidation, Kind, Object, Response, Status, WatchEvent};

use super::Watch;
use super::call::Call;

impl Call {
    /// Decodes an object of the version that was asked for, and makes it one of the stored version.
    pub fn decode(&self, value: Value, validation: FieldValidation) -> Result<(Object, Vec<String>), Status> {
        let (object, warnings) = self.asked().decode(value, validation)?;
        Ok((self.stored(object), warnings))
    }

    /// An object of the version that was asked for, as one of the stored version.
    pub fn stored(&self, object: Object) -> Object {
        stored_of(self.asked(), object)
    }

    /// A stored object in the version that was asked for.
    pub fn shown<'a>(&self, object: &'a Object) -> Cow<'a, Object> {
        match self.version {
            None => Cow::Borrowed(object),
            Some(row) => Cow::Owned(shown_as(row, object)),
        }
    }

    fn shown_bytes(&self, bytes: Bytes) -> Bytes {
        match Object::from_slice(&bytes) {
            Ok(object) => self.shown(&object).to_vec().into(),
            Err(_) => bytes,
        }
    }

    /// A field selector by the stored names; fields that the asked version does not offer are refused.
    pub fn stored_fields(&self, mut fields: FieldSelector) -> Result<FieldSelector, Status> {
        fields.check(self.asked())?;
        if let Storage::As(conversion) = self.asked().storage {
            fields.0.iter_mut().for_each(|(path, ..)| *path = (conversion.field)(path).to_owned());
        }
        Ok(fields)
    }

    /// An answer in the version that was asked for.
    pub fn answered(&self, mut response: Response) -> Response {
        if self.version.is_none() || self.subresource.as_deref().is_some_and(|s| s != "status") {
            return response;
        }
        match &mut response.body {
            Body::Object { bytes, .. } => *bytes = self.shown_bytes(std::mem::take(bytes)),
            Body::List(list) => {
                list.api_version = self.asked().api_version();
                list.items.iter_mut().for_each(|bytes| *bytes = self.shown_bytes(std::mem::take(bytes)));
            }
            Body::Status(_) | Body::Stream { .. } => {}
        }
        response
    }

    /// A watch that tells its events in the version that was asked for.
    pub fn told(self, mut watch: Watch) -> Watch {
        if self.version.is_none() {
            return watch;
        }
        /// The watch itself holds what its reader has not taken yet.
        const AHEAD: usize = 16;
        let (sender, told) = mpsc::channel(AHEAD);
        tokio::spawn(async move {
            while let Some(event) = watch.recv().await {
                let object = match event.kind {
                    EventKind::Error => event.object,
                    _ => self.shown_bytes(event.object),
                };
                if sender.send(WatchEvent { kind: event.kind, object }).await.is_err() {
                    return;
                }
            }
        });
        told
    }
}

/// A stored object in a version of its kind.
pub(super) fn shown_as(row: &'static Kind, object: &Object) -> Object {
    let mut object = object.clone();
    if let Storage::As(conversion) = row.storage {
        (conversion.from_stored)(&mut object);
        set_type(&mut object, row);
    }
    // Of a custom resource only `apiVersion` changes; but it may lie there as an older schema had it.
    if let Some(version) = row.custom().filter(|version| version.conversion == Conversion::None) {
        set_type(&mut object, row);
        prune::prune(&version.schema, &mut object.0);
        fill::defaults(&version.schema, &mut object.0);
    }
    object
}

/// An object of a version of its kind, as it is stored.
pub(super) fn stored_of(row: &'static Kind, mut object: Object) -> Object {
    if let Storage::As(conversion) = row.storage {
        (conversion.to_stored)(&mut object);
    }
    if !std::ptr::eq(row, row.stored()) {
        set_type(&mut object, row.stored());
    }
    object
}

fn set_type(object: &mut Object, row: &Kind) {
    object.0["apiVersion"] = row.api_version().into();
    object.0["kind"] = row.kind.into();
}
