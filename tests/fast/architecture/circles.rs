//! Reads which file of a crate takes names from which, by the paths in its code, and finds the cycles.
//!
//! It works on tokens without types: a method call on a value is no dependency, and tests are skipped.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::{Path, PathBuf},
};

/// The text of a file, if it exists.
pub type Reader<'a> = &'a dyn Fn(&Path) -> Option<String>;

/// What each file of a cycle takes from the others: `from -> to: names`.
pub type Circle = Vec<String>;

/// The cycles of the crate with this root file.
pub fn of_crate(root: &Path, read: Reader<'_>) -> Vec<Circle> {
    let mut modules = Vec::new();
    read_file(&mut modules, root, None, read);
    let takes = takes(&modules);
    let reached: BTreeMap<&PathBuf, BTreeSet<&PathBuf>> =
        takes.keys().map(|file| (file, reach(&takes, file))).collect();
    let beside = |file| -> BTreeSet<PathBuf> {
        let mutual = reached[file].iter().filter(|other| reached.get(**other).is_some_and(|back| back.contains(file)));
        mutual.map(|other| (*other).clone()).collect()
    };
    let circles: BTreeSet<BTreeSet<PathBuf>> = takes.keys().map(beside).filter(|files| !files.is_empty()).collect();
    circles.into_iter().map(|files| ties(&takes, &files)).collect()
}

/// What a text imports, each in full however it is grouped, `nix::mount::mount`; of all names of a module, `libc::*`. Tests are not
/// looked at.
pub fn imports(text: &str) -> Vec<String> {
    let (all, mut module) = (words(text), Module::default());
    let mut words = all.as_slice();
    loop {
        match *words {
            [] => break,
            ["#", "[", "cfg", "(", "test", ")", "]", ..] => {
                words = &words[7..];
                skip_item(&mut words);
            }
            ["use", next, ..] if next != "<" => {
                words = &words[1..];
                read_use(&mut module, &mut words, &[], false);
            }
            [_, ..] => words = &words[1..],
        }
    }
    let renamed = |import: &Import| match import.path.last() == Some(&import.name) {
        true => String::new(),
        false => format!(" as {}", import.name),
    };
    let named = module.imports.iter().map(|import| import.path.join("::") + &renamed(import));
    named.chain(module.globs.iter().map(|glob| glob.join("::") + "::*")).collect()
}

/// Per file, from which other files of its crate it takes which names.
type Takes = BTreeMap<PathBuf, BTreeMap<PathBuf, BTreeSet<String>>>;

fn takes(modules: &[Module]) -> Takes {
    let mut takes = Takes::new();
    for (at, module) in modules.iter().enumerate() {
        // A name that is only re-exported, as in a crate's root, is no dependency.
        let used = |import: &&Import| !import.public || module.words.contains(&import.name);
        let paths = module.imports.iter().filter(used).map(|import| &import.path).chain(&module.paths);
        for path in paths {
            let Some(Found::Name(file, name)) = resolve(modules, at, path, 0) else { continue };
            // A name that is taken through a face depends on the face too.
            let face = match resolve(modules, at, &path[..path.len() - 1], 0) {
                Some(Found::Module(face)) if modules[face].parent.is_some() => Some(modules[face].file.clone()),
                _ => None,
            };
            for file in BTreeSet::from_iter([file].into_iter().chain(face)) {
                if file != module.file && !is_part(&file, &module.file) {
                    takes.entry(module.file.clone()).or_default().entry(file).or_default().insert(name.clone());
                }
            }
        }
    }
    takes
}

/// Whether a file's module is a submodule of another's. A parent assembles its submodules: naming them is no dependency.
fn is_part(part: &Path, whole: &Path) -> bool {
    part.starts_with(room(whole))
}

/// The folder of a module's submodules.
fn room(file: &Path) -> PathBuf {
    match file.file_name().and_then(|name| name.to_str()) {
        Some("lib.rs" | "main.rs" | "mod.rs") => file.parent().unwrap_or(Path::new("")).to_owned(),
        _ => file.with_extension(""),
    }
}

fn reach<'a>(takes: &'a Takes, from: &PathBuf) -> BTreeSet<&'a PathBuf> {
    let (mut reached, mut ahead) = (BTreeSet::new(), vec![from]);
    while let Some(file) = ahead.pop() {
        for next in takes.get(file).into_iter().flat_map(BTreeMap::keys) {
            if reached.insert(next) {
                ahead.push(next);
            }
        }
    }
    reached
}

fn ties(takes: &Takes, files: &BTreeSet<PathBuf>) -> Vec<String> {
    let inside = files.iter().flat_map(|from| takes[from].iter().map(move |(to, names)| (from, to, names)));
    let line = |(from, to, names): (&PathBuf, &PathBuf, &BTreeSet<String>)| {
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        format!("{} -> {}: {}", from.display(), to.display(), names.join(", "))
    };
    inside.filter(|(_, to, _)| files.contains(*to)).map(line).collect()
}

/// A module: a file, or a block of one.
#[derive(Default)]
struct Module {
    file: PathBuf,
    parent: Option<usize>,
    children: BTreeMap<String, usize>,
    imports: Vec<Import>,
    /// Modules and enums with glob imports.
    globs: Vec<Vec<String>>,
    defined: BTreeSet<String>,
    /// The paths of two or more names outside of imports, and all single words.
    paths: BTreeSet<Vec<String>>,
    words: BTreeSet<String>,
}

struct Import {
    name: String,
    path: Vec<String>,
    public: bool,
}

/// What a path leads to: a module, or a name that a file defines.
enum Found {
    Module(usize),
    Name(PathBuf, String),
}

/// Follows a path from a module through modules and imports to the file that defines its name. None if it leaves the crate.
fn resolve(modules: &[Module], from: usize, path: &[String], depth: usize) -> Option<Found> {
    let mut at = from;
    for (step, name) in path.iter().enumerate() {
        let module = &modules[at];
        let rest = &path[step + 1..];
        match name.as_str() {
            "crate" => at = 0,
            "self" => {}
            "super" => at = module.parent?,
            name if module.children.contains_key(name) => at = module.children[name],
            name if module.defined.contains(name) => return Some(Found::Name(module.file.clone(), name.to_owned())),
            // Imports that name each other never resolve.
            _ if depth > 8 => return None,
            name => {
                // `use name::...` without a module of that name refers to another crate.
                let own = |path: &[String]| step > 0 || path[0] != name;
                let by_name = module.imports.iter().filter(|import| import.name == *name && own(&import.path));
                let paths = by_name.map(|import| import.path.clone());
                let by_glob = module.globs.iter().filter(|glob| own(glob));
                let mut all = paths.chain(by_glob.map(|glob| [glob.as_slice(), &[name.to_owned()]].concat()));
                return all.find_map(|path| match resolve(modules, at, &path, depth + 1)? {
                    Found::Module(found) if !rest.is_empty() => resolve(modules, found, rest, depth + 1),
                    found => Some(found),
                });
            }
        }
    }
    Some(Found::Module(at))
}

fn read_file(modules: &mut Vec<Module>, file: &Path, parent: Option<usize>, read: Reader<'_>) -> usize {
    let text = read(file).unwrap_or_else(|| panic!("{} cannot be read", file.display()));
    read_module(modules, file, parent, &mut words(&text).as_slice(), read)
}

/// Reads tokens up to the end of the module, and returns with the rest in `words`.
fn read_module(
    modules: &mut Vec<Module>,
    file: &Path,
    parent: Option<usize>,
    words: &mut &[&str],
    read: Reader<'_>,
) -> usize {
    let at = modules.len();
    modules.push(Module { file: file.to_owned(), parent, ..Module::default() });
    let (mut depth, mut public) = (0, false);
    loop {
        match **words {
            [] | ["}", ..] if depth == 0 => return at,
            ["#", "[", "cfg", "(", "test", ")", "]", ..] => {
                *words = &words[7..];
                skip_item(words);
                continue;
            }
            ["mod", name, ";", ..] => {
                let child = read_file(modules, &file_of(file, name, read), Some(at), read);
                modules[at].children.insert(name.to_owned(), child);
                *words = &words[3..];
            }
            ["mod", name, "{", ..] => {
                *words = &words[3..];
                let child = read_module(modules, file, Some(at), words, read);
                modules[at].children.insert(name.to_owned(), child);
                *words = &words[1..];
            }
            // Not the `use<...>` of a type.
            ["use", next, ..] if next != "<" => {
                *words = &words[1..];
                read_use(&mut modules[at], words, &[], public);
            }
            [word, ..] => {
                match word {
                    "{" => depth += 1,
                    "}" => depth -= 1,
                    _ => {}
                }
                let defines = ["fn", "struct", "enum", "trait", "type", "const", "static", "union", "!"];
                if depth == 0
                    && let [word, name, ..] = **words
                    && defines.contains(&word)
                {
                    modules[at].defined.insert(name.to_owned());
                }
                read_path(&mut modules[at], words);
            }
            [] => return at,
        }
        public = matches!(**words, ["use", ..]) && public;
        if let ["pub", ..] = **words {
            public = true;
            *words = &words[1..];
            if let ["(", ..] = **words {
                skip_group(words);
            }
        }
    }
}

/// `a::b::{c, d as e, f::*}`, and the tokens after it.
fn read_use(module: &mut Module, words: &mut &[&str], before: &[String], public: bool) {
    let mut path = before.to_owned();
    let mut name = String::new();
    loop {
        let word = words[0];
        *words = &words[1..];
        match word {
            "::" => {}
            "as" => {
                name = words[0].to_owned();
                *words = &words[1..];
            }
            "{" => {
                while words[0] != "}" {
                    read_use(module, words, &path, public);
                    if words[0] == "," {
                        *words = &words[1..];
                    }
                }
                *words = &words[1..];
                name = "{".to_owned();
            }
            "*" => {
                module.globs.push(path.clone());
                name = "{".to_owned();
            }
            "self" if !path.is_empty() => name = path.last().cloned().unwrap_or_default(),
            word => {
                path.push(word.to_owned());
                name = word.to_owned();
            }
        }
        if [",", "}", ";"].contains(&words[0]) {
            break;
        }
    }
    if name != "{" {
        module.imports.push(Import { name, path, public });
    }
}

fn read_path(module: &mut Module, words: &mut &[&str]) {
    let mut path = vec![words[0].to_owned()];
    *words = &words[1..];
    module.words.insert(path[0].clone());
    while let ["::", name, ..] = **words
        && name.starts_with(|c: char| c.is_alphabetic() || c == '_')
    {
        path.push(name.to_owned());
        *words = &words[2..];
    }
    if path.len() > 1 {
        module.paths.insert(path);
    }
}

/// Skips what follows `#[cfg(test)]`: other attributes, and an item, a field or a statement.
fn skip_item(words: &mut &[&str]) {
    while let ["#", "[", ..] = **words {
        *words = &words[1..];
        skip_group(words);
    }
    let mut item = false;
    loop {
        match **words {
            [] | ["}", ..] => return,
            ["{", ..] => {
                skip_group(words);
                if !matches!(**words, [";" | ",", ..]) {
                    return;
                }
            }
            ["(" | "[", ..] => skip_group(words),
            [word, ..] => {
                *words = &words[1..];
                item |=
                    ["fn", "impl", "use", "struct", "mod", "const", "static", "trait", "enum", "type"].contains(&word);
                if word == ";" || (word == "," && !item) {
                    return;
                }
            }
        }
    }
}

fn skip_group(words: &mut &[&str]) {
    let mut depth = 0;
    while let [word, ..] = **words {
        *words = &words[1..];
        match word {
            "{" | "(" | "[" => depth += 1,
            "}" | ")" | "]" => depth -= 1,
            _ => {}
        }
        if depth == 0 {
            return;
        }
    }
}

fn file_of(parent: &Path, module: &str, read: Reader<'_>) -> PathBuf {
    let file = room(parent).join(format!("{module}.rs"));
    if read(&file).is_some() { file } else { room(parent).join(module).join("mod.rs") }
}

/// The tokens of Rust code, without comments and literals.
fn words(text: &str) -> Vec<&str> {
    let mut found = Vec::new();
    let mut rest = text;
    while let Some(first) = rest.chars().next() {
        let length = if "/\"'bcr".contains(first) { literal(rest) } else { 0 };
        if length > 0 {
            rest = &rest[length..];
        } else if first.is_alphanumeric() || first == '_' {
            let end = rest.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(rest.len());
            found.push(&rest[..end]);
            rest = &rest[end..];
        } else {
            let sign = if rest.starts_with("::") { "::" } else { &rest[..first.len_utf8()] };
            if !first.is_whitespace() {
                found.push(sign);
            }
            rest = &rest[sign.len()..];
        }
    }
    found
}

/// The length of the comment, string, character or lifetime at the start of a text; 0 if there is none.
fn literal(text: &str) -> usize {
    let until = |start: usize, end: &str| text[start..].find(end).map_or(text.len(), |at| start + at + end.len());
    let prefix = ["br", "cr", "b", "c", "r", ""].into_iter().find(|prefix| {
        let rest = text.strip_prefix(prefix).unwrap_or_default();
        rest.starts_with('"')
            || (prefix.ends_with('r') && rest.trim_start_matches('#').starts_with('"') && rest.starts_with('#'))
    });
    if text.starts_with("//") {
        return text.find('\n').unwrap_or(text.len());
    } else if text.starts_with("/*") {
        return until(2, "*/");
    } else if let Some(prefix) = prefix {
        let start = prefix.len();
        if prefix.ends_with('r') {
            let hashes = text[start..].len() - text[start..].trim_start_matches('#').len();
            return until(start + hashes + 1, &format!("\"{}", "#".repeat(hashes)));
        }
        return start + 1 + quoted(&text[start + 1..], '"');
    } else if let Some(rest) = text.strip_prefix('\'') {
        let lifetime = !rest.starts_with('\\') && rest.chars().nth(1) != Some('\'');
        return if lifetime { 1 } else { 1 + quoted(rest, '\'') };
    }
    0
}

/// Up to and including the character that ends a literal.
fn quoted(text: &str, end: char) -> usize {
    let mut escaped = false;
    for (at, c) in text.char_indices() {
        if c == end && !escaped {
            return at + 1;
        }
        escaped = c == '\\' && !escaped;
    }
    text.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn circles(files: &[(&str, &str)]) -> Vec<String> {
        let read =
            |path: &Path| files.iter().find(|(name, _)| Path::new(name) == path).map(|(_, text)| (*text).to_owned());
        of_crate(Path::new("lib.rs"), &read).into_iter().flatten().collect()
    }

    #[test]
    fn files_that_take_names_from_each_other_are_a_circle() {
        let lib = ("lib.rs", "mod a;\nmod b;\nmod c;\npub use a::A;");
        let a = ("a.rs", "use super::b;\npub struct A(b::B);\nfn f<'a>() -> impl Fn() + use<'a> { || {} }");
        let found =
            circles(&[lib, a, ("b.rs", "use crate::{A, c::C as D};\npub struct B(D);"), ("c.rs", "pub struct C;")]);
        assert_eq!(found, ["a.rs -> b.rs: B", "b.rs -> a.rs: A"], "through the face of the crate too");
        let found = circles(&[lib, a, ("b.rs", "pub struct B;"), ("c.rs", "use crate::a::*;\nuse crate::b::B;")]);
        assert!(found.is_empty(), "{found:?}");
    }

    #[test]
    fn comments_texts_and_tests_tie_nobody() {
        let lib = ("lib.rs", "mod a;\nmod b;");
        let a = ("a.rs", "use super::b::B;\npub const A: &str = \"\";");
        for b in [
            "// crate::a::A\npub struct B;",
            "pub struct B; const C: &str = r#\"crate::a::A \"quoted\"\"#; const D: char = '\\''; fn f<'x>(_: &'x str) {}",
            "pub struct B;\n#[cfg(test)]\nmod tests {\n use crate::a::A;\n}",
            "pub struct B;\n#[cfg(test)]\nuse crate::a::A;\nimpl B {}",
        ] {
            assert!(circles(&[lib, a, ("b.rs", b)]).is_empty(), "{b}");
        }
        assert_eq!(circles(&[lib, a, ("b.rs", "pub struct B; fn f() { crate::a::A; }")]).len(), 2);
    }

    #[test]
    fn a_name_that_is_taken_through_a_face_depends_on_the_face() {
        let lib = ("lib.rs", "mod a;\nmod c;");
        let whole = ("a/mod.rs", "pub mod b;\npub use b::B;\nfn f(_: crate::c::C) {}");
        let found = |c: &str| circles(&[lib, whole, ("a/b.rs", "pub struct B;"), ("c.rs", c)]);
        assert_eq!(found("use crate::a::B;\npub struct C;"), ["a/mod.rs -> c.rs: C", "c.rs -> a/mod.rs: B"]);
        assert!(found("use crate::a::b::B;\npub struct C;").is_empty());
    }

    #[test]
    fn a_module_puts_its_own_parts_together() {
        let lib = ("lib.rs", "mod a;\nmod c;");
        let part = ("a/b.rs", "use super::A;\nuse crate::c::C;\npub struct B(A, C);");
        let whole = ("a.rs", "mod b;\nuse b::B;\npub struct A;\nfn f(_: B) {}");
        assert!(circles(&[lib, whole, part, ("c.rs", "pub struct C;")]).is_empty());
        let found = circles(&[lib, whole, part, ("c.rs", "use super::a::A;\nuse crate::a::b::B;\npub struct C;")]);
        assert_eq!(found, ["a/b.rs -> c.rs: C", "c.rs -> a/b.rs: B"]);
    }
}
