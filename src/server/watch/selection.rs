//! What a list or a watch selects.

use std::sync::Arc;

use podwright_api::request::EventKind;
use podwright_api::selector::{FieldSelector, LabelSelector};
use podwright_api::{Kind, Status, WatchEvent};

use crate::cache::item::{Event, Item};
use crate::encode::Head;
use crate::resolved_request::ResolvedRequest;

/// What a list or a watch selects.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Selection {
    pub namespace: Option<String>,
    pub name: Option<String>,
    pub labels: LabelSelector,
    pub fields: FieldSelector,
}

impl Selection {
    pub fn of(call: &ResolvedRequest) -> Result<Selection, Status> {
        let labels = call.options.label_selector.as_deref().map(LabelSelector::parse).transpose()?.unwrap_or_default();
        let fields = call.options.field_selector.as_deref().map(FieldSelector::parse).transpose()?.unwrap_or_default();
        let fields = call.stored_fields(fields)?;
        Ok(Selection { namespace: call.namespace.clone(), name: call.name.clone(), labels, fields })
    }

    pub fn matches(&self, kind: &Kind, item: &Item) -> bool {
        self.namespace.as_ref().is_none_or(|ns| ns == item.namespace(kind))
            && self.name.as_ref().is_none_or(|name| name == item.name())
            && self.labels.matches(|label| item.label(label))
            && self.fields.matches(|path| item.field(kind, path))
    }

    /// The event that a watcher with this selection gets for an event of a kind; `head` is that of its objects.
    pub fn shows(&self, kind: &Kind, head: &Head, event: &Event) -> Option<WatchEvent> {
        let fits = |item: &Option<Arc<Item>>| item.as_ref().is_some_and(|item| self.matches(kind, item));
        let (before, now) = (fits(&event.old), fits(&event.new));
        let told = match (before, now) {
            (false, true) => EventKind::Added,
            (true, true) => EventKind::Modified,
            (true, false) => EventKind::Deleted,
            (false, false) => return None,
        };
        let object = match &event.new {
            Some(new) if now => new.bytes.clone(),
            _ => event.gone(head)?,
        };
        Some(WatchEvent { kind: told, object })
    }

    /// Whether it filters by anything other than namespace.
    pub fn is_filtered(&self) -> bool {
        self.name.is_some() || !self.labels.0.is_empty() || !self.fields.0.is_empty()
    }

    /// The most lookups needed to match one object.
    pub fn lookups(&self) -> usize {
        self.labels.lookups() + self.fields.0.len()
    }

    /// The narrowest bucket that gets all its events.
    pub(super) fn bucket(&self) -> Bucket {
        if let Some(name) = &self.name {
            return Bucket::Field("metadata.name".into(), name.as_str().into());
        }
        let mut equals = self.fields.0.iter().filter(|(_, equal, _)| *equal);
        if let Some((path, _, value)) = equals.next() {
            return Bucket::Field(path.as_str().into(), value.as_str().into());
        }
        match &self.namespace {
            Some(namespace) => Bucket::Field("metadata.namespace".into(), namespace.as_str().into()),
            None => Bucket::All,
        }
    }
}

/// The events that can concern a watcher: those of objects with this value in this field, before or after.
pub(super) enum Bucket {
    All,
    Field(Box<str>, Box<str>),
}
