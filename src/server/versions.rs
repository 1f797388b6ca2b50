//! Conversion between versions of a kind, on input and output, so that the verbs only see the stored one.

use std::borrow::Cow;

use bytes::Bytes;
use serde_json::Value;
use tokio::sync::mpsc;

use podwright_api::kinds::Storage;
use podwright_api::kinds::custom::Conversion;
use podwright_api::request::{Body, EventKind};
use podwright_api::selector::FieldSelector;
use podwright_api::structural::{fill, prune};
use podwright_api::{FieldValidation, Kind, Object, Response, Status, WatchEvent};

use super::cache::row;
use super::large::{LARGE, give_way};
use super::resolved_request::ResolvedRequest;
use super::{Server, Watch};

/// A representation's number in the cache.
const CONVERTED: u8 = 0;

impl Server {
    /// A stored object in the requested version, on the user's account.
    async fn shown_bytes(&self, asked: &ResolvedRequest, stored: Bytes) -> Result<Bytes, Status> {
        let Some(to) = asked.version else { return Ok(stored) };
        let convert = || Ok(asked.shown_bytes(&stored));
        let converted = || self.shown.get_or(&stored, (row(to), CONVERTED), convert, Bytes::len);
        if stored.len() < LARGE {
            return converted();
        }
        self.large.part(&asked.user, stored.len(), |_| async { converted() }).await?
    }

    /// A response in the requested version.
    pub(super) async fn answered(&self, asked: &ResolvedRequest, mut response: Response) -> Result<Response, Status> {
        if asked.version.is_none() || asked.subresource.as_deref().is_some_and(|s| s != "status") {
            return Ok(response);
        }
        match &mut response.body {
            Body::Object { bytes, .. } => *bytes = self.shown_bytes(asked, std::mem::take(bytes)).await?,
            Body::List(list) => {
                list.api_version = asked.asked().api_version();
                let all = list.items.iter().map(Bytes::len).sum();
                let convert = async {
                    let mut since = 0;
                    for bytes in &mut list.items {
                        *bytes = self.shown_bytes(asked, std::mem::take(bytes)).await?;
                        since += bytes.len();
                        if since >= LARGE {
                            since = 0;
                            give_way().await;
                        }
                    }
                    Ok(())
                };
                self.large.part(&asked.user, all, |_| convert).await??;
            }
            Body::Status(_) | Body::Stream { .. } => {}
        }
        Ok(response)
    }

    /// A watch with events in the requested version. Each event is converted after the previous one was taken.
    pub(super) fn told(&self, asked: ResolvedRequest, mut watch: Watch) -> Watch {
        if asked.version.is_none() {
            return watch;
        }
        let (sender, told) = mpsc::channel(1);
        let server = self.me.clone();
        tokio::spawn(async move {
            while let (Ok(room), Some(event)) = (sender.reserve().await, watch.recv().await) {
                let Some(server) = server.upgrade() else { return };
                let WatchEvent { kind, object } = event;
                match kind {
                    EventKind::Error => room.send(WatchEvent { kind, object }),
                    // However small each one is: there may be many watches and changes.
                    _ => match server.limiters.cpu.measured(&asked.user, server.shown_bytes(&asked, object)).await {
                        Ok(object) => room.send(WatchEvent { kind, object }),
                        Err(why) => {
                            let object = serde_json::to_vec(&why).unwrap_or_default().into();
                            return room.send(WatchEvent { kind: EventKind::Error, object });
                        }
                    },
                }
            }
        });
        told
    }
}

impl ResolvedRequest {
    /// Decodes an object of the requested version, and converts it to the stored one.
    pub fn decode(&self, value: Value, validation: FieldValidation) -> Result<(Object, Vec<String>), Status> {
        let (object, warnings) = self.asked().decode(value, validation)?;
        let mut object = self.stored(object);
        // The result of a conversion is checked like input, as readers must be able to decode it.
        if let Storage::As(_) = self.asked().storage {
            (object, _) = self.asked().stored().decode(object.0, FieldValidation::Ignore)?;
        }
        Ok((object, warnings))
    }

    /// Converts an object from the requested version to the stored one.
    pub fn stored(&self, object: Object) -> Object {
        stored_of(self.asked(), object)
    }

    /// Converts a stored object to the requested version.
    pub fn shown<'a>(&self, object: &'a Object) -> Cow<'a, Object> {
        match self.version {
            None => Cow::Borrowed(object),
            Some(row) => Cow::Owned(shown_as(row, object)),
        }
    }

    fn shown_bytes(&self, bytes: &Bytes) -> Bytes {
        match Object::from_slice(bytes) {
            Ok(object) => self.shown(&object).to_vec().into(),
            Err(_) => bytes.clone(),
        }
    }

    /// Translates a field selector to stored names; fields that the requested version does not offer are refused.
    pub fn stored_fields(&self, mut fields: FieldSelector) -> Result<FieldSelector, Status> {
        fields.check(self.asked())?;
        if let Storage::As(conversion) = self.asked().storage {
            fields.0.iter_mut().for_each(|(path, ..)| *path = (conversion.field)(path).to_owned());
        }
        Ok(fields)
    }
}

/// A stored object in a version of its kind.
pub(super) fn shown_as(row: &'static Kind, object: &Object) -> Object {
    let mut object = object.clone();
    if let Storage::As(conversion) = row.storage {
        (conversion.from_stored)(&mut object);
        set_type(&mut object, row);
    }
    // For a custom resource only `apiVersion` changes; but it may be stored in the form of an older schema.
    if let Some(version) = row.custom().filter(|version| version.conversion == Conversion::None) {
        set_type(&mut object, row);
        prune::prune(&version.schema, &mut object.0);
        fill::defaults(&version.schema, &mut object.0);
    }
    object
}

/// An object of a version of its kind, in its stored form.
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
