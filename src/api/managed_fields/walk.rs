//! Traversals of values by their schema: the fields of a value, the differences of two, the merge of two, and a value without some
//! of its fields. Upstream: structured-merge-diff.

use std::collections::{HashMap, HashSet, VecDeque};

use serde_json::{Map, Value};

use super::element;
use super::set::{Node, Set};
use crate::Object;
use crate::patch::order::Keys;
use crate::schema::{List, Struct, Topology, Type};

/// Which fields of an object a write affects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    /// All fields.
    All,
    /// All but `status`.
    Main,
    /// `status`, and metadata.
    Status,
    /// Only the resources and resize policies of a Pod's containers.
    Resize,
}

/// System fields of metadata and names, which are not managed.
const UNMANAGED: &[&str] = &[
    "name",
    "namespace",
    "creationTimestamp",
    "selfLink",
    "uid",
    "clusterName",
    "generation",
    "managedFields",
    "resourceVersion",
];

impl Scope {
    fn covers(self, field: &str) -> bool {
        match (self, field) {
            (_, "apiVersion" | "kind") => false,
            (Scope::Resize, other) => other == "spec",
            (_, "metadata") => true,
            (Scope::Main, "status") => false,
            (Scope::Status, other) => other == "status",
            _ => true,
        }
    }

    /// The part of a set within the scope.
    fn narrowed(self, set: Set) -> Set {
        if self != Scope::Resize {
            return set;
        }
        let only = |of: &Node, names: &[&str], below: &dyn Fn(&Node) -> Node| {
            let set = of.below.combined(|e, n| element::name(e).filter(|name| names.contains(name)).map(|_| below(n)));
            Node { member: false, below: set }
        };
        let container = |node: &Node| only(node, &["resources", "resizePolicy"], &Node::clone);
        let list = |node: &Node| Node { member: false, below: node.below.combined(|_, n| Some(container(n))) };
        let root = Node { member: false, below: set };
        only(&root, &["spec"], &|spec| only(spec, &["containers", "initContainers"], &list)).below
    }
}

/// How a value is traversed.
pub(super) enum Shape<'a> {
    /// A single value: a scalar, an atomic list or map, or something without a schema.
    Leaf,
    Struct(&'a Struct),
    Map(&'a Type),
    List(&'a List),
}

/// A type in its context: the field of a struct may be marked atomic.
#[derive(Clone, Copy)]
pub(super) struct TypeRef<'a> {
    of: Option<&'a Type>,
    atomic: bool,
}

impl<'a> TypeRef<'a> {
    pub fn of(of: &'a Type) -> TypeRef<'a> {
        TypeRef { of: Some(of), atomic: false }
    }
    pub fn shape(self) -> Shape<'a> {
        match self.of {
            _ if self.atomic => Shape::Leaf,
            Some(Type::Struct(s)) if !s.atomic => Shape::Struct(s),
            Some(Type::Map(of)) => Shape::Map(of),
            Some(Type::Unknown) => Shape::Map(&Type::Unknown),
            Some(Type::List(list)) if list.kind.topology != Topology::Atomic => Shape::List(list),
            _ => Shape::Leaf,
        }
    }
}

impl<'a> Shape<'a> {
    /// The type of a struct's field or of a map's entry.
    pub fn field(&self, name: &str) -> TypeRef<'a> {
        match self {
            Shape::Struct(s) => match s.field(name) {
                Some(field) => TypeRef { of: Some(&field.of), atomic: field.atomic },
                None if s.open => TypeRef::of(&Type::Unknown),
                None => TypeRef { of: None, atomic: false },
            },
            Shape::Map(of) => TypeRef::of(of),
            _ => TypeRef { of: None, atomic: false },
        }
    }
}

fn is_empty(value: Option<&Value>) -> bool {
    match value {
        None | Some(Value::Null) => true,
        Some(Value::Object(map)) => map.is_empty(),
        Some(Value::Array(items)) => items.is_empty(),
        Some(_) => false,
    }
}

/// The fields of an object.
pub fn fields(schema: &Struct, scope: Scope, object: &Object) -> Set {
    let mut set = Set::default();
    for (name, value) in object.0.as_object().into_iter().flatten().filter(|(name, _)| scope.covers(name)) {
        let mut node = node(Shape::Struct(schema).field(name).shape(), value);
        if name == "metadata" {
            node.below = node.below.combined(|e, n| (!is_unmanaged(e)).then(|| n.clone()));
            node.member = false;
        } else {
            node.member |= is_empty(Some(value)) && !value.is_array();
        }
        set.put(element::field(name), node);
    }
    scope.narrowed(set)
}

fn is_unmanaged(element: &str) -> bool {
    element::name(element).is_some_and(|name| UNMANAGED.contains(&name))
}

/// All fields of an object, including unmanaged ones.
pub fn all_fields(schema: &Struct, object: &Object) -> Set {
    node(Shape::Struct(schema), &object.0).below
}

fn node(shape: Shape<'_>, value: &Value) -> Node {
    let mut below = Set::default();
    match (&shape, value) {
        (Shape::Struct(_) | Shape::Map(_), Value::Object(map)) => {
            for (name, value) in map {
                let mut node = node(shape.field(name).shape(), value);
                let is_entry = matches!(&shape, Shape::Map(_));
                node.member |= is_entry || value.is_null() || value.as_object().is_some_and(Map::is_empty);
                below.put(element::field(name), node);
            }
            Node { member: false, below }
        }
        (Shape::List(list), Value::Array(items)) => {
            for item in items {
                let Some(element) = element::item(list, item) else { continue };
                below.put(element, Node { member: true, ..node(TypeRef::of(&list.item).shape(), item) });
            }
            Node { member: false, below }
        }
        _ => Node::LEAF,
    }
}

/// The differences between two objects.
#[derive(Clone, Debug, Default)]
pub struct Comparison {
    pub added: Set,
    pub modified: Set,
    pub removed: Set,
}

impl Comparison {
    pub fn is_empty(&self) -> bool {
        self.added.is_empty() && self.modified.is_empty() && self.removed.is_empty()
    }
}

/// Compares; without an old object, everything is new.
pub fn compare(schema: &Struct, scope: Scope, old: Option<&Object>, new: &Object) -> Comparison {
    let mut all = Change::default();
    let shape = Shape::Struct(schema);
    for name in union_of_keys(old.map(|o| &o.0), Some(&new.0)) {
        let (before, now) = (old.and_then(|o| o.0.get(name)), new.0.get(name));
        if !scope.covers(name) || before == now {
            continue;
        }
        if name != "metadata" {
            all.put(Step::Field(name), change(Step::Field(name), shape.field(name), before, now, 1));
            continue;
        }
        let mut metadata = Change::default();
        let place = shape.field(name).shape();
        for name in union_of_keys(before, now).filter(|name| !UNMANAGED.contains(name)) {
            let (before, now) = (before.and_then(|v| v.get(name)), now.and_then(|v| v.get(name)));
            metadata.put(Step::Field(name), change(Step::Field(name), place.field(name), before, now, 2));
        }
        all.put(Step::Field(name), metadata);
    }
    let Change { added, modified, removed } = all;
    let of = |node: Node| scope.narrowed(node.below);
    Comparison { added: of(added), modified: of(modified), removed: of(removed) }
}

fn union_of_keys<'a>(a: Option<&'a Value>, b: Option<&'a Value>) -> impl Iterator<Item = &'a str> {
    let keys =
        |v: Option<&'a Value>| v.and_then(Value::as_object).into_iter().flat_map(|m| m.keys().map(String::as_str));
    let second = keys(b).filter(move |key| a.and_then(|v| v.get(*key)).is_none());
    keys(a).chain(second)
}

/// Fields that upstream's structs always have, even empty: their presence means nothing.
const ALWAYS_THERE: &[&str] = &[
    "metadata",
    "spec",
    "status",
    "template",
    "jobTemplate",
    "strategy",
    "updateStrategy",
    "resources",
    "containers",
    "loadBalancer",
];

/// One step of the path to a value; the element is built only for a difference.
#[derive(Clone, Copy)]
enum Step<'a> {
    Field(&'a str),
    Item(&'a str),
}

/// The differences at a path and below it.
#[derive(Default)]
struct Change {
    added: Node,
    modified: Node,
    removed: Node,
}

impl Change {
    /// Adds the differences one step below.
    fn put(&mut self, step: Step<'_>, of: Change) {
        let pairs = [(&mut self.added, of.added), (&mut self.modified, of.modified), (&mut self.removed, of.removed)];
        for (own, node) in pairs.into_iter().filter(|(_, node)| !node.is_empty()) {
            let element = match step {
                Step::Field(name) => element::field(name),
                Step::Item(element) => element.into(),
            };
            own.below.put(element, node);
        }
    }

    /// A new or removed struct, map or list is itself a change, in addition to its content.
    fn container(&mut self, step: Step<'_>, old: Option<&Value>, new: Option<&Value>) {
        let silent = matches!(step, Step::Field(name) if ALWAYS_THERE.contains(&name));
        match (old, new) {
            (None, Some(_)) if !silent => self.added.member = true,
            (Some(_), None) => self.removed.member = true,
            _ => {}
        }
    }
}

/// Values are first compared as a whole down to this depth. A difference means that everything is traversed again one step below,
/// which deep nesting must not multiply.
const COMPARED: usize = 6;

/// The differences between two values at the path of `step`, at this depth in the object.
fn change(step: Step<'_>, place: TypeRef<'_>, old: Option<&Value>, new: Option<&Value>, depth: usize) -> Change {
    let mut out = Change::default();
    if depth < COMPARED && old == new {
        return out;
    }
    let shape = place.shape();
    let leaf = is_empty(old) && is_empty(new);
    match &shape {
        Shape::Struct(_) | Shape::Map(_) if !leaf && (is_object(old) || is_object(new)) => {
            for name in union_of_keys(old, new) {
                let (before, now) = (old.and_then(|v| v.get(name)), new.and_then(|v| v.get(name)));
                out.put(Step::Field(name), change(Step::Field(name), shape.field(name), before, now, depth + 1));
            }
            out.container(step, old, new);
        }
        Shape::List(list) if !leaf => {
            items_change(&mut out, list, old, new, depth + 1);
            out.container(step, old, new);
        }
        _ if old == new => {}
        _ => match (old, new) {
            (None, _) => out.added = Node::LEAF,
            (_, None) => out.removed = Node::LEAF,
            _ => out.modified = Node::LEAF,
        },
    }
    out
}

fn is_object(value: Option<&Value>) -> bool {
    value.is_some_and(Value::is_object)
}

fn items_change(out: &mut Change, list: &List, old: Option<&Value>, new: Option<&Value>, depth: usize) {
    let (before, now) = (items_of(list, old), items_of(list, new));
    let mut at = |element: &str, before, now| {
        let step = Step::Item(element);
        out.put(step, change(step, TypeRef::of(&list.item), before, now, depth));
    };
    // Items with equal elements are compared pairwise in order: none is traversed once for each of the others.
    let mut old_of = by_element(&before);
    for (element, value) in &now {
        at(element, old_of.get_mut(&**element).and_then(VecDeque::pop_front), Some(value));
    }
    let named: HashSet<&str> = now.iter().map(|(element, _)| &**element).collect();
    for (element, value) in before.iter().filter(|(element, _)| !named.contains(&**element)) {
        at(element, Some(value), None);
    }
}

/// The items of a list, with their elements.
fn items_of<'a>(list: &List, value: Option<&'a Value>) -> Vec<(Box<str>, &'a Value)> {
    let items = value.and_then(Value::as_array).into_iter().flatten();
    items.filter_map(|item| Some((element::item(list, item)?, item))).collect()
}

fn by_element<'a>(items: &'a [(Box<str>, &'a Value)]) -> HashMap<&'a str, VecDeque<&'a Value>> {
    let mut all: HashMap<&str, VecDeque<&Value>> = HashMap::with_capacity(items.len());
    for (element, value) in items {
        all.entry(&**element).or_default().push_back(value);
    }
    all
}

/// The live object with the manifest merged in.
pub fn merge(schema: &Struct, live: &Object, config: &Object) -> Object {
    Object(merged(Shape::Struct(schema), Some(&live.0), &config.0))
}

fn merged(shape: Shape<'_>, live: Option<&Value>, config: &Value) -> Value {
    match (&shape, live, config) {
        (Shape::Struct(_) | Shape::Map(_), live, Value::Object(config)) => {
            let live = live.and_then(Value::as_object);
            let mut out = Map::with_capacity(config.len());
            for (name, value) in live.into_iter().flatten() {
                let value = match config.get(name) {
                    Some(new) => merged(shape.field(name).shape(), Some(value), new),
                    None => value.clone(),
                };
                out.insert(name.clone(), value);
            }
            for (name, value) in config.iter().filter(|(name, _)| live.is_none_or(|live| !live.contains_key(*name))) {
                out.insert(name.clone(), merged(shape.field(name).shape(), None, value));
            }
            Value::Object(out)
        }
        (Shape::List(list), live, Value::Array(config)) => {
            let live = live.and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
            let keys = list.keys();
            let keys = Keys(&keys, Some(list));
            let live_items = keys.index(live);
            let item = |item: &Value| {
                let live = live_items.find(item).map(|at| &live[at]);
                merged(TypeRef::of(&list.item).shape(), live, item)
            };
            Value::Array(woven(live, config, keys, item))
        }
        _ => config.clone(),
    }
}

/// The items of both lists: the manifest's in its order, and items that are only live at their place before the next shared one.
fn woven(live: &[Value], config: &[Value], keys: Keys<'_>, item: impl Fn(&Value) -> Value) -> Vec<Value> {
    let (live_items, config_items) = (keys.index(live), keys.index(config));
    // For each position in the manifest's list the next one whose item is also live.
    let mut next_shared = vec![None; config.len() + 1];
    for (at, own) in config.iter().enumerate().rev() {
        next_shared[at] = if live_items.has(own) { Some(at) } else { next_shared[at + 1] };
    }
    let mut all = Vec::with_capacity(live.len().max(config.len()));
    let (mut l, mut c) = (0, 0);
    while l < live.len() || c < config.len() {
        if let Some(own) = live.get(l) {
            match config_items.find(own) {
                None => {
                    all.push(own.clone());
                    l += 1;
                    continue;
                }
                Some(at) => {
                    // One that was already placed, or comes later in the manifest.
                    if next_shared[c] != Some(at) {
                        l += 1;
                        continue;
                    }
                    l += usize::from(at == c);
                }
            }
        }
        if let Some(value) = config.get(c) {
            all.push(item(value));
            c += 1;
        }
    }
    all
}

/// The object without these fields. Containers that become empty are removed, too.
pub fn without(schema: &Struct, object: &Object, fields: &Set) -> Object {
    Object(removed(Shape::Struct(schema), &object.0, fields, false).unwrap_or(Value::Null))
}

/// The object without these fields. Containers that become empty, and are not removed themselves, become null.
pub fn hollowed(schema: &Struct, object: &Object, fields: &Set) -> Object {
    Object(removed(Shape::Struct(schema), &object.0, fields, true).unwrap_or(Value::Null))
}

/// `None`: nothing is left of it. `nulls`: then it is null.
fn removed(shape: Shape<'_>, value: &Value, fields: &Set, nulls: bool) -> Option<Value> {
    let emptied = || nulls.then_some(Value::Null);
    match (&shape, value) {
        (Shape::Struct(_) | Shape::Map(_), Value::Object(map)) => {
            let mut out = Map::with_capacity(map.len());
            for (name, value) in map {
                let element = element::field(name);
                if fields.has(&element) {
                    continue;
                }
                let below = fields.below(&element);
                let kept = match below.is_empty() {
                    true => Some(value.clone()),
                    false => removed(shape.field(name).shape(), value, below, nulls),
                };
                if let Some(value) = kept {
                    out.insert(name.clone(), value);
                }
            }
            if out.is_empty() { emptied() } else { Some(Value::Object(out)) }
        }
        (Shape::List(list), Value::Array(items)) => {
            let kept = items.iter().filter_map(|item| {
                let Some(element) = element::item(list, item) else { return Some(item.clone()) };
                let below = fields.below(&element);
                match (fields.has(&element), below.is_empty()) {
                    (true, _) => None,
                    (false, true) => Some(item.clone()),
                    (false, false) => removed(TypeRef::of(&list.item).shape(), item, below, nulls),
                }
            });
            let kept: Vec<Value> = kept.collect();
            if kept.is_empty() { emptied() } else { Some(Value::Array(kept)) }
        }
        _ => Some(value.clone()),
    }
}

/// The set with all struct fields on the path to a member added as members: they may be removed when they become empty.
pub fn with_named_fields(schema: &Struct, set: &Set) -> Set {
    named(&Shape::Struct(schema), set)
}

fn named(shape: &Shape<'_>, set: &Set) -> Set {
    set.combined(|element, node| {
        let (is_field, place) = match (element::name(element), shape) {
            (Some(name), Shape::Struct(s)) => (s.field(name).is_some(), shape.field(name)),
            (Some(name), Shape::Map(_)) => (false, shape.field(name)),
            (None, Shape::List(list)) => (false, TypeRef::of(&list.item)),
            _ => (false, TypeRef { of: None, atomic: false }),
        };
        let member = node.member || (is_field && !node.below.is_empty());
        Some(Node { member, below: named(&place.shape(), &node.below) })
    })
}
